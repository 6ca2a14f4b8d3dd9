"""How a run goes: a line of averages every so many steps, on the terminal and in a CSV file for the plot."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from pathlib import Path

EVERY = 50  # steps


class Progress:
    """Averages of what each step reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun_s = time.monotonic()
        self._sums: dict[str, list[float]] = defaultdict(list)

    def note(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._sums[name].append(value)
        if (step + 1) % EVERY == 0:
            self._tell(step + 1)

    def _tell(self, step: int) -> None:
        averages = {name: sum(all_) / len(all_) for name, all_ in self._sums.items()}
        self._sums.clear()
        passed_s = time.monotonic() - self._begun_s
        told = "  ".join(f"{name} {value:.3f}" for name, value in averages.items())
        print(f"{step:>7}  {passed_s:6.0f} s  {told}", flush=True)
        with self._path.open("a", newline="") as file:
            rows = csv.writer(file)
            for name, value in averages.items():
                rows.writerow((step, name, f"{value:.5f}"))
