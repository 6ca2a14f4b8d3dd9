"""Pace: speech made faster or slower at its own pitch, piece by piece, because the model knows no pace.

Waveform-similarity overlap-add: the output is built of short grains of the input, each taken near the place
that the pace asks for, where it best goes on from the grain before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import Pcm, to_float32, to_int16

_GRAIN_S = 0.03  # two periods of a low voice
_SEARCH_S = 0.008  # to either side: one period of a low voice, so that a phase that fits is found


class Pace:
    """One segment at `pace` times its speed, at `rate` Hz. Pace 1 passes through untouched.

    `push` gives what is ready, and holds back at most about 60 ms; `flush` gives the rest. The output has
    round(samples / pace) samples, the same ones however the input was cut.
    """

    def __init__(self, pace: float, rate: int) -> None:
        self._pace = pace
        self._step = round(_GRAIN_S / 2 * rate)  # grains overlap by half
        self._search = round(_SEARCH_S * rate)
        self._rise = ((np.arange(self._step) + 0.5) / self._step).astype(np.float32)
        self._wave: NDArray[np.float32] = np.zeros(0, np.float32)  # input from `_from` on
        self._from = 0
        self._taken = 0  # samples in
        self._grain = 0  # index of the next one
        self._at = 0  # where in the input the last one began

    def push(self, pcm: Pcm) -> Pcm:
        if self._pace == 1:
            return pcm
        self._taken += len(pcm)
        self._wave = np.concatenate((self._wave, to_float32(pcm)))
        return self._made(self._from + len(self._wave))

    def flush(self) -> Pcm:
        """The rest; push no more."""
        missing = round(self._taken / self._pace) - self._grain * self._step
        if self._pace == 1 or missing <= 0:
            return np.zeros(0, np.int16)
        # silence, so that the last grains find as many samples as the others
        more = round(missing * self._pace) + 4 * self._step + 2 * self._search
        self._wave = np.concatenate((self._wave, np.zeros(more, np.float32)))
        return self._made(self._from + len(self._wave))[:missing]

    def _made(self, known: int) -> Pcm:
        """The grains for which the input is known far enough; each gives one step of output."""
        out = []
        while True:
            wanted = round(self._grain * self._step * self._pace)
            if max(wanted + self._search, self._at + self._step) + 2 * self._step > known:
                break
            out.append(self._next(wanted))
            self._grain += 1
        self._forget()
        return to_int16(np.concatenate(out)) if out else np.zeros(0, np.int16)

    def _next(self, wanted: int) -> NDArray[np.float32]:
        step = self._step
        if self._grain == 0:
            return self._part(0)
        going_on = self._part(self._at + step)
        first = max(self._from, wanted - self._search)
        heard = self._wave[first - self._from : wanted + self._search + step - self._from]
        self._at = first + _best(heard, going_on)
        return going_on * (1 - self._rise) + self._part(self._at) * self._rise

    def _part(self, start: int) -> NDArray[np.float32]:
        return self._wave[start - self._from : start - self._from + self._step]

    def _forget(self) -> None:
        """Drop the input that no grain can be taken from any more."""
        wanted = round(self._grain * self._step * self._pace)
        keep = max(self._from, min(self._at + self._step, wanted - self._search))
        self._wave = self._wave[keep - self._from :]
        self._from = keep


def _best(wave: NDArray[np.float32], wanted: NDArray[np.float32]) -> int:
    """Where in `wave` a piece as long as `wanted` is most like it in shape."""
    likeness = np.correlate(wave, wanted, mode="valid")
    power = np.cumsum(np.concatenate(([0.0], np.square(wave, dtype=np.float64))))
    power = power[len(wanted) :] - power[: -len(wanted)]
    return int(np.argmax(likeness / np.sqrt(np.maximum(power, 1e-9))))
