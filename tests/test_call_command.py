"""`sparkvoice call` and `python -m demo`: one command serves everything and ends cleanly."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest

from agent.cli import call, offered_voices, way_in
from agent.config import load_settings
from agent.parts import who_answers
from tests.engine_server import running
from tests.far_browser import Browser
from tts_plugin.errors import ConfigError
from tts_plugin.link import Address
from tts_plugin.strict_yaml import shown


@asynccontextmanager
async def the_demo() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "demo", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            brain = (await process.stdout.readline()).decode()
            line = (await process.stdout.readline()).decode()
        assert "answers come from the FAQ configs/faq.yaml" in brain
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.ears
async def test_ctrl_c_in_a_call_ends_it_the_engine_and_the_command_at_once() -> None:
    async with the_demo() as (process, url), aiohttp.ClientSession() as http:
        async with http.get(url) as response:
            assert "Sparkvoice" in await response.text()
        async with http.get(f"{url}voices") as response:
            assert "hibari" in [voice["id"] for voice in await response.json()]
        browser = Browser(None)
        async with http.post(f"{url}offer", json={"sdp": await browser.offer()}) as response:
            await browser.accept((await response.json())["sdp"])
        assert (await browser.told("unmute"))["why"] == "start"  # the greeting
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "the engine and the ears are processes of their own"

        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert (await browser.told("ended"))["why"] == "the agent hung up"
        async with asyncio.timeout(10):
            assert await process.wait() == 0
        assert time.monotonic() - began_s < 5.0  # 1 s on an idle box
        _, left = psutil.wait_procs(children, timeout=3)
        assert left == []
        await browser.close()


async def test_callers_are_offered_no_test_voice_unless_it_is_the_agents_own() -> None:
    async with running() as port, aiohttp.ClientSession() as http:
        where = Address(f"http://127.0.0.1:{port}")
        assert [voice.id for voice in await offered_voices(http, where, "hibari")] == ["hibari"]
        both = await offered_voices(http, where, "tone")
    assert [(voice.id, voice.default) for voice in both] == [("hibari", False), ("tone", True)]


@pytest.mark.ears
async def test_a_chosen_voice_that_is_not_there_is_said_and_the_call_goes_on() -> None:
    async with the_demo() as (_, url), aiohttp.ClientSession() as http:
        browser = Browser(None)
        async with http.post(f"{url}offer", json={"sdp": await browser.offer()}) as response:
            await browser.accept((await response.json())["sdp"])
        await browser.told("unmute")  # the greeting
        browser.channel.send('{"type": "voice", "id": "hibary"}')
        error = await browser.told("error")
        assert (error["code"], 'did you mean "hibari"' in error["message"]) == ("voice_not_found", True)
        browser.channel.send('{"type": "text", "text": "When are you open?"}')
        assert (await browser.told("mute"))["why"] == "clear"
        browser.channel.send('{"type": "ping"}')
        assert (await browser.told("unmute"))["why"] == "start"
        await browser.close()


@pytest.mark.ears
async def test_an_engine_that_lost_its_port_when_it_died_is_found_again_by_the_next_call() -> None:
    async with the_demo() as (process, url), aiohttp.ClientSession() as http:
        (engine,) = engines_of(process.pid)
        (port,) = {one.laddr.port for one in engine.net_connections() if one.status == psutil.CONN_LISTEN}
        engine.kill()
        async with asyncio.timeout(5):
            while (thief := took(port)) is None:
                await asyncio.sleep(0.001)
        with thief:
            async with asyncio.timeout(40):
                while True:
                    async with http.get(f"{url}voices") as response:
                        if response.status == 200:
                            break
            browser = Browser(None)
            async with http.post(f"{url}offer", json={"sdp": await browser.offer()}) as response:
                await browser.accept((await response.json())["sdp"])
            assert (await browser.told("unmute"))["why"] == "start"  # the greeting
            await browser.close()


def took(port: int) -> socket.socket | None:
    with suppress(OSError):
        return socket.create_server(("127.0.0.1", port))
    return None


def engines_of(pid: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # what an import ran is gone by now
            if "tts_plugin.server" in child.cmdline():
                found.append(child)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_while_it_still_starts(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "demo", "--port", "0")
    try:
        async with asyncio.timeout(30):
            while not (engines := engines_of(process.pid)):  # it takes seconds to be ready
                await asyncio.sleep(0.02)
        engines[0].suspend()  # or, as here, for ever
        process.send_signal(number)
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    _, left = psutil.wait_procs(engines, timeout=3)
    assert left == []


async def test_a_default_voice_that_is_not_there_is_one_line_and_exit_code_2() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "demo",
        "--port",
        "0",
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SPARKVOICE_VOICE": "hibary"},
    )
    _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert 'no voice "hibary"; did you mean "hibari"?' in said.decode().splitlines()[-1]


def test_an_open_host_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKVOICE_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="SPARKVOICE_TOKEN"):
        call(["--host", "0.0.0.0"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_host_is_printed_as_an_address_that_works_elsewhere(host: str) -> None:
    link, microphone = way_in(host, (), 8080, "a b")
    assert f"//{host}" not in link.replace("[", "")
    assert re.search(r"open http://[^ /]+:8080/#token=a%20b, press Call", link)
    assert "https pages and to localhost" in microphone
    link, _ = way_in(host, ("call.example", "other.example"), 8080, None)
    assert "open http://call.example:8080/, press Call" in link


def test_a_page_for_this_machine_is_printed_in_one_line() -> None:
    assert way_in("::1", (), 80, None) == [
        "Sparkvoice: open http://[::1]:80/, press Call and talk (Ctrl-C ends)"
    ]


def test_help_says_where_a_browser_gives_its_microphone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(["--help"])
    assert "microphone only to https pages and to localhost" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "the FAQ configs/faq.yaml"),
        ({"SPARKVOICE_FAQ": __file__}, f"the FAQ {shown(Path(__file__))}"),
        ({"OPENAI_API_KEY": "k"}, "the language model gpt-4.1-mini at https://api.openai.com/v1"),
        (
            {"LLM_BASE_URL": "http://me:secret@box:11434/v1", "LLM_MODEL": "qwen3"},
            "the language model qwen3 at http://box:11434/v1",
        ),
    ],
)
def test_the_command_tells_which_brain_answers(environ: dict[str, str], said: str) -> None:
    assert who_answers(load_settings(environ=environ)) == f"Sparkvoice: answers come from {said}"


@pytest.mark.parametrize(
    "words", [["--port", "70000"], ["--port", "x"], ["--colour", "red"], ["--max-calls", "0"]]
)
def test_a_bad_argument_is_one_line_and_exit_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(words)
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


async def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "demo", "--port", port, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert f"cannot listen on port {port}" in line
