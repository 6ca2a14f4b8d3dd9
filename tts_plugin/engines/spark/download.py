"""Brings files of a model hub into a folder: goes on where the last try stopped, checks each by its hash.

The hub's own client throws a file away that it has not finished, and one of these is 2 GB.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tts_plugin.strict_yaml import shown

Progress = Callable[[str, int, int], None]  # file, bytes of it that are here, bytes that it has

WAITS_S = (1.0, 2.0, 4.0, 8.0)  # before each new try; starts over whenever bytes have come
_TIMEOUT_S = 30.0  # of each wait for the hub
_BLOCK_BYTES = 1 << 20


class DownloadFailed(Exception):
    """A file did not come; what did come is kept."""


class NotThere(DownloadFailed):
    """The hub has no such repository or revision."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A revision of a repository. endpoint: such as https://huggingface.co."""

    endpoint: str
    repository: str
    revision: str

    def list(self) -> list[Remote]:
        """Every file of the revision."""
        revision = quote(self.revision, safe="")
        url = f"{self.endpoint}/api/models/{self.repository}/tree/{revision}?recursive=true"
        try:
            with _opened(url) as answer:
                entries: list[dict[str, Any]] = json.load(answer)
            files = [entry for entry in entries if entry["type"] == "file"]
            return [self._remote(entry["path"], entry) for entry in files]
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadFailed(f"{url} answers what no model hub does: {error!r}") from error
        except (OSError, http.client.HTTPException) as error:
            raise DownloadFailed(f"{self.endpoint} cannot be reached: {_reason(error)}") from error

    def _remote(self, path: str, entry: dict[str, Any]) -> Remote:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise DownloadFailed(f'the hub names a file outside of the model: "{path}"')
        url = f"{self.endpoint}/{self.repository}/resolve/{quote(self.revision, safe='')}/{quote(path)}"
        lfs = entry.get("lfs")
        return Remote(
            path, url, entry["size"], lfs["oid"] if lfs else entry["oid"], "sha256" if lfs else "git"
        )


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on the hub. path: within the model. kind: of its hash, "git" is SHA-1 of a git blob."""

    path: str
    url: str
    size_bytes: int
    hash: str
    kind: str

    def is_at(self, place: Path) -> bool:
        """Whether that file is this one, byte for byte."""
        if not place.is_file() or place.stat().st_size != self.size_bytes:
            return False
        digest = hashlib.sha256() if self.kind == "sha256" else hashlib.sha1(usedforsecurity=False)
        if self.kind == "git":
            digest.update(b"blob %d\0" % self.size_bytes)
        with place.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest() == self.hash


def matching(files: Iterable[Remote], patterns: Sequence[str]) -> list[Remote]:
    """Those whose path is like one of the shell patterns."""
    return [file for file in files if any(fnmatchcase(file.path, pattern) for pattern in patterns)]


def bring(
    files: Sequence[Remote], folder: Path, progress: Progress, waits_s: Sequence[float] = WAITS_S
) -> None:
    """Have all of `files` in `folder`, each whole or not at all. What is there and right stays.

    DownloadFailed if one cannot be had: no disk, no connection for all of `waits_s`, or wrong bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [file for file in files if not file.is_at(folder / file.path)]
    needed = sum(file.size_bytes for file in lacking) - sum(_part_bytes(file, folder) for file in lacking)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise DownloadFailed(f"{shown(folder)}: the disk has {free:,} bytes left, {needed:,} are to come")
    for file in lacking:
        part = _part(file, folder)
        part.parent.mkdir(parents=True, exist_ok=True)
        _fill(part, file, progress, waits_s)
        if not file.is_at(part):
            part.unlink()
            raise DownloadFailed(f"{file.path} arrived damaged and was thrown away")
        part.replace(folder / file.path)


def _part(file: Remote, folder: Path) -> Path:
    place = folder / file.path
    return place.with_name(f".{place.name}.{file.hash[:12]}.part")  # never goes on with another revision's


def _part_bytes(file: Remote, folder: Path) -> int:
    part = _part(file, folder)
    return part.stat().st_size if part.exists() else 0


def _fill(part: Path, file: Remote, progress: Progress, waits_s: Sequence[float]) -> None:
    """Append to `part` until it is as long as `file`."""
    waits = list(waits_s)
    with part.open("ab") as here:
        if here.tell() > file.size_bytes:
            here.truncate(0)
            here.seek(0)
        while (before := here.tell()) < file.size_bytes:
            progress(file.path, before, file.size_bytes)
            try:
                _append(here, file, progress)
                reason = "the connection ended early"
            except NotThere:
                raise
            except (OSError, http.client.HTTPException) as error:
                reason = _reason(error)
            if here.tell() > before:
                waits = list(waits_s)
            elif not waits:
                raise DownloadFailed(
                    f"{file.path} stopped at {before:,} of {file.size_bytes:,} bytes: {reason}"
                )
            else:
                time.sleep(waits.pop(0))
        progress(file.path, file.size_bytes, file.size_bytes)


def _append(here: BinaryIO, file: Remote, progress: Progress) -> None:
    """What one connection brings."""
    at = here.tell()
    with _opened(file.url, {"Range": f"bytes={at}-"} if at else {}) as answer:
        if at and answer.status != 206:  # it sends the whole file, asked or not
            here.truncate(0)
            here.seek(0)
        while (block := answer.read1(_BLOCK_BYTES)) and here.tell() < file.size_bytes:
            here.write(block[: file.size_bytes - here.tell()])
            progress(file.path, here.tell(), file.size_bytes)


def _opened(url: str, headers: dict[str, str] | None = None) -> Any:  # Any: http.client.HTTPResponse
    request = Request(
        url, headers={"User-Agent": "sparkvoice", "Accept-Encoding": "identity"} | (headers or {})
    )
    try:
        return urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        with error:
            if error.code in (401, 403, 404):  # what is private or not there looks alike
                raise NotThere(f"{url}: {error.code} {error.reason}") from error
            raise OSError(f"the hub answers {error.code} {error.reason}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)  # urllib wraps what went wrong
    return str(getattr(reason, "strerror", None) or reason) or type(error).__name__
