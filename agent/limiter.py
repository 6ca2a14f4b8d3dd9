"""Limiter: keeps a stream's peaks under a ceiling, without delay and so without a tail."""

from __future__ import annotations

import numpy as np

from tts_plugin.audio import Pcm, to_float32, to_int16

TELEPHONE_DBFS = -3.0  # above it the converters on a telephone's way begin to clip
RELEASE_DB_PER_S = 60.0  # back within the next syllable; faster would rattle at the pitch


class Limiter:
    """Mono int16 at `rate` Hz in and out, no sample over `ceiling_dbfs`; quieter streams are not touched.

    The gain falls at the very sample that needs it and rises slowly, so only the first peak of a loud
    passage is flattened. It carries that gain and no audio: as many samples out as in.
    """

    def __init__(self, rate: int, ceiling_dbfs: float = TELEPHONE_DBFS) -> None:
        self._ceiling_dbfs = ceiling_dbfs
        self._release_db = RELEASE_DB_PER_S / rate
        self._reduction_db = 0.0  # at the last sample

    def push(self, pcm: Pcm) -> Pcm:
        if len(pcm) == 0:
            return pcm
        wave = to_float32(pcm)
        needed_db = 20 * np.log10(np.maximum(np.abs(wave.astype(np.float64)), 1e-6)) - self._ceiling_dbfs
        if self._reduction_db <= 0.0 and needed_db.max() <= 0.0:
            return pcm
        # max over the past of (needed then - what was released since)
        released_db = self._release_db * np.arange(1, len(wave) + 1)
        held_db = np.maximum.accumulate(np.concatenate(([self._reduction_db], needed_db + released_db)))[1:]
        reduction_db = np.maximum(held_db - released_db, 0.0)
        self._reduction_db = float(reduction_db[-1])
        # a thousandth less, so that rounding stays under the ceiling
        return to_int16(wave * 10 ** (-reduction_db / 20) * 0.9999)
