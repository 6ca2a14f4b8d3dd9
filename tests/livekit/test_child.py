"""TTS() without an address: the engine server as a child of this process, with the embedded voice."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions

from tests.livekit.helpers import (
    FERRY,
    ONCE,
    Log,
    Stopwatch,
    collect_to_error,
    say,
    say_to_error,
    seconds_of,
    until,
)
from tts_plugin.adapters.livekit import TTS
from tts_plugin.errors import NotInstalled
from tts_plugin.server.local import LocalServer

PATIENT = APIConnectOptions(max_retry=3, retry_interval=0.2, timeout=60.0)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalServer]:
    monkeypatch.chdir(tmp_path)
    server = LocalServer.shared()
    yield server
    server.close()


async def test_c37_a_child_that_is_killed_costs_one_turn_an_error_and_the_next_speaks(
    child: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the child runs elsewhere
    async with TTS() as plugin, TTS(rate=8000) as other:
        plugin.prewarm()
        assert seconds_of(await say(plugin, FERRY[:39], conn_options=PATIENT)) > 1.0
        first = child.pid
        assert seconds_of(await say(other, "Hello there.")) > 0.3
        assert child.pid == first is not None, "two TTS objects share the child"

        stream = plugin.stream(conn_options=ONCE)
        stream.push_text(" ".join([FERRY] * 4))
        await anext(stream)
        watch = Stopwatch()
        os.kill(first, signal.SIGKILL)
        _, error = await collect_to_error(stream)
        assert watch.s < 1.0
        assert isinstance(error, APIConnectionError)

        log = Log.of(plugin)
        assert seconds_of(await say(plugin, "And on we go.", conn_options=PATIENT)) > 0.5
        assert all(event.recoverable for event in log.errors)  # one if its death was not noticed yet
        assert child.pid not in (None, first)
    child.close()
    await until(lambda: child.pid is None)


@pytest.mark.usefixtures("child")
async def test_a_child_that_lacks_its_engine_fails_the_turn_once_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hibari.py").write_text('raise ModuleNotFoundError("none here", name="hibari")\n')
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), root)))
    async with TTS() as plugin:
        log = Log.of(plugin)
        _, error = await say_to_error(plugin, FERRY, PATIENT)
    assert isinstance(error, APIConnectionError)
    assert not error.retryable
    assert 'pip install "sparkvoice[hibari]"' in error.message
    assert [event.recoverable for event in log.errors] == [False]


def test_where_no_child_can_run_the_plugin_says_so_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)  # what importlib takes for not installed
    with pytest.raises(NotInstalled, match=r"sparkvoice\[hibari,server\].*url="):
        TTS()
    assert TTS(url="http://127.0.0.1:8081").provider == "sparkvoice"
