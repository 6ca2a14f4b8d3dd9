"""ToneEngine: one sine a character, for tests and load tests, and the engine to copy when writing one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np

from tts_plugin.audio import AudioFrame, Pcm, to_int16
from tts_plugin.config import EngineSettings
from tts_plugin.engine import Engine, Segment, Turn

_LEVEL = 0.3  # of full scale
_LOWEST_HZ = 200.0
_STEP_HZ = 15.0  # between neighbouring characters; 64 of them, so every tone lies under 1200 Hz


class ToneEngine:
    """Deterministic, dependency-free, about a thousand times real time; reads any script."""

    languages: frozenset[str] = frozenset()

    def __init__(self, rate: int = 24000, seconds_per_char: float = 0.06) -> None:
        self.rate = rate
        self._seconds_per_char = seconds_per_char

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        at = 0
        samples = round(self._seconds_per_char / turn.pace * self.rate)
        async for segment in segments:
            for index, char in enumerate(segment.text):
                pcm = tone(char, samples, self.rate)
                yield AudioFrame(pcm, self.rate, at, segment.index, index == len(segment.text) - 1)
                at += len(pcm)
                await asyncio.sleep(0)  # a long text must not hold the event loop

    async def warm_up(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to free."""


def tone(char: str, samples: int, rate: int) -> Pcm:
    """The sound of one character: a sine under a half-sine envelope; a space is silence."""
    if char.isspace():
        return np.zeros(samples, dtype=np.int16)
    hz = _LOWEST_HZ + _STEP_HZ * (ord(char) % 64)
    phase = np.arange(samples) / samples
    wave = _LEVEL * np.sin(np.pi * phase) * np.sin(2 * np.pi * hz * np.arange(samples) / rate)
    return to_int16(wave)


def build(settings: EngineSettings) -> Engine:
    return ToneEngine(settings.tone.rate, settings.tone.seconds_per_char)
