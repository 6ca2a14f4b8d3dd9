"""Backoff: when a server that was too busy may be asked again."""

from __future__ import annotations

import asyncio
import time

from tts_plugin.errors import Overloaded, TTSError
from tts_plugin.timing import Clock


class Backoff:
    """Follows the attempts at one turn. most_s: it keeps nobody waiting for longer than that.

    A framework tries again when it likes; LiveKit after 0.1 s and then every 2 s. What the server said is
    waited for at the beginning of the next attempt, so the last one's error is not told later.
    """

    def __init__(self, most_s: float, clock: Clock = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._not_before_s = 0.0

    def note(self, error: TTSError) -> None:
        """An attempt failed."""
        if isinstance(error, Overloaded) and error.retry_after_s is not None:
            self._not_before_s = self._clock() + min(error.retry_after_s, self._most_s)

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt may begin."""
        return max(0.0, self._not_before_s - self._clock())

    async def wait(self) -> None:
        if self.left_s > 0:
            await asyncio.sleep(self.left_s)
