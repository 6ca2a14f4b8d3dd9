"""Patience: how long an engine has been silent although it owes audio.

A framework's timeout must not count the wait for a language model's next word, nor the wait of an engine
that is as far ahead of its listener as it may be. Sans-IO: times are passed in, so it tests with asserts.
"""

from __future__ import annotations

from collections.abc import Callable

from tts_plugin.audio import AudioFrame
from tts_plugin.spoken import SpokenText
from tts_plugin.text.split import Piece, Splitter

# a resampler may sit on this much of a finished segment until the text ends (35 ms measured at 16 -> 24 kHz)
_HELD_BACK_S = 0.1


class Patience:
    """Follows one turn beside its utterance, local or remote.

    It splits the text once more, as the engine's side does, because over a connection nothing says which
    text has been released to the engine. text: the utterance's own. timeout_s: how long it may be silent.
    lead_s: how far ahead of its listener it may be (None = any).
    """

    def __init__(self, text: SpokenText, timeout_s: float, lead_s: float | None) -> None:
        self._text = text
        self._timeout_s = timeout_s
        self._lead_s = lead_s
        self._splitter = Splitter()
        self._owed_to = 0  # text offset up to which something speakable went to the engine
        self._ended = False
        self._pushed_s = 0.0  # when text last came
        self._since_s = 0.0  # when the present wait began
        self._first_frame_s: float | None = None
        self._received = 0  # samples

    @property
    def released(self) -> bool:
        """Whether anything speakable has gone to the engine."""
        return self._owed_to > 0

    @property
    def received_s(self) -> float:
        """Seconds of audio so far."""
        return self._received / self._text.rate

    def push(self, delta: str, now_s: float) -> None:
        """Text goes to the utterance."""
        self._release(now_s, lambda: self._splitter.push(delta))
        self._pushed_s = now_s

    def flush(self, now_s: float) -> None:
        self._release(now_s, self._splitter.flush)

    def end(self, now_s: float) -> None:
        """No more text: from now on the end of the audio is owed."""
        if not self._ended:
            self._release(now_s, self._splitter.flush)
            if not self._owes():
                self._since_s = now_s
            self._ended = True

    def frame(self, frame: AudioFrame, now_s: float) -> None:
        """Audio came."""
        self._received = frame.stop
        self._since_s = now_s
        if self._first_frame_s is None:
            self._first_frame_s = now_s

    def left_s(self, now_s: float) -> float:
        """Seconds until the engine has been silent for too long; 0 or less if it has.

        While it owes nothing this is the whole timeout, so who waits that long and asks again is never late.
        """
        stalled_s = self._pushed_s + self._splitter.stall_s
        if now_s >= stalled_s and self._splitter.pending:
            self._release(stalled_s, self._splitter.release)
        if not self._owes():
            return self._timeout_s
        since_s = self._since_s
        if self._lead_s is not None and self._first_frame_s is not None:
            since_s = max(since_s, self._first_frame_s + self.received_s - self._lead_s)
        return since_s + self._timeout_s - now_s

    def _release(self, now_s: float, step: Callable[[], list[Piece]]) -> None:
        owed_before = self._owes()
        for piece in step():
            if any(char.isalnum() for char in piece.raw):
                self._owed_to = piece.end
        if not owed_before and self._owes():
            self._since_s = now_s

    def _owes(self) -> bool:
        if self._ended:
            return True
        if not self._text.spans:
            return self._owed_to > 0
        last = self._text.spans[-1]
        if last.sample_to is None or last.text_to < self._owed_to:
            return True
        return self._received < last.sample_to - _HELD_BACK_S * self._text.rate
