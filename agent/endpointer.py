"""Endpointer: cuts a stream of samples into utterances by the silence around them (no clock, no I/O)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import webrtcvad

from tts_plugin.audio import Framer, Pcm, bytes_of, level_dbfs

RATE = 16_000  # Hz
FRAME = 320  # samples, 20 ms: webrtcvad takes 10, 20 or 30
FRAME_S = FRAME / RATE

ONSET = (3, 5)  # voiced frames of the last so many that open an utterance: 60 ms of speech
SUSTAIN = (2, 3)  # ... that keep it going, so that a stray frame does not undo a pause
LEAD_FRAMES = 15  # kept from before the onset: soft first consonants
FLOOR_DBFS = -50.0  # quieter is silence, whatever webrtcvad says
BELOW_PEAK_DB = 30.0  # so is what lies this far below the utterance's loudest frame (a noisy line)
SHORTEST_VOICED_S = 0.12  # less is a click, a key or a breath: no word is that short
CUT_SEARCH_S = 10.0  # an utterance that is too long is cut at the quietest place of its last seconds
CUT_FRAMES = 10  # ... judged over 200 ms


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of speech.

    pcm: 16 kHz. start: index of pcm[0] in the stream. voiced_s: seconds of voice in it. number: of its
    utterance in the stream.
    """

    pcm: Pcm
    start: int
    voiced_s: float
    number: int

    @property
    def stop(self) -> int:
        return self.start + len(self.pcm)


@dataclass(frozen=True, slots=True)
class Paused:
    """The speaker may have finished: `piece` is what was said if nothing follows."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Resumed:
    """The speaker goes on, so the last Paused was none."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The utterance is over; the very `piece` of the last Paused unless it was cut short or flushed."""

    piece: Piece


Event = Paused | Resumed | Ended


@dataclass(frozen=True, slots=True)
class Silences:
    """Seconds of silence after speech that make a pause and that make an end; seconds that are too long.

    Whisper's window is 30 s, and it needs 3 s of emptiness in it: 29.9 s of speech came out as one word.
    """

    pause_s: float = 0.15
    end_s: float = 0.30
    longest_s: float = 25.0

    def __post_init__(self) -> None:
        if not FRAME_S <= self.pause_s <= self.end_s:
            raise ValueError(f"pause_s must lie between {FRAME_S} and end_s, not {self.pause_s}")
        if not CUT_SEARCH_S < self.longest_s <= 27.0:
            raise ValueError(f"longest_s must lie between {CUT_SEARCH_S} and 27, not {self.longest_s}")


class Endpointer:
    """Samples at 16 kHz in any portions in, events out. Time is counted in samples."""

    def __init__(self, silences: Silences | None = None) -> None:
        self._silences = silences or Silences()
        self._vad = webrtcvad.Vad(3)
        self._framer = Framer(FRAME)
        self._frames: list[Pcm] = []  # of the open utterance, else the lead
        self._levels: list[float] = []  # dBFS of each
        self._voices: list[bool] = []  # whether each is voiced
        self._first = 0  # index in the stream of _frames[0], frames
        self._quiet = 0  # frames since its last speech
        self._peak_dbfs = FLOOR_DBFS
        self._paused: Piece | None = None
        self._number = 0
        self.open = False

    @property
    def number(self) -> int:
        """Of the open utterance, or of the next one."""
        return self._number

    @property
    def position(self) -> int:
        """Samples taken in whole frames so far."""
        return (self._first + len(self._frames)) * FRAME

    def push(self, pcm: Pcm) -> list[Event]:
        events: list[Event] = []
        for frame in self._framer.push(pcm):
            events += self._take(frame)
        return events

    def flush(self) -> list[Event]:
        """End the open utterance now; what comes next starts another one."""
        events: list[Event] = []
        for frame in self._framer.flush():
            events += self._take(frame)
        return events + self._end() if self.open else events

    def so_far(self) -> Piece | None:
        """The open utterance up to now while the speaker talks, None in a pause and outside of speech."""
        return self._piece() if self.open and self._paused is None else None

    def _take(self, frame: Pcm) -> list[Event]:
        level = level_dbfs(frame)
        floor = max(FLOOR_DBFS, self._peak_dbfs - BELOW_PEAK_DB) if self.open else FLOOR_DBFS
        voiced = bool(level >= floor) and self._vad.is_speech(bytes_of(frame), RATE)
        self._frames.append(frame)
        self._levels.append(level)
        self._voices.append(voiced)
        if not self.open:
            self._forget(len(self._frames) - LEAD_FRAMES)
            self.open = sum(self._voices[-ONSET[1] :]) >= ONSET[0]
            self._quiet = 0
            self._peak_dbfs = max(self._levels[-ONSET[1] :])
            return []
        if voiced:
            self._peak_dbfs = max(self._peak_dbfs, level)
        return self._speech() if sum(self._voices[-SUSTAIN[1] :]) >= SUSTAIN[0] else self._silence()

    def _speech(self) -> list[Event]:
        self._quiet = 0
        events: list[Event] = []
        if self._paused is not None:
            self._paused = None
            events.append(Resumed())
        if len(self._frames) * FRAME_S >= self._silences.longest_s:
            events.append(self._cut())
        return events

    def _silence(self) -> list[Event]:
        self._quiet += 1
        silent_s = self._quiet * FRAME_S
        if silent_s >= self._silences.end_s - 1e-6:
            return self._end()
        if silent_s >= self._silences.pause_s - 1e-6 and self._paused is None and self._worthy:
            self._paused = self._piece()
            return [Paused(self._paused)]
        return []

    @property
    def _worthy(self) -> bool:
        return sum(self._voices) * FRAME_S >= SHORTEST_VOICED_S - 1e-6

    def _piece(self, frames: int | None = None) -> Piece:
        """The first `frames` frames of the open utterance, None = all."""
        pcm = np.concatenate(self._frames[:frames])
        return Piece(pcm, self._first * FRAME, sum(self._voices[:frames]) * FRAME_S, self._number)

    def _end(self) -> list[Event]:
        events: list[Event] = [Ended(self._paused or self._piece())] if self._worthy else []
        self.open = False
        self._number += 1
        self._paused = None
        # keep the lead of the next utterance, but nothing that this one has spoken
        self._forget(len(self._frames) - min(LEAD_FRAMES, self._quiet))
        return events

    def _cut(self) -> Ended:
        """End the utterance at its quietest recent place; the rest of it is the next one, still open."""
        search = round(CUT_SEARCH_S / FRAME_S)
        levels = np.array(self._levels[-search:])
        smooth = np.convolve(levels, np.ones(CUT_FRAMES) / CUT_FRAMES, mode="valid")
        at = len(self._frames) - len(levels) + int(np.argmin(smooth)) + CUT_FRAMES // 2
        said = self._piece(at)
        self._forget(at)
        self._number += 1
        return Ended(said)

    def _forget(self, frames: int) -> None:
        """Drop the first `frames` frames held."""
        if frames > 0:
            del self._frames[:frames], self._levels[:frames], self._voices[:frames]
            self._first += frames
