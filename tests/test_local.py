"""The engine server as a supervised child: ready when said, restarted when dead, gone with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tts_plugin.errors import (
    BadRequest,
    ConfigError,
    EngineUnavailable,
    NotInstalled,
    TTSError,
    VoiceNotFound,
)
from tts_plugin.remote import Remote, RemoteUtterance, Request
from tts_plugin.server.local import LocalServer

TEXT = "This is a sentence that goes on for a while, so that there is something to interrupt. " * 10


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\n")
    server = LocalServer(config)
    yield server
    server.close()


async def seconds(utterance: RemoteUtterance, text: str) -> float:
    utterance.push(text)
    utterance.end()
    return sum([frame.seconds async for frame in utterance])


async def test_its_address_answers_only_to_its_token(server: LocalServer) -> None:
    address = await server.address()
    assert address.url.startswith("http://127.0.0.1:")
    assert address.token
    child = psutil.Process(server.pid)
    assert address.token not in " ".join(child.cmdline())
    remote = Remote(server.address)
    async with remote.utterance(Request(rate=24000, lead_s=None)) as utterance:
        assert await seconds(utterance, "Hello there, my friend.") > 1
    await remote.aclose()


async def test_killed_in_mid_utterance_it_is_an_error_within_a_second_and_the_next_turn_speaks(
    server: LocalServer,
) -> None:
    remote = Remote(server.address)
    first = (await server.address()).url
    async with remote.utterance(Request(rate=24000)) as utterance:
        utterance.push(TEXT)
        await anext(utterance)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(EngineUnavailable):
            while True:
                await anext(utterance)
        assert time.monotonic() - begun < 1.0
    async with remote.utterance(Request(rate=24000, lead_s=None)) as again:
        assert await seconds(again, "Hello again, my friend.") > 1
    assert (await server.address()).url == first  # an exported address stays true
    await remote.aclose()


async def test_killed_with_many_turns_at_once_each_is_told_that_it_may_be_tried_again_and_can_be(
    server: LocalServer,
) -> None:
    remote = Remote(server.address)
    await remote.connect()
    first = server.pid
    assert first is not None
    spoke = asyncio.Semaphore(0)

    async def turn() -> TTSError:
        async with remote.utterance(Request(rate=24000)) as utterance:
            utterance.push(TEXT)
            await anext(utterance)
            spoke.release()
            with pytest.raises(TTSError) as told:
                while True:
                    await anext(utterance)
        return told.value

    async with asyncio.TaskGroup() as tasks:
        turns = [tasks.create_task(turn()) for _ in range(8)]
        for _ in turns:
            await spoke.acquire()
        os.kill(first, signal.SIGKILL)
    assert all(isinstance(one.result(), EngineUnavailable) and one.result().retryable for one in turns)

    async def again() -> float:
        async with remote.utterance(Request(rate=24000, lead_s=None)) as utterance:
            return await seconds(utterance, "Hello again, my friend.")

    assert min(await asyncio.gather(*(again() for _ in turns))) > 1
    assert server.pid not in (None, first)
    await remote.aclose()


async def test_a_caller_that_gives_up_waiting_does_not_spoil_it_for_the_others(server: LocalServer) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.address(), 0.001)
    assert (await server.address()).token


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ("engine:\n  voise: tone\n", ConfigError, r'c\.yaml:2: unknown key "engine\.voise".*"voice"'),
        ("engine:\n  voice: ton\n", VoiceNotFound, 'did you mean "tone"'),
        ("engine:\n  warm: [hibary]\n", ConfigError, 'no engine "hibary"; did you mean "hibari"'),
    ],
)
async def test_what_no_second_try_can_mend_is_said_at_once_and_looked_at_again_when_asked(
    config: str, kind: type[TTSError], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(config)
    server = LocalServer(path)
    with pytest.raises(kind, match=said):
        await asyncio.wait_for(server.address(), 20)
    assert len(caplog.records) == 1, "one child, one complaint"
    assert server.pid is None
    path.write_text("engine:\n  voice: tone\n")
    assert (await asyncio.wait_for(server.address(), 20)).token
    server.close()


async def test_a_child_that_dies_as_it_starts_is_tried_three_times_and_then_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    hibari = "import os\nwith open(os.environ['STARTS'], 'a') as file:\n    file.write('x')\nos._exit(1)\n"
    (tmp_path / "hibari.py").write_text(hibari)
    monkeypatch.setenv("STARTS", str(starts))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = LocalServer()
    for tries in ("xxx", "xxxxxx"):
        with pytest.raises(EngineUnavailable, match=r"status 1\); its log says why"):
            await asyncio.wait_for(server.address(), 30)
        await asyncio.sleep(1.0)
        assert starts.read_text() == tries, "nobody asks, so nothing is started"
    server.close()


async def test_a_child_without_its_engine_is_an_error_at_once_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hibari.py").write_text('raise ModuleNotFoundError("none here", name="hibari")\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = LocalServer()
    with pytest.raises(NotInstalled, match=r'needs the package hibari.*pip install "sparkvoice\[hibari\]"'):
        await asyncio.wait_for(server.address(), 20)
    server.close()


async def test_without_the_engine_servers_packages_no_child_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # what importlib takes for not installed
    server = LocalServer()
    with pytest.raises(
        NotInstalled, match=r'uvicorn.*pip install "sparkvoice\[hibari,server\]".*url='
    ) as error:
        await server.address()
    assert "fastapi" not in str(error.value)
    assert not error.value.retryable
    assert server.pid is None


def test_a_connection_serves_one_event_loop_after_another_but_not_two_at_once(tmp_path: Path) -> None:
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\n")
    server = LocalServer(config)
    remote = Remote(server.address)

    async def turn() -> float:
        async with asyncio.timeout(30), remote.utterance(Request(rate=24000, lead_s=None)) as utterance:
            return await seconds(utterance, "Hello there, my friend.")

    async def two_loops_at_once() -> float:
        said_s = await turn()
        with pytest.raises(BadRequest, match="another event loop"):
            await asyncio.to_thread(asyncio.run, turn())
        return said_s

    first_s = asyncio.run(two_loops_at_once())  # ends without closing, as scripts do
    assert asyncio.run(turn()) == first_s > 1
    asyncio.run(remote.aclose())
    server.close()


async def test_one_that_hangs_is_replaced(tmp_path: Path) -> None:
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\n")
    server = LocalServer(config, check_s=0.3)
    await server.address()
    hung = server.pid
    assert hung is not None
    await asyncio.sleep(1.5)
    assert server.pid == hung  # healthy, it is left alone
    os.kill(hung, signal.SIGSTOP)
    async with asyncio.timeout(20):
        while server.pid in (hung, None):
            await asyncio.sleep(0.05)
        await server.address()
    server.close()


async def test_closing_does_not_wait_for_one_that_hangs_as_it_starts(server: LocalServer) -> None:
    server.start()
    async with asyncio.timeout(5):
        while server.pid is None:
            await asyncio.sleep(0.001)
    os.kill(server.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(server.address())
    await asyncio.wait_for(asyncio.to_thread(server.close), 8)
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(waiting, 5)


def test_a_fork_has_a_child_of_its_own_and_leaves_its_parents_alone() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import asyncio, os, sys\n"
            "from tts_plugin.server.local import LocalServer\n"
            "async def pid() -> int:\n"
            "    await LocalServer.shared().address()\n"
            "    return LocalServer.shared().pid\n"
            "first = asyncio.run(pid())\n"
            "forked = os.fork()\n"
            "if not forked:\n"
            "    sys.exit(0 if asyncio.run(pid()) != first else 7)\n"
            "assert os.waitpid(forked, 0)[1] == 0\n"
            "assert asyncio.run(pid()) == first\n"
            "print('flat')\n",
        ],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert said.stdout == "flat\n", said.stderr


async def test_a_voice_that_is_not_there_is_said_at_once_and_by_its_name(tmp_path: Path) -> None:
    config = tmp_path / "tome.yaml"
    config.write_text("engine:\n  voice: tome\n")
    server = LocalServer(config)
    for _ in range(2):  # who asks again is told again
        with pytest.raises(VoiceNotFound, match='did you mean "tone"'):
            await asyncio.wait_for(server.address(), 20)
        assert server.pid is None
    config.write_text("engine:\n  voice: tone\n")
    assert (await asyncio.wait_for(server.address(), 20)).token
    server.close()


async def test_ctrl_c_at_the_terminal_reaches_only_the_parent_which_ends_it(server: LocalServer) -> None:
    await server.address()  # else it may be started again while the parent is on its way out
    assert server.pid is not None
    assert os.getpgid(server.pid) != os.getpgrp()


async def test_everybody_in_the_process_shares_one_child() -> None:
    assert LocalServer.shared() is LocalServer.shared()


async def test_closed_it_is_gone_and_says_so(server: LocalServer) -> None:
    await server.address()
    child = psutil.Process(server.pid)
    server.close()
    server.close()
    assert not child.is_running()
    with pytest.raises(EngineUnavailable, match="closed"):
        await server.address()


@pytest.mark.parametrize("ending", ["return", "SIGKILL"])
def test_the_child_ends_with_its_parent(ending: str, tmp_path: Path) -> None:
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\n")
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio, pathlib, sys\n"
            "from tts_plugin.server.local import LocalServer\n"
            f"server = LocalServer.shared(pathlib.Path({str(config)!r}))\n"
            "asyncio.run(server.address())\n"
            "print(server.pid, flush=True)\n"
            "sys.stdin.read()\n",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    if ending == "SIGKILL":
        parent.kill()
    parent.stdin.close()
    parent.wait(10)
    parent.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=5)
    assert gone
