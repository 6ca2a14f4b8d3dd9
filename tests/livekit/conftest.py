"""Fixtures: the plugin over an engine of this process, closed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from tests.livekit.engines import BookedEngine
from tts_plugin.adapters.livekit import TTS
from tts_plugin.config import bundled
from tts_plugin.engine import ENGINES, Engine
from tts_plugin.voices import VoiceRegistry

PluginOver = Callable[..., TTS]


@pytest.fixture(scope="session")
def voices() -> VoiceRegistry:
    return VoiceRegistry([], ENGINES, bundled=bundled("voices"))


@pytest.fixture
async def plugin_over(voices: VoiceRegistry) -> AsyncIterator[PluginOver]:
    """Makes a TTS over an engine object."""
    async with AsyncExitStack() as stack:

        def make(engine: Engine, *, voice: str | None = "tone", rate: int = 24000, seed: int = 7) -> TTS:
            plugin = TTS(engine=engine, voices=voices, voice=voice, rate=rate, seed=seed)
            stack.push_async_callback(plugin.aclose)
            return plugin

        yield make


@pytest.fixture
def engine() -> BookedEngine:
    return BookedEngine()


@pytest.fixture
def plugin(plugin_over: PluginOver, engine: BookedEngine) -> TTS:
    return plugin_over(engine)
