"""Who gets into the engine server, what its GETs say, and how its process starts and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.datastructures import Headers
from websockets.exceptions import InvalidStatus

from tests.engine_server import WAIT_S, client, get, running, settings_of, voices_for
from tts_plugin import wire
from tts_plugin.config import ServerSettings
from tts_plugin.engine import Engine
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.errors import ConfigError, EngineUnavailable, Overloaded
from tts_plugin.link import Address, open_socket
from tts_plugin.server.app import create_app
from tts_plugin.server.auth import refusal_of
from tts_plugin.server.run import listen_for, serve
from tts_plugin.voices import VoiceRegistry

TOKEN = "s3cret-ключ"
TONE = {"voice": "tone"}
ROUTES = ("/v1/voices", "/healthz", "/readyz", "/docs", "/nowhere")


# --- token


def asked(settings: ServerSettings, **headers: str) -> int | None:
    refusal = refusal_of(Headers(headers), settings)
    return refusal.status if refusal else None


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_asks_for_the_token(path: str) -> None:
    async with running(settings_of(engine=TONE, server={"token": "right"})) as port:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            status, body = await get(port, path, **headers)
            assert (status, body["error"]["code"]) == (401, "unauthorized")
        status, _ = await get(port, path, Authorization="Bearer right")
        assert status != 401


async def test_the_websocket_asks_for_the_token() -> None:
    async with running(settings_of(engine=TONE, server={"token": "right"})) as port:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                async with client(port, **headers):
                    pass
            assert refused.value.response.status_code == 401
        async with client(port, Authorization="Bearer right") as caller:
            await caller.say(1, "Hello.", lead_s=None)
            assert isinstance((await caller.over(1)).last, wire.Done)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer s3cret", "bearer wrong", "\xff\xfe", "Bearer \xe9"]
)
def test_what_is_not_the_token_is_refused(given: str) -> None:
    settings = ServerSettings(token=TOKEN)
    assert asked(settings, host="localhost", authorization=given) == 401


def test_a_token_may_be_any_text() -> None:
    given = f"Bearer {TOKEN}".encode().decode("latin-1")  # as headers arrive
    assert asked(ServerSettings(token=TOKEN), host="localhost", authorization=given) is None


def test_an_open_door_refuses_to_start() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.com"):
        with pytest.raises(ConfigError, match="SPARKVOICE_TOKEN"):
            serve(settings_of(server={"host": host}))
    with pytest.raises(ConfigError, match="SPARKVOICE_TOKEN"):
        create_app(settings_of(server={"host": "0.0.0.0"}))
    create_app(settings_of(server={"host": "0.0.0.0", "token": "right"}))


# --- origin and host


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8081", None),
        ("http://LOCALHOST:8081", None),
        ("https://talk.example", None),
        ("https://evil.example", 403),
        ("https://talk.example.evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_origins_are_refused(origin: str, status: int | None) -> None:
    settings = ServerSettings(origins=("https://talk.example",))
    assert asked(settings, host="localhost:8081", origin=origin) == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", None),
        ("127.0.0.1:8081", None),
        ("[::1]:8081", None),
        ("rebound.example:8081", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_loopback_server_answers_only_to_loopback_names(host: str, status: int | None) -> None:
    assert asked(ServerSettings(), host=host) == status
    assert asked(ServerSettings(), host=host, origin=f"http://{host}") in (status, 403)


async def test_foreign_pages_reach_neither_routes_nor_the_websocket() -> None:
    async with running() as port:
        for path in ROUTES:
            assert (await get(port, path, Origin="https://evil.example"))[0] == 403
            assert (await get(port, path, host="evil.example"))[0] == 403
        with pytest.raises(InvalidStatus) as refused:
            async with client(port, Origin="https://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        async with client(port, Origin=f"http://127.0.0.1:{port}"):
            pass


async def test_connections_are_limited() -> None:
    async with running(settings_of(engine=TONE, server={"max_connections": 2})) as port:
        async with client(port), client(port):
            with pytest.raises(InvalidStatus) as refused:
                async with client(port):
                    pass
            assert refused.value.response.status_code == 503
            body = json.loads(refused.value.response.body or b"")
            assert (body["error"]["code"], body["error"]["retryable"]) == ("overloaded", True)
            assert refused.value.response.headers["Retry-After"] == "1"
            with pytest.raises(Overloaded) as told:
                await open_socket(Address(f"http://127.0.0.1:{port}"))
            assert told.value.retry_after_s == 1
        await asyncio.sleep(0.05)
        async with client(port):
            pass


# --- what the GETs say


async def test_the_voices_are_listed() -> None:
    async with running() as port:
        status, body = await get(port, "/v1/voices")
    assert status == 200
    assert (body["default"], body["problems"]) == ("tone", 0)
    voices = {voice["id"]: voice for voice in body["voices"]}
    assert {"hibari", "tone"} <= set(voices)
    assert voices["hibari"]["language"] == "en-US"
    assert set(voices["hibari"]) == {
        *("id", "name", "engine", "language", "licence", "description", "credit", "speed", "offered"),
    }
    assert (voices["hibari"]["offered"], voices["tone"]["offered"]) == (True, False)


async def test_broken_voice_files_are_counted(tmp_path: Path) -> None:
    registry = voices_for(tmp_path, {"tone": "und"})
    (tmp_path / "broken.yaml").write_text("id: [")
    registry.refresh()
    async with running(registry=registry) as port:
        assert (await get(port, "/v1/voices"))[1]["problems"] == 1


async def test_it_is_alive_at_once_and_ready_when_the_engine_is_warm() -> None:
    gate = threading.Event()

    def build(_: str) -> Engine:
        gate.wait(WAIT_S)
        return ToneEngine()

    async with running(build=build) as port:
        assert await get(port, "/healthz") == (200, {"ok": True})
        assert await get(port, "/readyz") == (503, {"ready": False, "engines": {"tone": "loading"}})
        async with client(port) as caller:  # a turn that comes early waits for the engine
            await caller.say(1, "Hello.", lead_s=None)
            await caller.quiet(0.1)
            assert caller.of(1).messages == []
            gate.set()
            assert isinstance((await caller.over(1)).last, wire.Done)
        assert await get(port, "/readyz") == (200, {"ready": True, "engines": {"tone": "ready"}})


async def test_it_is_not_ready_while_its_engine_cannot_be_loaded() -> None:
    def build(_: str) -> Engine:
        raise EngineUnavailable("no such GPU")

    async with running(build=build) as port:
        await asyncio.sleep(0.05)
        assert (await get(port, "/healthz"))[0] == 200
        assert await get(port, "/readyz") == (
            503,
            {
                "ready": False,
                "engines": {"tone": "no such GPU"},
                "error": {"code": "engine_unavailable", "message": "no such GPU", "retryable": True},
            },
        )


async def test_it_is_not_ready_without_a_voice(tmp_path: Path) -> None:
    async with running(settings_of(), registry=VoiceRegistry([tmp_path], ["tone"])) as port:
        status, body = await get(port, "/readyz")
        assert status == 503
        assert body["error"]["code"] == "voice_not_found"
        assert "no voice" in body["error"]["message"]
        assert (await get(port, "/v1/voices"))[1]["voices"] == []


async def test_an_engine_is_loaded_once_however_many_ask(tmp_path: Path) -> None:
    built: list[str] = []

    def build(name: str) -> Engine:
        built.append(name)
        time.sleep(0.05)  # on the loader's thread, as an import takes
        return ToneEngine()

    registry = voices_for(tmp_path, {"tone": "und", "other": "und"})
    async with running(registry=registry, build=build) as port, client(port) as caller:
        for context in range(1, 9):
            await caller.say(context, "Hello.", voice=("tone", "other")[context % 2], lead_s=None)
        await caller.over(*range(1, 9))
        assert all(isinstance(caller.of(context).last, wire.Done) for context in range(1, 9))
    assert sorted(built) == ["other", "tone"]


# --- the process


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1.*--port"):
            serve(settings_of(server={"port": port}))


def test_a_host_that_is_not_ours_is_a_clear_error() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(ConfigError, match=f"of {host}"):
            listen_for(ServerSettings(host=host, port=0))


def test_small_messages_leave_at_once() -> None:
    with listen_for(ServerSettings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def _spawn(*argv: str, **environ: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARKVOICE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tts_plugin.server", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**clean, **environ},
        text=True,
    )


@contextmanager
def child(*argv: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """An engine server in child mode."""
    with _spawn("--child", *argv, **environ) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    assert list(line) == ["port"]
    return int(line["port"])


@asynccontextmanager
async def tone_child(tmp_path: Path) -> AsyncIterator[tuple[subprocess.Popen[str], int]]:
    """A child that speaks tones and wants the token "right", ready."""
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\nserver:\n  host: 0.0.0.0\n  port: 1\n")
    with child("--config", str(config), SPARKVOICE_TOKEN="right") as process:
        port = await asyncio.to_thread(port_of, process)
        async with asyncio.timeout(WAIT_S):
            while (await get(port, "/readyz", Authorization="Bearer right"))[0] != 200:
                await asyncio.sleep(0.02)
        yield process, port


async def test_a_child_tells_its_port_serves_and_ends_with_its_stdin(tmp_path: Path) -> None:
    async with tone_child(tmp_path) as (process, port):
        listening = {conn.laddr.ip for conn in psutil.Process(process.pid).net_connections("tcp")}
        assert listening == {"127.0.0.1"}, "whatever the file says"
        assert (await get(port, "/healthz"))[0] == 401
        async with client(port, Authorization="Bearer right") as caller:
            await caller.say(1, "Hello there. " * 50)
            await caller.audio(1)
            assert process.stdin is not None
            process.stdin.close()
            assert await asyncio.to_thread(process.wait, 4) == 0, "also while it speaks"
        assert process.stdout is not None
        assert process.stdout.read() == "", "one line on stdout, the rest on stderr"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_child_quickly_and_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async with tone_child(tmp_path) as (process, port), client(port, Authorization="Bearer right") as caller:
        await caller.say(1, "Hello there. " * 50)
        await caller.audio(1)
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 4) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


_PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "tts_plugin.server", "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
print(child.pid, child.stdout.readline().decode(), flush=True)
child.wait()
"""


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline().split()[0]))
        parent.kill()
        orphan.wait(5)
        assert not orphan.is_running()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "70000"], "70000"),
        (["--loud"], "--loud"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(argv: list[str], said: str) -> None:
    with child(*argv) as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_a_child_that_cannot_serve_tells_its_parent_why_in_its_one_line() -> None:
    with child("--config", "no/such.yaml") as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (2, "")
    error = json.loads(out)["error"]
    assert (error["code"], error["retryable"]) == ("config_error", False)
    assert "no/such.yaml" in error["message"]


def test_the_server_runs_without_a_parent_too(tmp_path: Path) -> None:
    config = tmp_path / "open.yaml"
    config.write_text("engine:\n  voice: tone\n")
    with _spawn("--config", str(config), "--port", "0") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "engine server on http://127.0.0.1:" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0


def test_an_engine_box_needs_no_livekit_no_webrtc_and_no_recogniser() -> None:
    code = (
        "import sys\n"
        "for absent in ('livekit', 'aiortc', 'aiohttp', 'faster_whisper', 'webrtcvad', 'torch'):\n"
        "    sys.modules[absent] = None\n"
        "import tts_plugin.server.run, tts_plugin.engines.hibari\n"
        "from tts_plugin.cli import main\n"
        "sys.exit(main(['voices', 'list']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hibari" in done.stdout
