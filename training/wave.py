"""Trains speaking: codes and a speaker's tokens to samples, by spectra first, then by discriminators too.

Hearing is done by now: every utterance's codes are at hand, and nothing here changes what they mean. So the
language model can be trained at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.codes import Heard
from training.deck import Pool
from training.hearing import EDGE
from training.losses import Bands, Jury, Spectra
from training.nets import Learnt, Nets
from training.pace import Pace
from training.progress import Progress
from training.shards import Part, Shards, Told
from training.sizes import CODEC
from training.speech import HOP, Speech

SEEN = 56  # tokens that the prenet sees
MADE = 32  # of these, in the middle, become samples: nearly all of the work
BATCH = 8
RATE_OF_LEARNING = 1e-3
LEARNT = ("prenet.", "decoder.", "speaker_encoder.project.", "quantizer.out_project.")
_OWN_SHARE = 0.3  # how often the speaker's tokens are the utterance's own; else of another one of the speaker
_EXACT_FROM = 0.8  # of the run; samples of bfloat16 have the noise of 8 bits


@dataclass(frozen=True, slots=True)
class Batch:
    """semantic: [B, SEEN]. globals_: [B, tokens]. wave: [B, SEEN * HOP]."""

    semantic: Tensor
    globals_: Tensor
    wave: Tensor


class WaveDeck:
    """Draws pieces of utterances whose codes are known."""

    def __init__(self, speech: Speech, heard: list[Heard], seed: int) -> None:
        self._speech = speech
        self._dice = np.random.default_rng(seed)
        long_enough = {one.said.start: one for one in heard if len(one.semantic) >= SEEN}
        utterances = tuple(one.said for one in long_enough.values())
        self._pool = Pool(Speech(speech.samples, utterances, speech.names), self._dice)
        self._heard = long_enough

    def batch(self, size: int, device: torch.device) -> Batch:
        semantic, globals_, waves = [], [], []
        for _ in range(size):
            said = self._pool.one()
            one = self._heard[said.start]
            other = said if self._dice.random() < _OWN_SHARE else self._pool.another(said)
            at = int(self._dice.integers(len(one.semantic) - SEEN + 1))
            semantic.append(one.semantic[at : at + SEEN])
            globals_.append(self._heard[other.start].globals_)
            waves.append(self._speech.of(said)[at * HOP : (at + SEEN) * HOP])
        return Batch(
            torch.from_numpy(np.stack(semantic)).long().to(device),
            torch.from_numpy(np.stack(globals_)).long().to(device),
            torch.from_numpy(np.stack(waves)).to(device),
        )


class WaveTraining:
    """A run of it, which can be stopped and gone on with. folder: holds hearing.pt, which it begins from, and
    wave.pt and progress."""

    def __init__(
        self,
        folder: Path,
        speech: Speech,
        heard: list[Heard],
        *,
        device: torch.device,
        shards: int = 1,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self._path = folder / "wave.pt"
        self._device = device
        self.source = Learnt(CODEC, seed, device)
        Nets(self.source, CODEC, device).all()
        self._bands = Bands(CODEC.prenet.out_channels).to(device)
        self._begin(folder / "hearing.pt")
        for parameter in self.source.parameters.values():
            parameter.requires_grad_(False)
        self._learnt = [*self.source.under(*LEARNT), *self._bands.parameters()]
        for parameter in self._learnt:
            parameter.requires_grad_(True)
        self._jury = Jury().to(device)
        self._jurors = list(self._jury.parameters())
        self._spectra = Spectra().to(device)
        self._deck = WaveDeck(speech, heard, seed)
        self._shards = Shards(shards)
        self._learner = torch.optim.AdamW(self._learnt, RATE_OF_LEARNING, (0.8, 0.99), fused=True)
        self._juror = torch.optim.AdamW(self._jurors, RATE_OF_LEARNING / 2, (0.8, 0.99), fused=True)
        self._progress = Progress(folder / "wave.csv")
        self._pace = Pace(self._learner, RATE_OF_LEARNING, warm=100)
        if self._path.is_file():
            self._resume()

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self._pace.step

    @property
    def spent_s(self) -> float:
        """Computed so far."""
        return self._pace.spent_s

    def run(self, minutes: float, *, adversarial_from: float, decay: bool) -> None:
        """Train until so many minutes were computed in all; the discriminators join in after that share of
        them. decay: let the learning rate fall to nothing by the end, else it stays."""
        for done in self._pace.steps(minutes, cores=self._shards.count, decay=decay, save=self.save):
            told = self._one_step(adversarial=done >= adversarial_from, exact=done >= _EXACT_FROM)
            self._progress.note(self.step, told)

    def save(self) -> None:
        part = self._path.with_suffix(".part")
        state = {
            "codec": self.source.state(),
            "bands": self._bands.state_dict(),
            "jury": self._jury.state_dict(),
            "learner": self._learner.state_dict(),
            "juror": self._juror.state_dict(),
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, part)
        part.replace(self._path)

    def _begin(self, hearing: Path) -> None:
        state = torch.load(hearing, map_location=self._device, weights_only=True)
        self.source.load(state["codec"])
        self._bands.load_state_dict(state["bands"])

    def _resume(self) -> None:
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        self.source.load(state["codec"])
        self._bands.load_state_dict(state["bands"])
        self._jury.load_state_dict(state["jury"])
        self._learner.load_state_dict(state["learner"])
        self._juror.load_state_dict(state["juror"])
        self._pace.step, self._pace.spent_s = int(state["step"]), float(state["spent_s"])

    def _one_step(self, *, adversarial: bool, exact: bool) -> Told:
        batch = self._deck.batch(BATCH, self._device)
        first = int(torch.randint(8, SEEN - MADE - 7, ()))

        def part(shard: int) -> Part:
            return self._part(batch, shard, first, adversarial=adversarial, exact=exact)

        told, kept = self._shards.gradients(self._learnt, part)
        nn.utils.clip_grad_norm_(self._learnt, 5.0)
        self._learner.step()
        if adversarial:

            def own(shard: int) -> Part:
                loss = self._jury.own_loss(*kept[shard])
                return Part(loss, {"jury": loss.item()})

            found, _ = self._shards.gradients(self._jurors, own)
            self._juror.step()
            told |= found
        return told

    def _part(self, batch: Batch, shard: int, first: int, *, adversarial: bool, exact: bool) -> Part:
        mine = slice(shard, None, self._shards.count)
        wave = batch.wave[mine]
        nets = Nets(self.source, CODEC, self._device)
        with torch.autocast(self._device.type, torch.bfloat16):
            steering = nets.speaker.decode(batch.globals_[mine])
            frames = nets.frames(nets.codebook.look_up(batch.semantic[mine]), steering)
            told = self._bands(frames).float()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=not exact):
            made = nets.generator(frames.float(), emit=(first, first + MADE)).float()
        real = wave[:, first * HOP : (first + MADE) * HOP]
        judged = slice(EDGE, -EDGE)
        bands = self._bands.off(told[:, judged], self._bands.due(wave)[:, judged])
        rough = self._spectra(made, real)
        loss = rough + bands
        noted = {"spectra": rough.item(), "bands": bands.item()}
        if adversarial:
            found_out = self._jury.loss_for(made, real)
            loss = 5 * rough + bands + found_out
            noted["found_out"] = found_out.item()
        return Part(loss, noted, (made.detach(), real))
