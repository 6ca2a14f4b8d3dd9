"""DTMF: the keys a caller presses, heard as tones in the audio or told by the carrier, each press once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import FULL_SCALE, Pcm

ROWS_HZ = (697, 770, 852, 941)
COLUMNS_HZ = (1209, 1336, 1477, 1633)
KEYS = ("123A", "456B", "789C", "*0#D")  # by row and column

# ITU-T Q.24 asks for tones of 40 ms and more; a window of 25.6 ms tells the rows apart (73 Hz)
WINDOW_S = 0.0256
HOPS = 4  # windows begin every quarter of one
NEED = 4  # windows in a row that make a press, and that end it: 45 ms
SHARE = 0.6  # of a window's energy in the two tones: 0.9 at 10 dB of noise; speech spreads over harmonics
LEAD = 4.0  # the row's and the column's power over the next one's: 6 dB
TWIST = 10.0  # most power of one tone over the other: 10 dB; Q.24 asks for 8 one way, 4 the other
LEAST_DBFS = -45.0
SAME_S = 1.0  # the carrier's word comes at the tone's end; later it is another press


class ToneKeys:
    """Mono int16 at `rate` Hz in, keys out, each when its tone has lasted 45 ms. Sans-IO.

    sounding: the key whose tone goes on. suspect: that of a tone too short so far, or None.
    """

    def __init__(self, rate: int) -> None:
        self.sounding: str | None = None
        self.suspect: str | None = None
        self._window = round(WINDOW_S * rate)
        self._hop = self._window // HOPS
        turns = np.arange(self._window)[:, None] * np.array(ROWS_HZ + COLUMNS_HZ)[None] / rate
        waves = np.concatenate([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], axis=1)
        self._waves: NDArray[np.float32] = waves.astype(np.float32)
        self._rest: Pcm = np.zeros(0, dtype=np.int16)
        self._streak = 0
        self._missing = 0

    def push(self, pcm: Pcm) -> list[str]:
        """The keys whose tones have become certain with these samples."""
        pcm = np.concatenate((self._rest, pcm))
        count = max(0, (len(pcm) - self._window) // self._hop + 1)
        self._rest = pcm[count * self._hop :]
        if count == 0:
            return []
        starts = range(0, count * self._hop, self._hop)
        found = self._judged(np.array([pcm[at : at + self._window] for at in starts], dtype=np.float32))
        return [key for key in (self._follow(key) for key in found) if key is not None]

    def _judged(self, windows: NDArray[np.float32]) -> list[str | None]:
        """The key that each window sounds like."""
        energy = np.einsum("ij,ij->i", windows, windows)
        least = (10 ** (LEAST_DBFS / 20) * FULL_SCALE) ** 2 * self._window
        power = np.square(windows @ self._waves) * (2 / self._window)
        power = power[:, :8] + power[:, 8:]
        # most windows end here: speech is spread over many harmonics
        both = power[:, :4].max(axis=1) + power[:, 4:].max(axis=1)
        likely = (energy >= least) & (both >= SHARE * energy)
        return [_key(power[at]) if likely[at] else None for at in range(len(windows))]

    def _follow(self, key: str | None) -> str | None:
        """A key that this window has made certain."""
        if self.sounding is not None:
            self._missing = 0 if key == self.sounding else self._missing + 1
            if self._missing < NEED:
                return None
            self.sounding = None
        self._streak = self._streak + 1 if key is not None and key == self.suspect else int(key is not None)
        self.suspect = key
        if self._streak < NEED:
            return None
        self.sounding, self._missing, self._streak = key, 0, 0
        return key


def _key(power: NDArray[np.float32]) -> str | None:
    """The key of a window with so much power at ROWS_HZ and COLUMNS_HZ, if two tones stand out enough."""
    rows, columns = sorted(power[:4].tolist()), sorted(power[4:].tolist())
    alone = rows[3] >= LEAD * rows[2] and columns[3] >= LEAD * columns[2]
    level = rows[3] <= TWIST * columns[3] and columns[3] <= TWIST * rows[3]
    return KEYS[int(power[:4].argmax())][int(power[4:].argmax())] if alone and level else None


@dataclass(slots=True)
class _Press:
    key: str
    by_tone: bool
    until_s: float  # the other way's word for the same press comes by then


class Presses:
    """Keys told by tone and by the carrier's event in, each press out once. Sans-IO.

    A press that both report is reported by whichever comes first.
    """

    def __init__(self) -> None:
        self._single: deque[_Press] = deque(maxlen=64)  # reported one way so far

    def tone(self, key: str, now_s: float) -> bool:
        """A tone has become certain; whether that is a new press."""
        return self._new(key, True, now_s)

    def event(self, key: str, now_s: float) -> bool:
        """The carrier says so; whether that is a new press."""
        return self._new(key, False, now_s)

    def sounds(self, key: str, now_s: float) -> None:
        """The tone of a key reported before goes on."""
        for press in self._single:
            if press.by_tone and press.key == key:
                press.until_s = max(press.until_s, now_s + SAME_S)

    def _new(self, key: str, by_tone: bool, now_s: float) -> bool:
        self._single = deque((p for p in self._single if p.until_s >= now_s), maxlen=64)
        for press in self._single:
            if press.key == key and press.by_tone != by_tone:
                self._single.remove(press)
                return False
        self._single.append(_Press(key, by_tone, now_s + SAME_S))
        return True
