"""Pacer: a beat every 20 ms by a monotonic clock, without drift and without bursts."""

from __future__ import annotations

import asyncio
import time

from tts_plugin.timing import Clock

BEAT_S = 0.02
CATCH_UP_S = 0.06  # shorter lateness is made good at once; far ends hold about that much


class Pacer:
    """One per call. Beat n is due n times 20 ms after the first; after a longer stall the beats go on from
    now, and what would have been sent meanwhile is sent later instead of at once."""

    def __init__(self, *, beat_s: float = BEAT_S, clock: Clock = time.monotonic) -> None:
        self.stalls = 0
        self._beat_s = beat_s
        self._clock = clock
        self._due_s: float | None = None

    async def beat(self) -> None:
        """Wait until the next beat is due; the first is now."""
        now_s = self._clock()
        self._due_s = now_s if self._due_s is None else self._due_s + self._beat_s
        await asyncio.sleep(max(0.0, self._due_s - now_s))
        # after the sleep: that is where a blocked loop shows
        late_s = self._clock() - self._due_s
        if late_s > CATCH_UP_S:
            self.stalls += 1
            self._due_s += int(late_s / self._beat_s) * self._beat_s
