"""StreamResampler: rate conversion of a stream with the filter's state carried from chunk to chunk."""

from __future__ import annotations

from typing import cast

import numpy as np
import soxr

from tts_plugin.audio import Pcm


class StreamResampler:
    """Chunks at `rate_in` Hz in, chunks at `rate_out` Hz out; equal rates pass through unchanged.

    A filter holds samples back, so `flush` at the end of the utterance returns the rest. After a
    cancel or a flush start a new one.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = (
            None if rate_in == rate_out else soxr.ResampleStream(rate_in, rate_out, 1, dtype="int16")
        )

    def push(self, pcm: Pcm) -> Pcm:
        return pcm if self._stream is None else cast(Pcm, self._stream.resample_chunk(pcm))

    def flush(self) -> Pcm:
        rest: Pcm = np.zeros(0, dtype=np.int16)
        return rest if self._stream is None else cast(Pcm, self._stream.resample_chunk(rest, last=True))
