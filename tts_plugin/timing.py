"""Timeline: when the things that matter happened in one utterance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Clock = Callable[[], float]
Note = Callable[[str], None]  # told the name of a stage as it ends, from any thread


Count = Callable[[str, int], None]  # told of so many more of something that an engine counts


def unnoted(stage: str) -> None:
    """The Note of somebody who does not want to know."""


def uncounted(what: str, more: int) -> None:
    """The Count of somebody who does not want to know."""


@dataclass(slots=True)
class Timeline:
    """Times of one utterance in seconds of `clock` (monotonic), None until they happen.

    `first_text_s` is the origin of every latency reported here. stages_s: when each stage of making the
    first frame ended, in order. onset_s: when the first sound that can be heard is heard. underruns: how
    often a listener ran out of audio while there was text to speak (None: nobody looked), for dry_s
    altogether. counts: what the engine counts, such as "tokens".
    """

    clock: Clock = field(default=time.monotonic, repr=False)
    first_text_s: float | None = None
    first_segment_s: float | None = None
    first_frame_s: float | None = None
    onset_s: float | None = None
    ended_s: float | None = None
    audio_s: float = 0.0
    segments: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)
    underruns: int | None = None
    dry_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def mark(self, event: str) -> None:
        """Note the time of `event` ("first_text", "first_segment", "first_frame", "ended"), once."""
        name = f"{event}_s"
        if getattr(self, name) is None:
            setattr(self, name, self.clock())

    def stage(self, name: str) -> None:
        """A Note: a stage of making the first frame has ended; what comes again or later is not noted."""
        if self.first_frame_s is None and name not in self.stages_s:
            self.stages_s[name] = self.clock()

    def count(self, what: str, more: int) -> None:
        """A Count."""
        self.counts[what] = self.counts.get(what, 0) + more

    def took_s(self) -> dict[str, float]:
        """Seconds that each stage took; together, the time from the first segment to the first frame."""
        starts = [self.first_segment_s, *self.stages_s.values()]
        pairs = zip(starts, self.stages_s.items(), strict=False)
        return {name: end - start for start, (name, end) in pairs if start is not None}

    def since_text_s(self, at_s: float | None) -> float | None:
        """Seconds from the first text to a time of this timeline."""
        return _between(self.first_text_s, at_s)

    def report(self) -> dict[str, Any]:
        """The timeline as JSON: milliseconds since the first text, seconds of audio, real-time factor."""
        wall_s = _between(self.first_text_s, self.ended_s)
        return {
            "first_segment_ms": _ms(self.first_text_s, self.first_segment_s),
            "first_frame_ms": _ms(self.first_text_s, self.first_frame_s),
            "stages_ms": {name: round(took_s * 1000, 2) for name, took_s in self.took_s().items()},
            "onset_ms": _ms(self.first_text_s, self.onset_s),
            "total_ms": _ms(self.first_text_s, self.ended_s),
            "audio_s": round(self.audio_s, 4),
            "segments": self.segments,
            "underruns": self.underruns,
            "counts": dict(self.counts),
            "rtf": round(wall_s / self.audio_s, 4) if wall_s is not None and self.audio_s else None,
        }


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    gap_s = _between(start_s, end_s)
    return None if gap_s is None else round(gap_s * 1000, 2)
