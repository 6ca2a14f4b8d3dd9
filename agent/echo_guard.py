"""EchoGuard: tells the caller's speech from the agent's own voice coming back through the microphone.

Sans-IO, one per call. It knows only levels: how loud the agent was sent in the last half second, and
how much of that usually comes back (the echo return loss, learnt while the agent speaks). A caller
quieter than the echo plus `margin_db` cannot be told from it this way.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

from tts_plugin.audio import SILENT_DBFS, Pcm, level_dbfs

MARGIN_DB = (
    8.0  # measured from -60 to -30 dBFS of echo: no false start, every barge-in; 6 dB has false starts
)
SENDING_DBFS = -50.0  # a playout quieter than this makes no echo worth guarding against
SETTLE_S = 0.3  # the agent must have spoken this long before a frame shows its echo (path delay)
BLOCK_S = 0.4  # one measurement: long enough to hold a loud syllable
BLOCKS = 9  # the median of these; 3.6 s of agent speech to follow a moved loudspeaker
DEAF_ABOVE_DB = 0.0  # before the first measurement a caller must be this much over the sent level


class Sent(Protocol):
    """What the agent sends; a Playout is one."""

    @property
    def sent_dbfs(self) -> float:
        """The loudest level of the last 0.5 s."""

    @property
    def sounding(self) -> bool:
        """Whether the agent's speech is being handed out now."""


class EchoGuard:
    """Feed every microphone frame; only what is louder than the expected echo may be speech.

    sent: asked at every frame. frame_s: length of a frame in seconds.
    """

    def __init__(self, sent: Sent, *, margin_db: float = MARGIN_DB, frame_s: float = 0.02) -> None:
        self._sent = sent
        self._margin_db = margin_db
        self._frame_s = frame_s
        self._blocks: deque[float] = deque(maxlen=BLOCKS)  # mic peak minus sent peak, dB
        self._sending_s = 0.0  # how long the agent has been sounding
        self._block_s = 0.0
        self._mic_peak = SILENT_DBFS
        self._sent_peak = SILENT_DBFS

    @property
    def return_loss_db(self) -> float | None:
        """How much quieter the agent comes back than it was sent; None until it was measured."""
        return -median(self._blocks) if self._blocks else None

    @property
    def idle(self) -> bool:
        """Nothing is sent now that could come back."""
        return self._sent.sent_dbfs < SENDING_DBFS

    def allows(self, frame: Pcm) -> bool:
        """Whether this microphone frame is too loud to be the agent's echo."""
        sent_dbfs = self._sent.sent_dbfs
        mic_dbfs = level_dbfs(frame)
        if sent_dbfs < SENDING_DBFS or not self._sent.sounding:
            self._sending_s = 0.0
            self._restart()
        elif self._sending_s < SETTLE_S:
            self._sending_s += self._frame_s
        else:
            self._measure(mic_dbfs, sent_dbfs)
        if sent_dbfs < SENDING_DBFS:
            return True
        if self.return_loss_db is None:
            return mic_dbfs > sent_dbfs + DEAF_ABOVE_DB
        return mic_dbfs > sent_dbfs - self.return_loss_db + self._margin_db

    def _measure(self, mic_dbfs: float, sent_dbfs: float) -> None:
        self._mic_peak = max(self._mic_peak, mic_dbfs)
        self._sent_peak = max(self._sent_peak, sent_dbfs)
        self._block_s += self._frame_s
        if self._block_s >= BLOCK_S - self._frame_s / 2:
            self._blocks.append(self._mic_peak - self._sent_peak)
            self._restart()

    def _restart(self) -> None:
        self._block_s = 0.0
        self._mic_peak = self._sent_peak = SILENT_DBFS
