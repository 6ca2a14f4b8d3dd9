"""LastLeg: the transport's own sample rate, with next to no delay.

libswresample's filter is short: 24 -> 48 kHz holds back 0.7 ms where soxr's LQ holds back 20 and its HQ 38,
is flat to 0.85 of Nyquist and leaves images there at -52 dB (24 -> 8 kHz: 2 ms, aliases under -43 dB at
4.4 kHz and none above 5.5). The engine server, which has the time, uses soxr.
"""

from __future__ import annotations

import av
import numpy as np

from tts_plugin.audio import Pcm


class LastLeg:
    """Mono int16 at `rate_in` Hz in, at `rate_out` Hz out, state carried; one object is one stream.

    Equal rates pass through. `flush()` ends it; after a cancel take a new one.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._rate_in = rate_in
        self._swr = (
            None if rate_in == rate_out else av.AudioResampler(format="s16", layout="mono", rate=rate_out)
        )

    def push(self, pcm: Pcm) -> Pcm:
        """Give samples, get those that are ready."""
        if self._swr is None or not len(pcm):
            return pcm
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm)[None], format="s16", layout="mono")
        frame.sample_rate = self._rate_in
        return _joined(self._swr.resample(frame))

    def flush(self) -> Pcm:
        """The tail. The stream is over; push no more."""
        return _joined([] if self._swr is None else self._swr.resample(None))


def _joined(frames: list[av.AudioFrame]) -> Pcm:
    if not frames:
        return np.zeros(0, dtype=np.int16)
    joined: Pcm = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    return joined
