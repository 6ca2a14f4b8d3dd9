"""Listener: somebody who plays a stream on a clock that does not wait, and notices when it runs dry."""

from __future__ import annotations

from tts_plugin.audio import AudioFrame, first_audible

_SLACK_S = 0.001  # a frame that is later by no more is not late: the clock of a sound card is no finer


class Listener:
    """Told of each frame with the time of its arrival, it says what was heard when. No clock of its own.

    buffer_s: audio that it waits for before it begins to play. first_s: when the first frame came.
    onset_s: when the first sound that can be heard was heard. underruns: how often it ran dry, for dry_s
    altogether.
    """

    def __init__(self, buffer_s: float) -> None:
        self._buffer_s = buffer_s
        self._come_s = 0.0  # seconds of audio so far
        self._audible_s: float | None = None  # where in the audio
        self._dry_at_s: float | None = None  # None: it has not begun to play
        self.first_s: float | None = None
        self.onset_s: float | None = None
        self.underruns = 0
        self.dry_s = 0.0

    @property
    def audio_s(self) -> float:
        return self._come_s

    @property
    def over_at_s(self) -> float | None:
        """When it has heard all that came; None while it still waits to begin."""
        return self._dry_at_s

    def frame(self, frame: AudioFrame, at_s: float) -> None:
        """It arrives now."""
        self.first_s = at_s if self.first_s is None else self.first_s
        if self._audible_s is None and (sample := first_audible(frame.pcm, frame.rate)) is not None:
            self._audible_s = self._come_s + sample / frame.rate
        self._come_s += frame.seconds
        if self._dry_at_s is not None:
            late_s = at_s - self._dry_at_s
            if late_s > _SLACK_S:
                self.underruns += 1
                self.dry_s += late_s
                self._dry_at_s = at_s
            self._dry_at_s += frame.seconds
            self._hear()
        elif self._come_s >= self._buffer_s:
            self._play(at_s)

    def end(self, at_s: float) -> None:
        """No more comes; what waits is played."""
        if self._dry_at_s is None and self._come_s:
            self._play(at_s)

    def leave(self, at_s: float) -> None:
        """It is called away while more should have come: silence until now counts."""
        if self._dry_at_s is not None and at_s - self._dry_at_s > _SLACK_S:
            self.underruns += 1
            self.dry_s += at_s - self._dry_at_s

    def _play(self, at_s: float) -> None:
        self._dry_at_s = at_s + self._come_s
        self._hear()

    def _hear(self) -> None:
        if self.onset_s is None and self._audible_s is not None and self._dry_at_s is not None:
            self.onset_s = self._dry_at_s - (self._come_s - self._audible_s)
