"""Figures of a bench: quantiles with their n, as a table for people and JSON for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Figure:
    """Quantiles of one measured quantity, in milliseconds unless its name says otherwise."""

    n: int
    p50: float
    p90: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        if not values:
            raise ValueError("a figure needs at least one value")
        p50, p90, p95 = (round(float(q), 2) for q in np.percentile(values, (50, 90, 95)))
        return cls(len(values), p50, p90, p95, round(float(max(values)), 2))


def show(title: str, figures: Mapping[str, Figure], notes: Sequence[str] = ()) -> None:
    """Print a table, one row a figure."""
    width = max(len(name) for name in figures)
    print(f"\n{title}")
    print(f"{'':{width}}  {'n':>5} {'p50':>9} {'p90':>9} {'p95':>9} {'max':>9}")
    for name, figure in figures.items():
        columns = " ".join(f"{value:9.1f}" for value in (figure.p50, figure.p90, figure.p95, figure.max))
        print(f"{name:{width}}  {figure.n:5d} {columns}")
    for note in notes:
        print(note)


def save(path: Path, bench: str, figures: Mapping[str, Figure], extra: Mapping[str, object]) -> None:
    """Write the figures with the machine they were measured on."""
    named = {name: asdict(figure) for name, figure in figures.items()}
    _write(path, {"bench": bench, "machine": _machine(), "figures": named, **extra})


def show_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of like keys as a table."""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def save_rows(
    path: Path, bench: str, rows: Sequence[Mapping[str, object]], extra: Mapping[str, object]
) -> None:
    """Write the rows with the machine they were measured on."""
    _write(path, {"bench": bench, "machine": _machine(), "rows": list(rows), **extra})


def _machine() -> dict[str, object]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _write(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
