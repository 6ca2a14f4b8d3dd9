"""Chunks: how other Spark-TTS servers cut the tokens of an utterance; for comparison, nothing speaks so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """Tokens of the first chunk, growth of the next ones up to `most`, and how many two of them share, over
    which they are cross-faded. Each is decoded without what is around it."""

    first: int
    growth: float
    most: int
    overlap: int


CROSS_FADED = ChunkPolicy(first=50, growth=2.0, most=400, overlap=5)  # 1 s, then 2, 4, 8; 0.1 s shared


class Chunker:
    """Tokens come, chunks (start, stop) go; each begins with the last one's end."""

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._start = 0
        self._size = policy.first
        self._come = 0

    def push(self, tokens: int) -> Iterator[tuple[int, int]]:
        """So many more have come."""
        self._come += tokens
        while self._start + self._size <= self._come:
            stop = self._start + self._size
            yield self._start, stop
            self._start = stop - self._policy.overlap
            self._size = min(self._policy.most, round(self._size * self._policy.growth))

    def flush(self) -> tuple[int, int]:
        """The last one; no more than what it shares with the one before, if that took all there was."""
        return self._start, self._come


class CrossFader:
    """Waves of chunks in, waves to play out. overlap: in samples."""

    def __init__(self, overlap: int) -> None:
        self._ramp = np.linspace(0.0, 1.0, overlap)
        self._held: NDArray[np.float64] | None = None  # the end of the last chunk

    def push(self, wave: NDArray[np.float64], *, is_last: bool) -> NDArray[np.float64]:
        fade = len(self._ramp)
        wave = wave.copy()
        if self._held is not None:
            wave[:fade] = wave[:fade] * self._ramp + self._held * (1 - self._ramp)
        if is_last or not fade:
            return wave
        self._held = wave[-fade:].copy()
        return wave[:-fade]
