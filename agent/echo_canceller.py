"""EchoCanceller: takes out of a line's audio what comes back of the audio sent down it.

A Kalman filter in the frequency domain, in partitions of 20 ms (Enzner and Vary 2006; Kuech et al. 2014): it
knows for every frequency how sure it is of the line, so a sound that is new to it is learnt at once, and a
caller who talks over the agent, whom it takes for noise, spoils little. Sans-IO.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import Wave

REACH_S = 0.34  # the longest echo: half a second's round trip is no telephone call any more
UNSURE = 0.1  # of the line's power gain at first, each partition: an echo 10 dB down is expected
KEEPS = 0.9995  # of what is known a block: a line changes rarely
SMOOTH = 0.8  # of the noise's estimate, a block: 0.1 s


class EchoCanceller:
    """Blocks of `block` samples: what was sent, and what came in at the same time. One per call."""

    def __init__(self, block: int, partitions: int) -> None:
        self._block = block
        shape = (partitions, block + 1)
        self._line: NDArray[np.complex64] = np.zeros(shape, dtype=np.complex64)
        self._unsure: NDArray[np.float32] = np.full(shape, UNSURE, dtype=np.float32)
        self._sent: NDArray[np.complex64] = np.zeros(shape, dtype=np.complex64)  # the newest first
        self._noise: NDArray[np.float32] = np.zeros(block + 1, dtype=np.float32)  # power of what is not echo
        self._last: Wave = np.zeros(block, dtype=np.float32)

    def note(self, sent: Wave) -> None:
        """So much was sent while nothing came in that could be an echo; it may still come back."""
        self._sent[1:] = self._sent[:-1]
        self._sent[0] = np.fft.rfft(np.concatenate((self._last, sent)))
        self._last = sent

    def push(self, mic: Wave, sent: Wave) -> Wave:
        """What is left of `mic`."""
        self.note(sent)
        power = np.square(np.abs(self._sent))
        if power.max() < 1e-4:  # nothing was sent that could come back
            return mic
        echo = np.fft.irfft((self._line * self._sent).sum(axis=0))[self._block :]
        left: Wave = (mic - echo).astype(np.float32)
        self._learn(left, power)
        return left

    def _learn(self, left: Wave, power: NDArray[np.float32]) -> None:
        error = np.fft.rfft(np.concatenate((np.zeros_like(left), left)))
        error_power = np.square(np.abs(error))
        self._noise = np.maximum(SMOOTH * self._noise + (1 - SMOOTH) * error_power, 0.5 * error_power)
        # half of a block's window is zeros
        expected = 0.5 * (power * self._unsure).sum(axis=0) + self._noise + 1e-6
        gain = self._unsure / expected
        step = np.fft.irfft(gain * self._sent.conj() * error)
        step[:, self._block :] = 0.0
        self._line += np.fft.rfft(step)
        self._unsure = KEEPS**2 * (1 - 0.5 * gain * power) * self._unsure
        self._unsure += (1 - KEEPS**2) * np.square(np.abs(self._line))
