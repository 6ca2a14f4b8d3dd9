"""LineEar: what the agent hears of a telephone line that cancels no echo. Sans-IO, one per call.

The agent's own voice comes back 10 to 30 dB quieter. What of it is predictable is subtracted; while the rest
is no louder than what is usually left, it is replaced by noise as loud as the line's, so that neither the
detector of speech nor the recogniser hears it. While the agent is silent the line is passed on as it is.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from agent.echo_canceller import REACH_S, EchoCanceller
from agent.echo_guard import EchoGuard
from agent.playout import Playout
from tts_plugin.audio import SILENT_DBFS, Framer, Pcm, level_dbfs, to_float32, to_int16

FRAME_S = 0.02
STILL_DBFS = -66.0  # one step of mu-law is -72: less than this is no echo that could be taken for speech
MARGIN_DB = 8.0  # over what is usually left
ANCHOR_FRAMES = 25  # of 20 ms: the shortest way between sent and heard is taken from these
STRAYED_S = 0.2  # a longer jump between the two is not jitter, and the canceller begins anew
OPEN_NEED, OPEN_OF = 3, 5  # loud frames that open the ear
OPEN_S = 0.24  # it stays open after the last of them: a word's quiet end
FLOOR_S = 3.0  # a line's noise shows in the quietest frames of so long
FLOOR_SHARE = 0.2  # of them
LEAST_FLOOR_DBFS = -70.0
OVER_FLOOR_DB = 5.0  # a caller 10 dB over the noise is 4 to 14 dB over it frame by frame


class NoiseFloor:
    """The level of a line's noise, in dBFS, learnt from its quietest frames; a Guard of the VAD, too: only
    what stands out of the noise may be speech."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=round(FLOOR_S / FRAME_S))

    @property
    def dbfs(self) -> float:
        """-70 at least."""
        if not self._levels:
            return LEAST_FLOOR_DBFS
        quiet = sorted(self._levels)[int(FLOOR_SHARE * len(self._levels))]
        return max(LEAST_FLOOR_DBFS, quiet)

    def note(self, dbfs: float) -> None:
        """Learn from a frame's level; digital silence is no noise."""
        if dbfs > SILENT_DBFS:
            self._levels.append(dbfs)

    def allows(self, frame: Pcm) -> bool:
        level = level_dbfs(frame)
        self.note(level)
        return level > self.dbfs + OVER_FLOOR_DB


class LineEar:
    """Mono int16 as it comes in at the playout's rate, the same length out within 20 ms."""

    def __init__(self, playout: Playout) -> None:
        self._playout = playout
        self._block = round(FRAME_S * playout.rate)
        self._framer = Framer(self._block)
        self._canceller = self._new_canceller()
        self._guard = EchoGuard(playout, margin_db=MARGIN_DB)
        self._floor = NoiseFloor()
        self._heard = 0  # samples
        self._ahead: int | None = None  # samples sent minus samples heard, at the least
        self._anchoring = ANCHOR_FRAMES
        self._loud: deque[bool] = deque(maxlen=OPEN_OF)
        self._open_frames = 0
        self._noise = np.random.default_rng(0)  # of no consequence, but tests repeat

    def push(self, pcm: Pcm) -> Pcm:
        """What the agent is to hear."""
        frames = [self._hear(frame) for frame in self._framer.push(pcm)]
        return np.concatenate(frames) if frames else np.zeros(0, dtype=np.int16)

    def _new_canceller(self) -> EchoCanceller:
        return EchoCanceller(self._block, round(REACH_S / FRAME_S))

    def _hear(self, frame: Pcm) -> Pcm:
        self._heard += self._block
        self._anchor(self._playout.position - self._heard)
        assert self._ahead is not None
        sent = self._playout.sent(self._heard + self._ahead, self._block)
        if level_dbfs(frame) < STILL_DBFS:  # as most lines are most of the time
            self._canceller.note(to_float32(sent))
            left = frame
        else:
            left = to_int16(self._canceller.push(to_float32(frame), to_float32(sent)))
        loud = self._guard.allows(left)
        silent = self._guard.idle
        if silent:
            self._floor.note(level_dbfs(frame))
        self._loud.append(loud and not silent)
        if sum(self._loud) >= OPEN_NEED:
            self._open_frames = round(OPEN_S / FRAME_S)
        if silent or loud or self._open_frames > 0:
            self._open_frames = max(0, self._open_frames - 1)
            return left
        level = 10 ** (self._floor.dbfs / 20)
        return to_int16(self._noise.standard_normal(self._block) * level)

    def _anchor(self, ahead: int) -> None:
        """Note how far sending is ahead of hearing; jitter only adds to it."""
        if self._ahead is None or abs(ahead - self._ahead) > STRAYED_S * self._playout.rate:
            self._ahead = ahead
            self._anchoring = ANCHOR_FRAMES
            self._canceller = self._new_canceller()
        elif self._anchoring > 0:
            self._anchoring -= 1
            if ahead < self._ahead:
                self._ahead = ahead
                self._canceller = self._new_canceller()
