"""The parts that all calls share, where what they stand on moves while a call lasts."""

import asyncio
import os
import signal
import socket
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.ears import STT
from agent.parts import Parts
from tests.fakes_livekit import ScriptLLM
from tts_plugin import TTS
from tts_plugin.config import load_settings
from tts_plugin.errors import ConfigError
from tts_plugin.link import Address
from tts_plugin.server.local import LocalServer


async def seconds(mouth: TTS) -> float:
    async with mouth.synthesize("Hello there, my friend.") as speech:
        return sum([heard.frame.duration async for heard in speech])


def taken(squatter: socket.socket, port: int | None) -> bool:
    """Whether the port is the squatter's now."""
    try:
        squatter.bind(("127.0.0.1", port))
    except OSError:
        return False
    squatter.listen()
    return True


async def test_a_call_goes_on_speaking_when_the_engine_server_had_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARKVOICE_URL", raising=False)
    config = tmp_path / "tone.yaml"
    config.write_text("engine:\n  voice: tone\n")
    server = LocalServer.shared(config)
    try:
        parts = Parts(STT(None), ScriptLLM([]), load_settings(config), config)
        first = urlsplit((await parts.engine()).url)
        async with aclosing(await parts.make_tts(None)) as mouth:
            assert await seconds(mouth) > 1
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            with socket.socket() as squatter:
                squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                while not taken(squatter, first.port):  # long before the next child listens
                    await asyncio.sleep(0.001)
                assert await seconds(mouth) > 1
                assert urlsplit((await parts.engine()).url).port != first.port
    finally:
        server.close()


def test_who_says_where_the_server_is_says_it_all() -> None:
    async def locate() -> Address:
        return Address("http://127.0.0.1:1", None)

    with pytest.raises(ConfigError, match="locate="):
        TTS(locate=locate, url="http://127.0.0.1:2")
