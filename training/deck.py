"""Draws what a step hears: a piece of an utterance, and a piece of another by the same speaker."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.features import WARPS
from training.sizes import REF_S
from training.speech import HOP, RATE, SPEAKERS, Speech, Utterance
from tts_plugin.engines.spark.reference import volume_normalise

_REAL_SHARE = 0.1  # of the real clips in a batch, though they are a thousandth of the speech
_GAINS = (0.5, 3.0)  # an encoder must hear the same at any level


@dataclass(frozen=True, slots=True)
class Batch:
    """wave: [B, tokens * HOP]. reference: [B, REF_S] of the same speakers, as loud as a clip is when a voice
    is enrolled. speakers: their numbers. gains, warps: how the encoder hears each wave."""

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
        for _ in range(size):
            one = self._pool.one()
            waves.append(self._piece(one))
            references.append(self._reference(self._pool.another(one)))
            speakers.append(one.speaker)
        return Batch(
            torch.from_numpy(np.stack(waves)),
            torch.from_numpy(np.stack(references)),
            torch.tensor(speakers),
            torch.from_numpy(np.exp(self._dice.uniform(low, high, (size, 1)))).float(),
            torch.from_numpy(self._dice.integers(WARPS, size=size)),
        )

    def _piece(self, one: Utterance) -> NDArray[np.float32]:
        """A random piece; a short utterance stands somewhere in silence."""
        wave = self._speech.of(one)
        spare = len(wave) - self._samples
        if spare >= 0:
            at = int(self._dice.integers(spare + 1))
            return wave[at : at + self._samples]
        before = int(self._dice.integers(-spare + 1))
        return np.pad(wave, (before, -spare - before))

    def _reference(self, one: Utterance) -> NDArray[np.float32]:
        wave, samples = self._speech.of(one), round(REF_S * RATE)
        if one.start not in self._loud:
            louder = volume_normalise(wave.astype(np.float64))
            self._loud[one.start] = float(np.abs(louder).max() / max(np.abs(wave).max(), 1e-4))
        wave = np.tile(wave * np.float32(self._loud[one.start]), -(-samples // len(wave)))
        at = int(self._dice.integers(len(wave) - samples + 1))
        return wave[at : at + samples]
