"""Draws what a step hears: a piece of an utterance, and a piece of another by the same speaker."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.features import WARPS
from training.sizes import REF_S
from training.speech import HOP, RATE, SPEAKERS, Speech, Utterance
from tts_plugin.engines.spark.reference import volume_normalise

Wave = NDArray[np.float32]

_REAL_SHARE = 0.1  # of the real clips in a batch, though they are a thousandth of the speech
_GAINS = (0.5, 3.0)  # an encoder must hear the same at any level
_BENT_SHARE = 0.5  # of a batch: played faster or slower, by speakers that nobody is
_BENDS = (0.85, 1.18)
NOBODY = -100  # the number of such a speaker, which cross_entropy passes over


@dataclass(frozen=True, slots=True)
class Batch:
    """wave: [B, tokens * HOP]. reference: [B, REF_S] of the same speakers, as loud as a clip is when a voice
    is enrolled. speakers: their numbers, or NOBODY. gains, warps: how the encoder hears each wave."""

    wave: Tensor
    reference: Tensor
    speakers: Tensor
    gains: Tensor
    warps: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.wave.to(device),
            self.reference.to(device),
            self.speakers.to(device),
            self.gains.to(device),
            self.warps.to(device),
        )


class Pool:
    """Utterances to draw from, real speakers more often than their share."""

    def __init__(self, speech: Speech, dice: np.random.Generator) -> None:
        self._dice = dice
        long_enough = [one for one in speech.utterances if one.length >= 2 * HOP]
        self._virtual = [one for one in long_enough if one.speaker < len(SPEAKERS)]
        self._real = [one for one in long_enough if one.speaker >= len(SPEAKERS)]
        self.by_speaker: dict[int, list[Utterance]] = {}
        for one in long_enough:
            self.by_speaker.setdefault(one.speaker, []).append(one)

    def one(self) -> Utterance:
        pool = self._real if self._real and self._dice.random() < _REAL_SHARE else self._virtual
        return pool[self._dice.integers(len(pool))]

    def another(self, one: Utterance) -> Utterance:
        """Of the same speaker; it may be the same."""
        others = self.by_speaker[one.speaker]
        return others[self._dice.integers(len(others))]


class Deck:
    """Draws batches of pieces `tokens` long."""

    def __init__(self, speech: Speech, tokens: int, seed: int) -> None:
        self._speech = speech
        self._samples = tokens * HOP
        self._dice = np.random.default_rng(seed)
        self._pool = Pool(speech, self._dice)
        self._loud: dict[int, float] = {}

    def batch(self, size: int) -> Batch:
        waves, references, speakers = [], [], []
        low, high = map(math.log, _GAINS)
        slowest, fastest = map(math.log, _BENDS)
        for _ in range(size):
            one, bend = self._pool.one(), 1.0
            if self._dice.random() < _BENT_SHARE:
                bend = math.exp(self._dice.uniform(slowest, fastest))
            waves.append(self._piece(self._speech.of(one), bend))
            references.append(self._reference(self._pool.another(one), bend))
            speakers.append(one.speaker if bend == 1 else NOBODY)
        return Batch(
            torch.from_numpy(np.stack(waves)),
            torch.from_numpy(np.stack(references)),
            torch.tensor(speakers),
            torch.from_numpy(np.exp(self._dice.uniform(low, high, (size, 1)))).float(),
            torch.from_numpy(self._dice.integers(WARPS, size=size)),
        )

    def _piece(self, wave: Wave, bend: float) -> Wave:
        """A random piece; a short utterance stands somewhere in silence."""
        samples = math.ceil(self._samples * bend)
        spare = len(wave) - samples
        if spare >= 0:
            at = int(self._dice.integers(spare + 1))
            return bent(wave[at : at + samples], bend, self._samples)
        before = int(self._dice.integers(-spare + 1))
        return bent(np.pad(wave, (before, -spare - before)), bend, self._samples)

    def _reference(self, one: Utterance, bend: float) -> Wave:
        wave, wanted = self._speech.of(one), round(REF_S * RATE)
        samples = math.ceil(wanted * bend)
        if one.start not in self._loud:
            louder = volume_normalise(wave.astype(np.float64))
            self._loud[one.start] = float(np.abs(louder).max() / max(np.abs(wave).max(), 1e-4))
        wave = np.tile(wave * np.float32(self._loud[one.start]), -(-samples // len(wave)))
        at = int(self._dice.integers(len(wave) - samples + 1))
        return bent(wave[at : at + samples], bend, wanted)


def bent(wave: Wave, bend: float, samples: int) -> Wave:
    """So many samples of `wave`, played `bend` times as fast: pitch, formants and pace all move."""
    if bend == 1:
        return wave
    played: Wave = soxr.resample(wave, bend, 1.0, quality="LQ")
    return np.pad(played, (0, max(0, samples - len(played))))[:samples]
