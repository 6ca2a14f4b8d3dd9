"""StreamResampler: another sample rate for a stream that arrives in pieces, with state carried across them.

Resampling piece by piece without state clicks at every joint and drifts in length (measured: 49 dB SNR
and a peak error of 411 at 16 -> 48 kHz in 20 ms pieces, against 84 dB with carried state).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import soxr

from tts_plugin.audio import AudioFrame, Pcm, to_float32, to_int16

# soxr's recipes, measured in 20 ms pieces at 16 -> 24 and 24 -> 48 kHz: HQ holds back up to 38 ms and is
# flat to 0.85 of Nyquist; LQ holds back 20 ms and is 7.8 dB down there. Both keep images and aliases
# below -72 dB. QQ (no hold-back) aliases at full level and is not offered.
Quality = Literal["LQ", "HQ"]


class StreamResampler:
    """Mono int16 at `rate_in` Hz in, at `rate_out` Hz out. Equal rates pass through untouched.

    One object is one stream: `flush()` ends it (without that the tail is lost), and after a cancel
    take a new one, or the old words' tail is heard before the new ones.
    """

    def __init__(self, rate_in: int, rate_out: int, quality: Quality = "HQ") -> None:
        self.rate_in = rate_in
        self.rate_out = rate_out
        self._stream = (
            None
            if rate_in == rate_out
            # in float: soxr dithers int16, so the same stream cut elsewhere would differ in its last bits
            else soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality=quality)
        )

    def push(self, pcm: Pcm) -> Pcm:
        """Give samples, get those that are ready (possibly none)."""
        return pcm if self._stream is None else self._chunk(pcm, last=False)

    def flush(self) -> Pcm:
        """The tail still held back. The stream is over; push no more."""
        nothing: Pcm = np.zeros(0, dtype=np.int16)
        return nothing if self._stream is None else self._chunk(nothing, last=True)

    def _chunk(self, pcm: Pcm, *, last: bool) -> Pcm:
        assert self._stream is not None
        return to_int16(self._stream.resample_chunk(to_float32(pcm), last=last))


class FrameResampler:
    """One utterance's frames at another rate: contiguous, cut where segments meet, each naming its own.

    A sample of the engine's at index i comes out at round(i * rate_out / rate_in); lengths add up exactly.
    """

    def __init__(self, rate_in: int, rate_out: int, quality: Quality = "HQ") -> None:
        self._stream = StreamResampler(rate_in, rate_out, quality)
        self._sent = 0
        self._segments: deque[_Open] = deque()  # whose samples are still due, in order

    def push(self, frame: AudioFrame) -> list[AudioFrame]:
        if self._stream.rate_in == self._stream.rate_out:
            return [frame]
        if not self._segments or self._segments[-1].index != frame.segment:
            self._segments.append(_Open(frame.segment))
        if frame.ends_segment:
            self._segments[-1].stop = round(frame.stop * self._stream.rate_out / self._stream.rate_in)
        return self._frames(self._stream.push(frame.pcm))

    def flush(self) -> list[AudioFrame]:
        return self._frames(self._stream.flush())

    def _frames(self, pcm: Pcm) -> list[AudioFrame]:
        frames = []
        while len(pcm):
            segment = self._segments[0]
            count = len(pcm) if segment.stop is None else min(len(pcm), segment.stop - self._sent)
            ends = segment.stop == self._sent + count
            if count:
                rate = self._stream.rate_out
                frames.append(AudioFrame(pcm[:count], rate, self._sent, segment.index, ends))
                self._sent += count
                pcm = pcm[count:]
            if ends and len(self._segments) > 1:
                self._segments.popleft()
            elif ends:
                segment.stop = None  # a sample more than its rounded length
        return frames


@dataclass(slots=True)
class _Open:
    index: int
    stop: int | None = None  # in samples out, once the engine has ended it
