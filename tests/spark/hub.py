"""A model hub on loopback: the few routes of the Hugging Face hub that a download uses, with ranges."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tts_plugin.engines.spark.fetch import REPOSITORY, REVISION

_TREE = f"/api/models/{REPOSITORY}/tree/{REVISION}"
_ELSEWHERE = "/cdn/"
_RESOLVE = f"/{REPOSITORY}/resolve/{REVISION}/"


@dataclass
class Hub:
    """files: what it has at REVISION. cut: name -> bytes after which each connection is dropped. lies:
    names whose bytes arrive changed. deaf: sends whole files, whatever range is asked for. once: after
    a cut it is down. tree: answered instead of the list. ranges: name and first byte that were asked for."""

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    lies: set[str] = field(default_factory=set)
    deaf: bool = False
    once: bool = False
    down: bool = False
    tree: bytes | None = None
    ranges: list[tuple[str, int]] = field(default_factory=list)
    endpoint: str = ""

    @property
    def fetched(self) -> set[str]:
        return {name for name, _ in self.ranges}


@contextmanager
def hub(folder: Path, **more: bytes) -> Iterator[Hub]:
    """Serve the files of `folder`, and `more`, whose names have __ for / and no ending."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    served = Hub(
        files | {name.replace("__", "/").replace("_", "-"): content for name, content in more.items()}
    )

    class Handler(_Handler):
        hub = served

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(_RESOLVE).removeprefix(_ELSEWHERE)
        if self.hub.down:
            self._answer(b"", 503, {})
        elif path == _TREE:
            listed = [self._listed(name, content) for name, content in self.hub.files.items()]
            self._answer(self.hub.tree or json.dumps(listed).encode(), 200, {})
        elif path.startswith(_RESOLVE) and name.endswith(".safetensors"):  # large files stand elsewhere
            self._answer(b"", 302, {"Location": _ELSEWHERE + name})
        elif name != path and name in self.hub.files:
            self._file(name)
        else:
            self._answer(b"", 404, {})

    def _listed(self, name: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}
        if name.endswith(".safetensors"):
            sha = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
        return entry

    def _file(self, name: str) -> None:
        content = self.hub.files[name]
        headers = {"Accept-Ranges": "bytes"}
        asked = re.match(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
        self.hub.ranges.append((name, int(asked[1]) if asked else 0))
        first = int(asked[1]) if asked and not self.hub.deaf else 0
        if name in self.hub.lies:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._answer(content[first:], 206 if first else 200, headers, self.hub.cut.get(name))

    def _answer(self, content: bytes, status: int, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True
            self.hub.down = self.hub.once


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
