"""Fixtures: the plugin over an engine, in this process and behind a real engine server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.engine_server import running
from tests.livekit.engines import BookedEngine
from tts_plugin.adapters.livekit import TTS
from tts_plugin.config import bundled
from tts_plugin.engine import ENGINES, Engine
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


@pytest.fixture
async def plugin_over(voices: VoiceRegistry, where: str) -> AsyncIterator[PluginOver]:
    """Makes a TTS whose turns an engine object speaks."""
    async with AsyncExitStack() as stack:

        async def make(
            engine: Engine, *, voice: str | None = "tone", rate: int = 24000, seed: int | None = 7
        ) -> TTS:
            if where == "in process":
                plugin = TTS(engine=engine, voices=voices, voice=voice, rate=rate, seed=seed)
            else:
                port = await stack.enter_async_context(running(registry=voices, build=lambda _: engine))
                plugin = TTS(url=f"http://127.0.0.1:{port}", voice=voice, rate=rate, seed=seed)
            stack.push_async_callback(plugin.aclose)
            return plugin

        yield make


@pytest.fixture
def engine() -> BookedEngine:
    return BookedEngine()


@pytest.fixture
async def plugin(plugin_over: PluginOver, engine: BookedEngine) -> TTS:
    return await plugin_over(engine)
