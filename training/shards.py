"""Gradients of a step, its batch divided among threads of one core each.

Threads inside every operation wait for each other thousands of times a step; on a busy machine that made
steps eight times as slow. Here they wait once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Told = dict[str, float]


@dataclass(frozen=True, slots=True)
class Part:
    """Of one shard: what is to be made small, what is told of it, and tensors for its caller."""

    loss: Tensor
    told: Told
    kept: tuple[Tensor, ...] = ()


class Shards:
    """count: threads, and parts of every batch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "shard", initializer=lambda: torch.set_num_threads(1))

    def gradients(
        self, learnt: Sequence[nn.Parameter], part: Callable[[int], Part]
    ) -> tuple[Told, list[tuple[Tensor, ...]]]:
        """Call `part` for every shard, and leave the mean of the losses' gradients at the parameters. Returns
        the means of what was told, and what each part kept."""

        def one(shard: int) -> tuple[Part, tuple[Tensor | None, ...]]:
            made = part(shard)
            return made, torch.autograd.grad(made.loss, learnt, allow_unused=True)

        done = [one(0)] if self.count == 1 else list(self._pool.map(one, range(self.count)))
        with torch.no_grad():
            for at, parameter in enumerate(learnt):
                found = [grads[at] for _, grads in done]
                given = [gradient for gradient in found if gradient is not None]
                parameter.grad = torch.stack(given).sum(0).div_(self.count) if given else None
        told = {name: sum(made.told[name] for made, _ in done) / self.count for name in done[0][0].told}
        return told, [made.kept for made, _ in done]
