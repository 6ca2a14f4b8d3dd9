"""PlayoutTrack: what a browser hears, a Playout as a WebRTC track."""

from __future__ import annotations

import asyncio
import logging
import time
from fractions import Fraction
from typing import Final

import av
import numpy as np
from aiortc.mediastreams import MediaStreamTrack

from agent.playout import Playout
from tts_plugin.audio import Pcm
from tts_plugin.timing import Clock

RATE: Final = 48_000  # Hz; any other makes aiortc's encoder resample and hold the first frame back
BLOCK: Final = 960  # samples; 40 ms would become two packets of one timestamp
BLOCK_S: Final = BLOCK / RATE
STALL_S = 0.1  # shorter lateness is caught up at once: the browser holds about that much

log = logging.getLogger(__name__)


class PlayoutTrack(MediaStreamTrack):
    """Sends a Playout (48 kHz): exactly 20 ms of mono s16 a frame, paced by `clock`, silence when idle.

    Timestamps strictly increase by whole frames. After a stall of the loop they jump with the clock
    and the playout goes on where it was. `recv` raises nothing, because the sender would end for ever.
    """

    kind = "audio"

    def __init__(self, playout: Playout, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        if playout.rate != RATE:
            raise ValueError(f"a WebRTC playout runs at {RATE} Hz, not at {playout.rate}")
        self._playout = playout
        self._clock = clock
        self._start_s: float | None = None
        self._pts = 0
        self.stalls = 0

    async def recv(self) -> av.AudioFrame:
        if self._start_s is None:
            self._start_s = self._clock()
        due_s = self._start_s + self._pts / RATE
        await asyncio.sleep(max(0.0, due_s - self._clock()))
        # after the sleep: that is where a blocked loop shows
        late_s = self._clock() - due_s
        if late_s >= STALL_S:
            self.stalls += 1
            self._pts += int(late_s / BLOCK_S) * BLOCK
        frame = av.AudioFrame.from_ndarray(self._block().reshape(1, BLOCK), format="s16", layout="mono")
        frame.sample_rate = RATE
        frame.time_base = Fraction(1, RATE)
        frame.pts = self._pts
        self._pts += BLOCK
        return frame

    def _block(self) -> Pcm:
        try:
            return self._playout.read(BLOCK)
        except Exception:  # a call's outermost frame
            log.exception("the playout failed; sending silence")
            return np.zeros(BLOCK, dtype=np.int16)
