"""Trains hearing: speech to codes and a speaker, and from these to the mel bands of what was heard.

This comes before any wave is made: bands are cheap to make and easy to learn from, and once they are learnt
the codes are good and stay as they are. The encoder hears each utterance with its bands stretched or squeezed
at random, and the speaker comes from another utterance; so the codes have no use for the speaker, and the
speaker's tokens must carry it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.deck import NOBODY, Batch, Deck
from training.features import Features
from training.losses import Bands
from training.nets import CODES, Learnt, Nets
from training.pace import Pace
from training.progress import Progress
from training.shards import Part, Shards, Told
from training.sizes import CODEC
from training.speech import Speech

TOKENS = 80  # of a piece
EDGE = 2  # tokens at either end of it that are not judged
BATCH = 12
RATE_OF_LEARNING = 1e-3
LEARNT = ("encoder.", "quantizer.", "speaker_encoder.", "prenet.")
_FREE = 200  # steps before directions are rounded: they must first differ, or all become one code
_GATHERED = 12  # of these steps, whose directions the first codes are the middles of
_DEAD = 0.02  # a code used less than this many times a step, on the average, is moved


class HearingTraining:
    """A run of it, which can be stopped and gone on with. folder: holds hearing.pt and progress."""

    def __init__(
        self, folder: Path, speech: Speech, *, device: torch.device, shards: int = 1, seed: int = 0
    ) -> None:
        torch.manual_seed(seed)
        self._path = folder / "hearing.pt"
        self._device = device
        self.source = Learnt(CODEC, seed, device)
        Nets(self.source, CODEC, device).all()
        self._who = nn.Linear(CODEC.speaker_encoder.out_dim, speech.speakers).to(device)
        self._bands = Bands(CODEC.prenet.out_channels).to(device)
        self._features = Features(device)
        self._deck = Deck(speech, TOKENS, seed)
        self._shards = Shards(shards)
        self._learnt = [
            *self.source.under(*LEARNT),
            *self._who.parameters(),
            *self._bands.parameters(),
        ]
        self._learner = torch.optim.AdamW(self._learnt, RATE_OF_LEARNING, (0.8, 0.99), fused=True)
        self._used = torch.ones(CODEC.quantizer.codebook_size, device=device)
        self._aims: list[Tensor] = []
        self._progress = Progress(folder / "hearing.csv")
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

    def run(self, minutes: float, *, decay: bool) -> None:
        """Train until so many minutes were computed in all. decay: let the learning rate fall to nothing by
        then, else it stays."""
        for _ in self._pace.steps(minutes, cores=self._shards.count, decay=decay, save=self.save):
            self._progress.note(self.step, self._one_step())

    def save(self) -> None:
        part = self._path.with_suffix(".part")
        state = {
            "codec": self.source.state(),
            "who": self._who.state_dict(),
            "bands": self._bands.state_dict(),
            "learner": self._learner.state_dict(),
            "used": self._used,
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, part)
        part.replace(self._path)

    def _resume(self) -> None:
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        self.source.load(state["codec"])
        self._who.load_state_dict(state["who"])
        self._bands.load_state_dict(state["bands"])
        self._learner.load_state_dict(state["learner"])
        self._used.copy_(state["used"])
        self._pace.step, self._pace.spent_s = int(state["step"]), float(state["spent_s"])

    def _one_step(self) -> Told:
        batch = self._deck.batch(BATCH).to(self._device)
        told, kept = self._shards.gradients(self._learnt, lambda shard: self._part(batch, shard))
        nn.utils.clip_grad_norm_(self._learnt, 5.0)
        self._learner.step()
        codes, aimed = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        if self.step >= _FREE:
            self._tend(codes, aimed)
        elif self.step >= _FREE - _GATHERED:
            self._aims.append(aimed)
            if self.step == _FREE - 1:
                self._first_codes()
        share = self._used / self._used.sum()
        return told | {"perplexity": torch.special.entr(share).sum().exp().item()}

    def _part(self, batch: Batch, shard: int) -> Part:
        mine = slice(shard, None, self._shards.count)
        wave, reference = batch.wave[mine], batch.reference[mine]
        nets = Nets(self.source, CODEC, self._device)
        with torch.no_grad():
            features = self._features.of(wave * batch.gains[mine], batch.warps[mine])
            mel = self._features.mel(reference)
            due = self._bands.due(wave)
        with torch.autocast(self._device.type, torch.bfloat16):
            heard = nets.quantised(features, rounded=self.step >= _FREE)
            steering = nets.steering(mel)
            made = self._bands(nets.frames(heard.vectors, steering))
        judged = slice(EDGE, -EDGE)
        off = self._bands.off(made.float()[:, judged], due[:, judged])
        known = batch.speakers[mine] != NOBODY
        guess = self._who(steering.float())
        who = F.cross_entropy(guess, batch.speakers[mine], ignore_index=NOBODY, reduction="sum")
        who = who / known.sum().clamp_min(1)
        loss = off + 0.5 * heard.loss + 0.03 * who
        told = {"bands": off.item(), "codes": heard.loss.item(), "speaker": who.item()}
        return Part(loss, told, (heard.codes, heard.directions))

    @torch.no_grad()
    def _first_codes(self) -> None:
        table = self.source.parameters[CODES]
        table.copy_(middles(torch.cat(self._aims).float(), len(table)))
        self._aims.clear()

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


def middles(directions: Tensor, count: int, rounds: int = 12) -> Tensor:
    """`count` directions [count, D] that lie in the middles of groups of the given ones [N, D]."""
    found = directions[torch.randperm(len(directions), device=directions.device)[:count]]
    for _ in range(rounds):
        nearest = (directions @ found.T).argmax(1)
        sums = torch.zeros_like(found).index_add_(0, nearest, directions)
        empty = sums.norm(dim=1) < 1e-6
        sums[empty] = directions[torch.randint(len(directions), (int(empty.sum()),))]
        found = F.normalize(sums)
    return found
