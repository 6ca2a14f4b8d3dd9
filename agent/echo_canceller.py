"""EchoCanceller: takes out of a line's audio what comes back of the audio sent down it.

An adaptive filter of 20 ms partitions in the frequency domain (overlap-save, normalised steps). A second
filter learns all the time; the one that is used is a copy of it, taken only when it was clearly better, so
a caller who talks over the agent does not spoil it. A line without echo is left as it is. Sans-IO.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import Wave

REACH_S = 0.34  # the longest echo: half a second's round trip is no telephone call any more
STEP = 0.4  # of the normalised step: 0.8 is no faster on speech and noisier
BETTER = 0.7  # of the used filter's error, to be taken over: 1.5 dB
PLAIN = 0.25  # of the line's power: 6 dB, which no filter takes out of a caller's voice
WORSE = 2.0  # times the other's error: it has gone astray
SMOOTH = 0.85  # of the powers compared, a block: 0.13 s


class EchoCanceller:
    """Blocks of `block` samples: what was sent, and what came in at the same time. One per call."""

    def __init__(self, block: int, partitions: int) -> None:
        self._block = block
        self._used: NDArray[np.complex128] = np.zeros((partitions, block + 1), dtype=np.complex128)
        self._learning = self._used.copy()
        self._sent = self._used.copy()  # spectra, the newest first
        self._last: Wave = np.zeros(block, dtype=np.float32)
        self._power_in = self._error_used = self._error_learning = 0.0

    def push(self, mic: Wave, sent: Wave) -> Wave:
        """What is left of `mic`."""
        self._sent = np.roll(self._sent, 1, axis=0)
        self._sent[0] = np.fft.rfft(np.concatenate((self._last, sent)))
        self._last = sent
        power = np.square(np.abs(self._sent)).sum(axis=0)
        if power.max() < 1e-4:  # nothing was sent that could come back
            return mic
        left = mic - self._echo(self._used)
        error = mic - self._echo(self._learning)
        self._learn(error, power)
        self._compare(mic, left, error)
        return left.astype(np.float32)

    def _echo(self, filters: NDArray[np.complex128]) -> NDArray[np.float64]:
        return np.fft.irfft((filters * self._sent).sum(axis=0))[self._block :]

    def _learn(self, error: NDArray[np.float64], power: NDArray[np.float64]) -> None:
        spectrum = np.fft.rfft(np.concatenate((np.zeros(self._block), error)))
        floor = 1e-3 * power.mean() + 1e-6
        step = np.fft.irfft(STEP * self._sent.conj() * (spectrum / (power + floor)))
        step[:, self._block :] = 0.0
        self._learning += np.fft.rfft(step)

    def _compare(self, mic: Wave, left: NDArray[np.float64], error: NDArray[np.float64]) -> None:
        self._power_in = SMOOTH * self._power_in + float(mic @ mic)
        self._error_used = SMOOTH * self._error_used + float(left @ left)
        self._error_learning = SMOOTH * self._error_learning + float(error @ error)
        if self._error_learning < min(BETTER * self._error_used, PLAIN * self._power_in):
            self._used[:] = self._learning
            self._error_used = self._error_learning
        elif self._error_learning > WORSE * self._error_used:
            self._learning[:] = self._used
            self._error_learning = self._error_used
        if self._error_used > WORSE * self._power_in:  # the line has changed: better none than a wrong one
            self._used[:] = 0
            self._learning[:] = 0
            self._error_used = self._error_learning = self._power_in
