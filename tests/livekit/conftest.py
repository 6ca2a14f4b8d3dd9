"""Fixtures: the plugin over an engine, in this process and behind a real engine server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing

import pytest

from tests.engine_server import running
from tests.livekit.engines import BookedEngine
from tts_plugin.adapters.livekit import TTS
from tts_plugin.audio import AudioFrame
from tts_plugin.config import bundled
from tts_plugin.engine import ENGINES, Engine, Segment, Turn
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.voices import VoiceRegistry

PluginOver = Callable[..., Awaitable[TTS]]


@pytest.fixture(scope="session")
def voices() -> VoiceRegistry:
    return VoiceRegistry([], ENGINES, bundled=bundled("voices"))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "VOICE", "VOICES"):
        monkeypatch.delenv(f"SPARKVOICE_{name}", raising=False)


@pytest.fixture(params=["in process", "over a server"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class EngineServer:
    """A real engine server in a thread, shared by the tests, because it takes 0.3 s to come and go.

    Each test `use`s its own engine, which then speaks for every voice.
    """

    def __init__(self, voices: VoiceRegistry) -> None:
        self.port = 0
        self.use(ToneEngine())
        self._voices = voices
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engine server")

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(10.0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def use(self, engine: Engine) -> None:
        self._engine = engine
        self.rate, self.languages = engine.rate, engine.languages

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        async with aclosing(self._engine.speak(turn, segments)) as frames:
            async for frame in frames:
                yield frame

    async def warm_up(self) -> None:
        """Each test's engine is as it is."""

    async def aclose(self) -> None:
        """They belong to the tests."""

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with running(registry=self._voices, build=lambda _: self) as self.port:
            self._listening.set()
            await self._stop.wait()


@pytest.fixture(scope="session")
def engine_server(voices: VoiceRegistry) -> Iterator[EngineServer]:
    server = EngineServer(voices)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def plugin_over(
    voices: VoiceRegistry, where: str, request: pytest.FixtureRequest
) -> AsyncIterator[PluginOver]:
    """Makes a TTS whose turns an engine object speaks; over a server the last one made speaks for all."""
    async with AsyncExitStack() as stack:

        async def make(
            engine: Engine, *, voice: str | None = "tone", rate: int = 24000, seed: int | None = 7
        ) -> TTS:
            if where == "in process":
                plugin = TTS(engine=engine, voices=voices, voice=voice, rate=rate, seed=seed)
            else:
                server: EngineServer = request.getfixturevalue("engine_server")
                server.use(engine)
                plugin = TTS(url=f"http://127.0.0.1:{server.port}", voice=voice, rate=rate, seed=seed)
            stack.push_async_callback(plugin.aclose)
            return plugin

        yield make


@pytest.fixture
def engine() -> BookedEngine:
    return BookedEngine()


@pytest.fixture
async def plugin(plugin_over: PluginOver, engine: BookedEngine) -> TTS:
    return await plugin_over(engine)
