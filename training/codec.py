"""Trains the codec: what is heard to codes and a speaker, and back to what was heard.

The encoder hears each utterance with its mel bands stretched or squeezed at random, and the speaker comes
from another utterance; so the codes have no use for the speaker, and the speaker's tokens must carry it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from training.losses import Jury, Spectra
from training.nets import CODES, Learnt, Nets
from training.progress import Progress
from training.sizes import CODEC, REF_S
from training.speech import HOP, RATE, SPEAKERS, Speech, Utterance
from tts_plugin.engines.spark.bicodec.mel import Mel

SEEN = 80  # tokens that the encoder and the prenet see
MADE = 32  # of these, in the middle, become samples: nearly all of the work
BATCH = 12
RATE_OF_LEARNING = 1e-3
_REAL_SHARE = 0.1  # of the real clips in a batch, though they are a thousandth of the speech
_WARP = 0.18  # how far the bands are stretched or squeezed
_WARPS = 17
_DEAD = 0.02  # a code used less than this many times a step, on the average, is moved
_MEL_FLOOR = 1e-4
_SAVE_S = 120.0


@dataclass(frozen=True, slots=True)
class Batch:
    """wave: [B, SEEN * HOP]. reference: [B, REF_S] of the same speakers. speakers: their numbers."""

    wave: Tensor
    reference: Tensor
    speakers: Tensor


class Deck:
    """Draws batches."""

    def __init__(self, speech: Speech, seed: int) -> None:
        self._speech = speech
        self._dice = np.random.default_rng(seed)
        long_enough = [one for one in speech.utterances if one.length >= 2 * HOP]
        self._virtual = [one for one in long_enough if one.speaker < len(SPEAKERS)]
        self._real = [one for one in long_enough if one.speaker >= len(SPEAKERS)]
        self._by_speaker: dict[int, list[Utterance]] = {}
        for one in long_enough:
            self._by_speaker.setdefault(one.speaker, []).append(one)

    def batch(self, size: int = BATCH) -> Batch:
        """Each of another utterance, with a piece of a second utterance of the same speaker."""
        waves, references, speakers = [], [], []
        for _ in range(size):
            pool = self._real if self._real and self._dice.random() < _REAL_SHARE else self._virtual
            one = pool[self._dice.integers(len(pool))]
            others = self._by_speaker[one.speaker]
            waves.append(self._piece(one, SEEN * HOP))
            references.append(self._filled(others, round(REF_S * RATE)))
            speakers.append(one.speaker)
        return Batch(
            torch.from_numpy(np.stack(waves)),
            torch.from_numpy(np.stack(references)),
            torch.tensor(speakers),
        )

    def _piece(self, one: Utterance, samples: int) -> NDArray[np.float32]:
        """A random piece; a short utterance stands somewhere in silence."""
        wave = self._speech.of(one)
        spare = len(wave) - samples
        if spare >= 0:
            at = int(self._dice.integers(spare + 1))
            return wave[at : at + samples]
        before = int(self._dice.integers(-spare + 1))
        return np.pad(wave, (before, -spare - before))

    def _filled(self, others: list[Utterance], samples: int) -> NDArray[np.float32]:
        wave = self._speech.of(others[self._dice.integers(len(others))])
        wave = np.tile(wave, -(-samples // len(wave)))
        at = int(self._dice.integers(len(wave) - samples + 1))
        return wave[at : at + samples]


class Features:
    """What the encoder hears: logarithmic mel bands, a frame a token."""

    def __init__(self, device: torch.device) -> None:
        self._mel = Mel(CODEC.mel_params, device)
        factors = np.linspace(1 - _WARP, 1 + _WARP, _WARPS)
        tables = np.stack([warp(CODEC.mel_params.num_mels, factor) for factor in factors])
        self._warps = torch.from_numpy(tables).float().to(device)

    def mel(self, wave: Tensor) -> Tensor:
        """[B, N] -> [B, bands, frames], as the speaker encoder hears it."""
        return self._mel(wave)

    def of(self, wave: Tensor, *, warped: bool = False) -> Tensor:
        """[B, N] -> [B, N // HOP, bands]."""
        heard = torch.log(self._mel(wave).clamp_min(_MEL_FLOOR))[..., : wave.shape[-1] // HOP]
        heard = heard.transpose(1, 2)
        if not warped:
            return heard
        which = torch.randint(_WARPS, (len(wave),), device=wave.device)
        return torch.bmm(heard, self._warps[which])


def warp(bands: int, factor: float) -> NDArray[np.float64]:
    """A table [bands, bands]: band b of the result is taken from the band about `factor` * b."""
    sources = np.clip(np.arange(bands) * factor, 0, bands - 1)
    low = np.floor(sources).astype(int)
    table = np.zeros((bands, bands))
    share = sources - low
    table[low, np.arange(bands)] += 1 - share
    table[np.minimum(low + 1, bands - 1), np.arange(bands)] += share
    return table


class CodecTraining:
    """A run of it, which can be stopped and gone on with. folder: holds codec.pt and progress."""

    def __init__(self, folder: Path, speech: Speech, *, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._path = folder / "codec.pt"
        self._device = device
        self.source = Learnt(CODEC, seed, device)
        Nets.over(self.source, CODEC, device)
        self._who = nn.Linear(CODEC.speaker_encoder.out_dim, speech.speakers).to(device)
        self._jury = Jury().to(device)
        self._spectra = Spectra().to(device)
        self._features = Features(device)
        self._deck = Deck(speech, seed)
        learnt = [*self.source.parameters.values(), *self._who.parameters()]
        self._learner = torch.optim.AdamW(learnt, RATE_OF_LEARNING, (0.8, 0.99), fused=True)
        self._juror = torch.optim.AdamW(self._jury.parameters(), RATE_OF_LEARNING / 2, (0.8, 0.99))
        self._used = torch.ones(CODEC.quantizer.codebook_size, device=device)
        self._progress = Progress(folder / "codec.csv")
        self.step = 0
        if self._path.is_file():
            self._resume()

    def run(self, minutes: float, *, adversarial_from: float, decay: bool) -> None:
        """Train for so long; the discriminators join in after that share of it. decay: let the learning rate
        fall to nothing by the end, else it stays."""
        begun_s = saved_s = time.monotonic()
        while (done := (time.monotonic() - begun_s) / (minutes * 60)) < 1:
            pace = 0.5 * (1 + math.cos(math.pi * done)) if decay else 1.0
            for group in self._learner.param_groups:
                group["lr"] = RATE_OF_LEARNING * min(1, (self.step + 1) / 200) * (0.03 + 0.97 * pace)
            self._progress.note(self.step, self._one_step(adversarial=done >= adversarial_from))
            self.step += 1
            if time.monotonic() - saved_s > _SAVE_S:
                self.save()
                saved_s = time.monotonic()
        self.save()

    def save(self) -> None:
        part = self._path.with_suffix(".part")
        state = {
            "codec": self.source.state(),
            "who": self._who.state_dict(),
            "jury": self._jury.state_dict(),
            "learner": self._learner.state_dict(),
            "juror": self._juror.state_dict(),
            "used": self._used,
            "step": self.step,
        }
        torch.save(state, part)
        part.replace(self._path)

    def _resume(self) -> None:
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        self.source.load(state["codec"])
        self._who.load_state_dict(state["who"])
        self._jury.load_state_dict(state["jury"])
        self._learner.load_state_dict(state["learner"])
        self._juror.load_state_dict(state["juror"])
        self._used.copy_(state["used"])
        self.step = int(state["step"])

    def _one_step(self, *, adversarial: bool) -> dict[str, float]:
        batch = self._deck.batch()
        wave, reference = batch.wave.to(self._device), batch.reference.to(self._device)
        first = int(torch.randint(8, SEEN - MADE - 7, ()))
        real = wave[:, first * HOP : (first + MADE) * HOP]
        # on two CPU cores bfloat16 convolutions are slower than float32 ones
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            nets = Nets.over(self.source, CODEC, self._device)
            with torch.autocast(self._device.type, enabled=False):
                features = self._features.of(wave, warped=True)
                mel = self._features.mel(reference)
            vectors, codes, drawn, aimed = nets.quantised(features)
            steering = nets.steering(mel)
            made = nets.generator(nets.frames(vectors, steering)[..., first : first + MADE]).float()
        rough = self._spectra(made, real)
        who = F.cross_entropy(self._who(steering.float()), batch.speakers.to(self._device))
        loss = rough + 2 * drawn + 0.1 * who
        told = {"spectra": rough.item(), "codes": drawn.item(), "speaker": who.item()}
        if adversarial:
            own = self._jury.own_loss(made, real)
            self._juror.zero_grad()
            torch.autograd.backward(own)
            self._juror.step()
            found_out = self._jury.loss_for(made, real)
            loss = 5 * rough + 5 * drawn + 0.1 * who + found_out
            told |= {"jury": own.item(), "found_out": found_out.item()}
        self._learner.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.source.parameters.values(), 5.0)
        self._learner.step()
        self._tend(codes, aimed)
        return told | {"used": float((self._used > _DEAD).sum())}

    @torch.no_grad()
    def _tend(self, codes: Tensor, aimed: Tensor) -> None:
        """Keep the codes directions; give those that nothing uses to what was heard just now."""
        table = self.source.parameters[CODES]
        table.copy_(F.normalize(table))
        counts = torch.bincount(codes.flatten(), minlength=len(table)).float()
        self._used.lerp_(counts, 0.01)
        dead = (self._used < _DEAD).nonzero().flatten()
        if len(dead):
            table[dead] = aimed[torch.randint(len(aimed), (len(dead),), device=aimed.device)].float()
            self._used[dead] = 0.5
