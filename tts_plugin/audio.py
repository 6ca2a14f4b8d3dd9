"""What a sample is: AudioFrame, the only float<->int16 conversion, and the arithmetic on levels.

Audio between the parts of this package is mono int16. Nothing else converts, scales or fades samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]
Wave = NDArray[np.float32]

FULL_SCALE = 32767  # int16 value of float 1.0
SILENT_DBFS = -120.0  # what `level_dbfs` reports for digital silence
AUDIBLE_DBFS = -50.0  # a whisper on the line; breath and the noise of a codec lie below
_AUDIBLE_S = 0.01  # judged over so much at a time


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """A run of samples of one utterance.

    pcm: int16 samples, mono. rate: Hz. start: index of pcm[0] in its utterance, samples at `rate`.
    segment: which Segment of the turn it speaks. ends_segment: the last frame of that segment, so a
    reader knows the segment's true length as soon as the engine does.
    """

    pcm: Pcm
    rate: int
    start: int
    segment: int
    ends_segment: bool = False

    @property
    def stop(self) -> int:
        """Index after the last sample, samples at `rate`."""
        return self.start + len(self.pcm)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate

    def pieces(self, samples: int) -> list[AudioFrame]:
        """Cut into frames of at most `samples`; only the last one keeps `ends_segment`."""
        if len(self.pcm) <= samples:
            return [self]
        cuts = range(0, len(self.pcm), samples)
        return [
            AudioFrame(
                pcm=self.pcm[at : at + samples],
                rate=self.rate,
                start=self.start + at,
                segment=self.segment,
                ends_segment=self.ends_segment and at == cuts[-1],
            )
            for at in cuts
        ]


def to_int16(wave: NDArray[np.floating]) -> Pcm:
    """Float samples in [-1, 1] as int16, rounded; what is louder is clipped, never wrapped."""
    pcm: Pcm = np.clip(np.rint(wave * FULL_SCALE), -FULL_SCALE, FULL_SCALE).astype(np.int16)
    return pcm


def to_float32(pcm: Pcm) -> Wave:
    """int16 samples as float32 in [-1, 1]; the inverse of `to_int16`."""
    return pcm.astype(np.float32) / np.float32(FULL_SCALE)


def samples_of(data: bytes) -> Pcm:
    """Little-endian int16 bytes as samples (a read-only view)."""
    return np.frombuffer(data, dtype="<i2").astype(np.int16, copy=False)


def bytes_of(pcm: Pcm) -> bytes:
    """Samples as little-endian int16 bytes."""
    return pcm.astype("<i2", copy=False).tobytes()


def mixed_down(pcm: Pcm, channels: int) -> Pcm:
    """Interleaved samples of so many channels as mono: their average."""
    if channels == 1:
        return pcm
    mono: Pcm = np.rint(pcm.reshape(-1, channels).mean(axis=1)).astype(np.int16)
    return mono


def silence(seconds: float, rate: int) -> Pcm:
    """`seconds` of zeros at `rate` Hz."""
    return np.zeros(round(seconds * rate), dtype=np.int16)


def level_dbfs(pcm: Pcm) -> float:
    """RMS level in dB relative to full scale; SILENT_DBFS for zeros or no samples."""
    if len(pcm) == 0:
        return SILENT_DBFS
    wave = pcm.astype(np.float64)
    energy = float(np.dot(wave, wave))  # a call asks for a dozen levels every 20 ms
    if energy == 0:
        return SILENT_DBFS
    return max(SILENT_DBFS, 10.0 * math.log10(energy / len(wave) / FULL_SCALE**2))


def first_audible(pcm: Pcm, rate: int) -> int | None:
    """Index of the first sample of the first 10 ms that are louder than AUDIBLE_DBFS; None if none are."""
    window = min(len(pcm), round(_AUDIBLE_S * rate))
    if window == 0:
        return None
    rows = pcm[: len(pcm) // window * window].reshape(-1, window).astype(np.float64)
    power = np.square(rows / FULL_SCALE).mean(axis=1)
    loud = np.flatnonzero(power > 10 ** (AUDIBLE_DBFS / 10))
    return int(loud[0]) * window if loud.size else None


def faded_out(pcm: Pcm, samples: int) -> Pcm:
    """A copy whose last `samples` samples fall linearly to zero, so that a cut does not click."""
    return _ramped(pcm, samples, ending=True)


def faded_in(pcm: Pcm, samples: int) -> Pcm:
    """A copy whose first `samples` samples rise linearly from zero."""
    return _ramped(pcm, samples, ending=False)


def _ramped(pcm: Pcm, samples: int, *, ending: bool) -> Pcm:
    count = min(samples, len(pcm))
    out = pcm.copy()
    if count == 0:
        return out
    ramp = np.arange(1, count + 1) / (count + 1)
    part = slice(len(pcm) - count, None) if ending else slice(0, count)
    out[part] = np.rint(pcm[part] * (ramp[::-1] if ending else ramp)).astype(np.int16)
    return out


def limited(wave: Wave, *, gain_db: float, ceiling_dbfs: float, rate: int, window_s: float = 0.005) -> Wave:
    """Amplify by `gain_db` and hold every sample under `ceiling_dbfs` by a smooth gain, not by clipping.

    The gain at a sample is the smallest that any sample within `window_s` needs, averaged over the
    same window, so it is down before a peak arrives and a peak never sticks out (a look-ahead limiter).
    """
    loud = wave * np.float32(10 ** (gain_db / 20))
    ceiling = 10 ** (ceiling_dbfs / 20)
    needed = np.minimum(1.0, ceiling / np.maximum(np.abs(loud.astype(np.float64)), 1e-9))
    if needed.size == 0 or needed.min() == 1.0:
        return loud
    half = max(1, round(window_s * rate))
    lowest = _sliding_min(np.pad(needed, 2 * half, mode="edge"), half)
    box = np.cumsum(np.concatenate(([0.0], lowest)))
    gain = (box[2 * half + 1 :] - box[: -(2 * half + 1)]) / (2 * half + 1)
    quieter: Wave = (loud * gain).astype(np.float32)
    return quieter


def _sliding_min(values: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """Minimum over each centred window of 2*half+1 values that lies wholly inside."""
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
    return np.asarray(windows.min(axis=1), dtype=np.float64)


class Framer:
    """Any chunks in, frames of exactly `samples` samples out; the remainder waits for the next push."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._rest: Pcm = np.zeros(0, dtype=np.int16)

    def push(self, pcm: Pcm) -> list[Pcm]:
        whole = np.concatenate((self._rest, pcm))
        cut = len(whole) - len(whole) % self._samples
        self._rest = whole[cut:]
        return [whole[at : at + self._samples] for at in range(0, cut, self._samples)]

    def flush(self) -> list[Pcm]:
        """The remainder, zero-padded to a whole frame; nothing if there is none."""
        if len(self._rest) == 0:
            return []
        last = np.zeros(self._samples, dtype=np.int16)
        last[: len(self._rest)] = self._rest
        self._rest = self._rest[:0]
        return [last]
