"""Playing: how much audio a listener still has who hears the first frame at once."""

from __future__ import annotations

import time

from tts_plugin.timing import Clock


class Playing:
    """Follows one turn. A listener who has run dry waits, and goes on when the next audio comes."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._dry_at_s: float | None = None
        self.underruns = 0

    @property
    def dry_at_s(self) -> float | None:
        """When all that was handed out will have been heard, by the clock; None before the first."""
        return self._dry_at_s

    @property
    def buffered_s(self) -> float | None:
        """Seconds handed out and not heard yet; None before the first."""
        return None if self._dry_at_s is None else max(0.0, self._dry_at_s - self._clock())

    def add(self, seconds: float) -> None:
        """So much audio is handed out now."""
        now_s = self._clock()
        if self._dry_at_s is not None and self._dry_at_s < now_s:
            self.underruns += 1
        self._dry_at_s = max(now_s, self._dry_at_s or now_s) + seconds

    def asked(self) -> None:
        """The next audio is asked for now. A listener who ran dry while the reader did not read, or while
        there was no text to speak, waits for sound since now and no longer."""
        if self._dry_at_s is not None:
            self._dry_at_s = max(self._dry_at_s, self._clock())

    def hold(self, seconds: float) -> None:
        """For so long nothing was played."""
        if self._dry_at_s is not None:
            self._dry_at_s += seconds
