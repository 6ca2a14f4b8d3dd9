"""`sparkvoice phone`: a telephone call through the whole command, and the doors it refuses to open."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from agent.config import PhoneSettings, load_settings
from agent.phone_command import main, ways_in
from agent.phone_server import PhoneDoors
from agent.transports.carriers import carriers
from tests.far_carrier import MANNERS, SECRET, Office
from tts_plugin.audio import level_dbfs
from tts_plugin.config import bundled, read_config
from tts_plugin.errors import ConfigError

SUPPORT_BOT = Path(__file__).parents[1] / "configs" / "support-bot.yaml"


@asynccontextmanager
async def the_phone(*words: str, **environ: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The running command and what it has said at its start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_plugin.cli", "phone", "--port", "0", *words),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(60):
            while "Ctrl-C ends" not in said:
                line = await process.stdout.readline()
                assert line, f"it ended: {said}"
                said += line.decode()
        yield process, said
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.ears
async def test_a_caller_is_greeted_over_twilio_and_ctrl_c_ends_the_call_and_everything() -> None:
    words = ("--config", str(SUPPORT_BOT), "--public-url", "http://phone.test", "--audiosocket", "0")
    async with the_phone(*words, SPARKVOICE_TWILIO_AUTH_TOKEN=SECRET) as (process, said):
        assert "Twilio calls POST http://phone.test/twilio/voice" in said
        assert "Telnyx" not in said
        assert re.search(r"Asterisk connects to 127\.0\.0\.1:\d+", said)
        found = re.search(r"listening at (http://127\.0\.0\.1:\d+)", said)
        assert found
        manners = MANNERS["twilio"]
        signed = manners.headers("http://phone.test/twilio/voice", manners.form)
        async with aiohttp.ClientSession() as http:
            place = Office(found[1], manners, "twilio", http)
            async with http.post(f"{found[1]}/telnyx/voice", data=manners.form) as response:
                assert response.status == 403
                assert "SPARKVOICE_TELNYX_PUBLIC_KEY is not set" in await response.text()
            status, text = await place.ring(headers=signed)
            assert status == 200, text
            media = re.search(r'url="ws://phone\.test(/twilio/media)"', text)
            token = re.search(r'value="(\w+)"', text)
            assert media, text
            assert token, text
            async with place.streamed(f"{found[1]}{media[1]}", token[1]) as far:
                async with asyncio.timeout(20):
                    while not any(level_dbfs(block) > -45 for block in far.played):
                        await asyncio.sleep(0.02)
                async with http.get(f"{found[1]}/metrics") as response:
                    assert response.status == 401  # the world comes by loopback, through the proxy
                children = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(far.closed.wait(), 10)
                assert far.breaches == []
            async with asyncio.timeout(10):
                assert await process.wait() == 0
            _, left = psutil.wait_procs(children, timeout=3)
            assert left == []


@pytest.mark.parametrize(
    ("words", "environ", "complaint"),
    [
        ([], {}, "nobody can call: set SPARKVOICE_TWILIO_AUTH_TOKEN or .*--audiosocket PORT"),
        ([], {"SPARKVOICE_TWILIO_AUTH_TOKEN": "x"}, "phone.public_url is not set"),
        (["--unsigned", "--host", "0.0.0.0"], {}, "phone.unsigned is for loopback hosts"),
        (["--public-url", "phone.example.org"], {}, "phone.public_url.* should be like https://phone.ex"),
        (["--public-url", "https://x.org/bot"], {}, "should be like https://.*, without a path"),
        (
            ["--unsigned", "--port", "0", "--audiosocket", "TAKEN"],
            {},
            r"cannot listen on port \d+ .* with --audiosocket",
        ),
        (
            ["--port", "0", "--audiosocket", "0", "--host", "0.0.0.0"],
            {},
            r"in phone\.asterisks",
        ),
    ],
)
def test_open_doors_and_no_doors_are_one_line_that_says_what_to_do(
    words: list[str], environ: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("SPARKVOICE_"):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [str(taken.getsockname()[1]) if word == "TAKEN" else word for word in words]
        with pytest.raises(ConfigError, match=complaint):  # before an engine or a recogniser is loaded
            main(words)


def test_a_public_address_may_be_pasted_with_its_slash() -> None:
    told = load_settings(phone={"public_url": "https://phone.example.org/"}, environ={})
    assert told.phone.public_url == "https://phone.example.org"


def test_the_bundled_file_shows_every_phone_setting_and_holds_exactly_the_defaults() -> None:
    assert read_config().part("phone").data.keys() == PhoneSettings.model_fields.keys()
    assert load_settings(environ={}).phone == PhoneSettings()
    assert load_settings(SUPPORT_BOT, environ={}).phone.max_calls == 8
    assert (bundled("configs") / "support-bot.yaml").is_file()


def test_secrets_come_by_the_environment_and_are_not_shown() -> None:
    environ = {
        "SPARKVOICE_TWILIO_AUTH_TOKEN": "SECRET-1",
        "SPARKVOICE_TELNYX_PUBLIC_KEY": "a2V5",
        "SPARKVOICE_TELNYX_API_KEY": "SECRET-2",
        "SPARKVOICE_PLIVO_AUTH_ID": "MA1",
        "SPARKVOICE_PLIVO_AUTH_TOKEN": "SECRET-3",
    }
    phone = load_settings(environ=environ).phone
    assert [carrier.missing for carrier in carriers(phone).values()] == [None, None, None]
    assert "SECRET" not in repr(phone)
    nobody = carriers(load_settings(environ={}).phone)
    assert [carrier.missing for carrier in nobody.values()] == [
        "SPARKVOICE_TWILIO_AUTH_TOKEN",
        "SPARKVOICE_TELNYX_PUBLIC_KEY",
        "SPARKVOICE_PLIVO_AUTH_TOKEN",
    ]


def test_only_doors_that_open_are_printed() -> None:
    phone = load_settings(environ={"SPARKVOICE_PLIVO_AUTH_TOKEN": "x"}).phone
    lines = ways_in(phone, 8090, None, carriers(phone), PhoneDoors("https://phone.example.org"))
    assert lines == [
        "Sparkvoice: Plivo calls POST https://phone.example.org/plivo/voice",
        "Sparkvoice: listening at http://127.0.0.1:8090, at most 8 calls (Ctrl-C ends)",
    ]
    nobody = load_settings(environ={}, phone={"public_url": "https://phone.example.org"}).phone
    hint = ways_in(nobody, 8090, 9092, carriers(nobody), PhoneDoors(nobody.public_url))[0]
    assert hint.startswith("Sparkvoice: no carrier can call: set SPARKVOICE_TWILIO_AUTH_TOKEN or ")
    everyone = ways_in(phone, 8090, 9092, carriers(phone), PhoneDoors(unsigned=True))
    assert [line.split()[1] for line in everyone] == ["Twilio", "Telnyx", "Plivo", "Asterisk", "listening"]


def test_what_cannot_work_is_said_at_the_start() -> None:
    told = {"public_url": "http://phone.example.org", "desk": {}}
    phone = load_settings(environ={"SPARKVOICE_TWILIO_AUTH_TOKEN": "x"}, phone=told).phone
    lines = ways_in(phone, 8090, None, carriers(phone), PhoneDoors(phone.public_url))
    assert any("https addresses only" in line for line in lines)
    assert any("phone.desk.hand_over.to" in line for line in lines)
