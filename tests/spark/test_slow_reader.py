"""A client that does not read stops its own turn and nobody else's, on the engines that do real work."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect

from tests.engine_server import WAIT_S, Client, client, running, settings_of
from tts_plugin import wire
from tts_plugin.audio import AudioFrame
from tts_plugin.config import SparkSettings
from tts_plugin.engine import ENGINES, Engine, Segment, Turn
from tts_plugin.engines.hibari import HibariEngine
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.engine import SparkEngine
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.voices import VoiceRegistry

SENTENCE = "The ferry leaves at nine, please bring a coat. "
STILL_S = 0.3  # without a frame it counts as stopped


class Counted:
    """An engine, telling how many turns it speaks at this moment and how many samples it made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.speaking = 0
        self.samples = 0

    @property
    def rate(self) -> int:
        return self._engine.rate

    @property
    def languages(self) -> frozenset[str]:
        return self._engine.languages

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        self.speaking += 1
        try:
            async with aclosing(self._engine.speak(turn, segments)) as frames:
                async for frame in frames:
                    self.samples += len(frame.pcm)
                    yield frame
        finally:
            self.speaking -= 1

    async def warm_up(self) -> None:
        await self._engine.warm_up()

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def stopped(self) -> None:
        """Return when it has made something, and makes no more for a while."""
        before = -1
        while self.samples == 0 or self.samples != before:
            before = self.samples
            await asyncio.sleep(STILL_S)


def made(name: str, model: Path) -> Engine:
    if name == "hibari":
        return HibariEngine()
    codes = tuple(int(code) for code in np.random.default_rng(1).integers(0, 8192, 5000))
    checkpoint = dataclasses.replace(Checkpoint.open(model), is_noise=True)
    return SparkEngine(checkpoint, SparkSettings(codec="torch"), ScriptedLM([Script(codes)]))


def voice(name: str, folder: Path) -> VoiceRegistry:
    text = f"id: {name}\nengine: {name}\nlanguage: en\nlicence: CC0-1.0\n"
    if name == "spark":
        text += f"global_tokens: {list(range(32))}\n"
    (folder / f"{name}.yaml").write_text(text)
    return VoiceRegistry([folder], ENGINES)


@asynccontextmanager
async def narrow(port: int) -> AsyncIterator[Client]:
    """A client whose socket holds little, so that the server soon notices that it does not read."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
    url = f"ws://127.0.0.1:{port}{wire.PATH}"
    async with connect(
        url, sock=small, proxy=None, compression=None, max_queue=1, close_timeout=0.2
    ) as open_socket:
        yield Client(open_socket)


@pytest.mark.parametrize("name", ["hibari", "spark"])
async def test_a_reader_that_does_not_read_holds_no_other_back(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    engine = Counted(made(name, tiny_model))
    settings = settings_of(engine={"voice": name, name: {"max_streams": 3}})
    async with running(settings, registry=voice(name, tmp_path), build=lambda _: engine) as port:
        async with narrow(port) as slow:
            await slow.say(1, SENTENCE * 60, lead_s=None)
            async with asyncio.timeout(6 * WAIT_S):
                await engine.stopped()
            async with client(port) as other:
                began_s = time.monotonic()
                for context in (1, 2):
                    await other.say(context, SENTENCE * 4, lead_s=None)
                await other.over(1, 2)
                took_s = time.monotonic() - began_s
                assert all(isinstance(other.of(context).last, wire.Done) for context in (1, 2))
                assert took_s < len(other.of(1).pcm) / engine.rate, "in less time than it sounds"
            assert engine.speaking == 1, "and the slow one still has its place"
