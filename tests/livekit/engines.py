"""Engines for these tests: real ones that keep books, take their time, fail, or do not let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Segment, Turn
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.errors import Overloaded


class BookedEngine:
    """ToneEngine with books: what it was asked to say, and how each of its turns ended.

    first_s: before the first frame of a turn. pace: seconds it takes for a second of audio.
    capacity: turns at once, more are refused.
    """

    languages: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        rate: int = 24000,
        seconds_per_char: float = 0.02,
        first_s: float = 0.0,
        pace: float = 0.0,
        capacity: int | None = None,
    ) -> None:
        self.rate = rate
        self._tone = ToneEngine(rate, seconds_per_char)
        self._first_s = first_s
        self._pace = pace
        self._capacity = capacity
        self.texts: list[str] = []
        self.turns: list[Turn] = []
        self.started = self.finished = self.cancelled = self.active = 0
        self.samples = 0
        self.cancelled_s = 0.0
        self.warmed = 0

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        if self._capacity is not None and self.active >= self._capacity:
            raise Overloaded(f"{self.active} turns are all it can do")
        self.started += 1
        self.active += 1
        self.turns.append(turn)
        first = True
        try:
            async with aclosing(self._tone.speak(turn, self._noted(segments))) as frames:
                async for frame in frames:
                    await asyncio.sleep((self._first_s if first else 0.0) + frame.seconds * self._pace)
                    first = False
                    self.samples += len(frame.pcm)
                    yield frame
            self.finished += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            self.cancelled_s = time.monotonic()
            raise
        finally:
            self.active -= 1

    async def _noted(self, segments: AsyncIterator[Segment]) -> AsyncGenerator[Segment]:
        async for segment in segments:
            self.texts.append(segment.text)
            yield segment

    async def warm_up(self) -> None:
        self.warmed += 1

    async def aclose(self) -> None:
        """Nothing to free."""


class FailingEngine(BookedEngine):
    """Raises `errors` one after another, one a turn, after `frames` frames; then it speaks."""

    def __init__(self, *errors: BaseException, frames: int = 0) -> None:
        super().__init__()
        self.errors = list(errors)
        self._frames = frames

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        count = 0
        async with aclosing(super().speak(turn, segments)) as frames:
            async for frame in frames:
                if self.errors and count == self._frames:
                    raise self.errors.pop(0)
                count += 1
                yield frame


class StallingEngine(BookedEngine):
    """Goes silent after `frames` frames, in its first `stalls` turns."""

    def __init__(self, frames: int, stalls: int = 1000) -> None:
        super().__init__()
        self._frames = frames
        self._stalls = stalls

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        count = 0
        async with aclosing(super().speak(turn, segments)) as frames:
            async for frame in frames:
                if count == self._frames and self.started <= self._stalls:
                    await asyncio.Event().wait()
                count += 1
                yield frame


class WedgedEngine(BookedEngine):
    """Speaks, but does not let go when it is cancelled until it is told to."""

    def __init__(self) -> None:
        super().__init__(pace=0.2)
        self.let_go = False

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        try:
            async with aclosing(super().speak(turn, segments)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            while not self.let_go:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.005)
