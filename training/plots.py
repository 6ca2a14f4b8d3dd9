"""Draws how the runs went: one picture for each, a panel for every number that it told."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt


def plot(run: Path) -> list[Path]:
    """A PNG beside every progress file (*.csv) in the folder."""
    return [_plotted(path) for path in sorted(run.glob("*.csv"))]


def _plotted(path: Path) -> Path:
    values: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for step, name, value in csv.reader(file):
            values[name].append((int(step), float(value)))
    figure, axes = plt.subplots(len(values), 1, sharex=True, figsize=(7, 2 * len(values)), squeeze=False)
    for axis, (name, points) in zip(axes[:, 0], values.items(), strict=True):
        axis.plot(*zip(*points, strict=True))
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel("steps")
    figure.suptitle(path.stem)
    figure.tight_layout()
    picture = path.with_suffix(".png")
    figure.savefig(picture, dpi=100)
    plt.close(figure)
    return picture
