"""A reference clip as the speaker encoder wants it: one channel, the codec's rate, level and length set."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from tts_plugin.errors import ConfigError

Samples = NDArray[np.float64]

# the levels that the published model's references have; linear, full scale 1
_LOUD = 0.2  # the mean of the loud part is brought here
_FAINT_PEAK = 0.1  # a clip whose peak is lower is raised to this peak first
_NOISE = 0.01  # what is fainter does not count as signal
_LEAST_PEAK = 1e-3  # nothing is amplified as if its peak were lower
_LEAST_SIGNAL = 10  # samples
_LOUD_PART = (0.9, 0.99)  # of the signal's samples sorted by level
_GAIN_LIMITS = (0.1, 10.0)


def at_rate(wave: Samples, found_rate: int, rate: int) -> Samples:
    """Samples of `found_rate` Hz at `rate` Hz, with the resampler that the published model's clips had."""
    if found_rate == rate:
        return wave
    resampled: Samples = soxr.resample(wave, found_rate, rate, quality="VHQ")
    return resampled


def volume_normalise(wave: Samples) -> Samples:
    """The clip at the level that the speaker encoder knows; never beyond full scale once there is signal."""
    levels = np.sort(np.abs(wave))
    if levels[-1] < _FAINT_PEAK:
        wave = wave / max(levels[-1], _LEAST_PEAK) * _FAINT_PEAK
    signal = levels[levels > _NOISE]  # of the clip as it came: a faint one is judged before it was raised
    if len(signal) <= _LEAST_SIGNAL:
        return wave
    first, last = (int(part * len(signal)) for part in _LOUD_PART)
    wave = wave * np.clip(_LOUD / signal[first:last].mean(), *_GAIN_LIMITS)
    return wave / max(1.0, float(np.abs(wave).max()))


def ref_clip(wave: Samples, samples: int) -> Samples:
    """Exactly the first `samples` samples; a shorter clip is repeated until it is long enough."""
    if len(wave) == 0:
        raise ConfigError("a reference clip needs at least one sample")
    return np.tile(wave, -(-samples // len(wave)))[:samples]
