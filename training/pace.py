"""How far a run is: its steps, until its budget is spent, each with the learning rate that it should have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch

from training.budget import Budget

_SAVE_S = 120.0
_LEAST = 0.03  # of the learning rate, at the end


class Pace:
    """The budget of a run in steps; step and spent_s are what a resumed run goes on from."""

    def __init__(self, learner: torch.optim.Optimizer, rate: float, *, warm: int) -> None:
        self._learner = learner
        self._rate = rate
        self._warm = warm
        self.step = 0
        self.spent_s = 0.0

    def steps(self, minutes: float, *, cores: int, decay: bool, save: Callable[[], None]) -> Iterator[float]:
        """The share that is done, before every step, until so many minutes were computed in all; saves every
        two minutes and at the end. decay: let the learning rate fall to nothing by then, else it stays."""
        budget = Budget(minutes, cores=cores, spent_s=self.spent_s)
        saved_s = time.monotonic()
        while (done := budget.done) < 1:
            falling = 0.5 * (1 + math.cos(math.pi * done)) if decay else 1.0
            for group in self._learner.param_groups:
                group["lr"] = (
                    self._rate * min(1, (self.step + 1) / self._warm) * (_LEAST + (1 - _LEAST) * falling)
                )
            yield done
            self.step += 1
            self.spent_s = budget.spent_s
            if time.monotonic() - saved_s > _SAVE_S:
                save()
                saved_s = time.monotonic()
        save()
