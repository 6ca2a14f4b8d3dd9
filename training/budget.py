"""How much of a run is done, counted in time that its own process computed.

A machine that is shared halts and slows a run; wall time would let its learning rate fall all the same.
"""

from __future__ import annotations

import time


class Budget:
    """minutes: that the run may compute in all, on so many cores at once; spent_s: that it has already."""

    def __init__(self, minutes: float, *, cores: int = 1, spent_s: float = 0.0) -> None:
        self._whole_s = minutes * 60
        self._cores = cores
        self._before_s = spent_s
        self._begun_s = time.process_time()

    @property
    def spent_s(self) -> float:
        return self._before_s + (time.process_time() - self._begun_s) / self._cores

    @property
    def done(self) -> float:
        """The share that is spent; 1 and more: stop."""
        return self.spent_s / self._whole_s
