"""Hearing: what somebody notices who hears the first frame of a turn at once: its onset, and its gaps."""

from __future__ import annotations

from tts_plugin.audio import AudioFrame, first_audible
from tts_plugin.playing import Playing
from tts_plugin.timing import Clock, Timeline


class Hearing:
    """Follows the frames of one turn as they are handed out, and notes in its timeline what is noticed.

    A gap is an underrun only if there was text to speak when the audio ran out: a language model that
    pauses, and a reader that does not read, are not the engine's fault.
    """

    def __init__(self, timeline: Timeline, clock: Clock) -> None:
        self._timeline = timeline
        self._clock = clock
        self._playing = Playing(clock)
        self._segment = -1
        self._asked_s: list[float] = []  # by segment
        timeline.underruns = 0

    def asked(self) -> None:
        """The engine has taken up the next segment."""
        self._asked_s.append(self._clock())

    def frame(self, frame: AudioFrame) -> None:
        """It is handed out now."""
        now_s, dry_at_s = self._clock(), self._playing.dry_at_s
        # within a segment there is always more to say
        owed_s = self._asked_s[frame.segment] if frame.segment != self._segment else 0.0
        if dry_at_s is not None and now_s > dry_at_s >= owed_s:
            self._timeline.underruns = (self._timeline.underruns or 0) + 1
            self._timeline.dry_s += now_s - dry_at_s
        self._segment = frame.segment
        if self._timeline.onset_s is None and (at := first_audible(frame.pcm, frame.rate)) is not None:
            begins_s = now_s if dry_at_s is None else max(now_s, dry_at_s)
            self._timeline.onset_s = begins_s + at / frame.rate
        self._playing.add(frame.seconds)

    def held_up(self, seconds: float) -> None:
        """The reader took nothing for so long, so its listener has not played on either."""
        self._playing.hold(seconds)
