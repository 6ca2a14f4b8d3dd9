"""Timeline: when the things that matter happened in one utterance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Clock = Callable[[], float]
Note = Callable[[str], None]  # told the name of a stage as it ends, from any thread


def unnoted(stage: str) -> None:
    """The Note of somebody who does not want to know."""


@dataclass(slots=True)
class Timeline:
    """Times of one utterance in seconds of `clock` (monotonic), None until they happen.

    `first_text_s` is the origin of every latency reported here. stages_s: when each stage of making the
    first frame ended, in order.
    """

    clock: Clock = field(default=time.monotonic, repr=False)
    first_text_s: float | None = None
    first_segment_s: float | None = None
    first_frame_s: float | None = None
    ended_s: float | None = None
    audio_s: float = 0.0
    segments: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)

    def mark(self, event: str) -> None:
        """Note the time of `event` ("first_text", "first_segment", "first_frame", "ended"), once."""
        name = f"{event}_s"
        if getattr(self, name) is None:
            setattr(self, name, self.clock())

    def stage(self, name: str) -> None:
        """A Note: a stage of making the first frame has ended; what comes again or later is not noted."""
        if self.first_frame_s is None and name not in self.stages_s:
            self.stages_s[name] = self.clock()

    def report(self) -> dict[str, Any]:
        """The timeline as JSON: milliseconds since the first text, seconds of audio, real-time factor."""
        wall_s = _between(self.first_text_s, self.ended_s)
        return {
            "first_segment_ms": _ms(self.first_text_s, self.first_segment_s),
            "first_frame_ms": _ms(self.first_text_s, self.first_frame_s),
            "stages_ms": self._stages_ms(),
            "total_ms": _ms(self.first_text_s, self.ended_s),
            "audio_s": round(self.audio_s, 4),
            "segments": self.segments,
            "rtf": round(wall_s / self.audio_s, 4) if wall_s is not None and self.audio_s else None,
        }

    def _stages_ms(self) -> dict[str, float | None]:
        """How long each took; together, the time from the first segment to the first frame."""
        starts = [self.first_segment_s, *self.stages_s.values()]
        return {
            name: _ms(start, end) for start, (name, end) in zip(starts, self.stages_s.items(), strict=False)
        }


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    gap_s = _between(start_s, end_s)
    return None if gap_s is None else round(gap_s * 1000, 2)
