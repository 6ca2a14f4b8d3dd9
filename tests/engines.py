"""Small real engines for tests: they count who is inside, and misbehave on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Segment, Turn
from tts_plugin.voices import Voice

RATE = 16000
VOICE = Voice(id="probe", engine="probe", language="en-US", licence="Apache-2.0")


def turn(seed: int | None = 1) -> Turn:
    return Turn(voice=VOICE, seed=seed)


@dataclass
class ProbeEngine:
    """Speaks a constant of 0.1 s a character; knows what is going on inside.

    wait_s: before every frame. fail_at: raises `error` instead of that frame.
    """

    rate: int = RATE
    languages: frozenset[str] = frozenset({"en"})
    wait_s: float = 0.0
    fail_at: int | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("the engine broke"))
    active: int = 0
    started: int = 0
    texts: list[str] = field(default_factory=list)
    frames: int = 0

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        self.active += 1
        self.started += 1
        at = 0
        try:
            async for segment in segments:
                self.texts.append(segment.text)
                for index in range(len(segment.text)):
                    if self.frames == self.fail_at:
                        raise self.error
                    await asyncio.sleep(self.wait_s)
                    pcm = np.full(self.rate // 10, 1000 + segment.index, dtype=np.int16)
                    self.frames += 1
                    yield AudioFrame(pcm, self.rate, at, segment.index, index == len(segment.text) - 1)
                    at += len(pcm)
        finally:
            self.active -= 1

    async def warm_up(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
