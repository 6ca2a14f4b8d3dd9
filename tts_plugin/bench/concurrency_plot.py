"""The picture of `sparkvoice bench concurrency`: first audio and dry turns by the number of streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from tts_plugin.bench.levels import Level


def plot(rows: Sequence[Level], path: Path) -> None:
    """Write it as a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), constrained_layout=True)
    for name in dict.fromkeys(row.name for row in rows):
        mine = [row for row in rows if row.name == name]
        streams = [row.streams for row in mine]
        (line,) = above.plot(streams, [row.first_p95 for row in mine], "o-", label=f"{name}, p95")
        above.plot(
            streams, [row.first_p50 for row in mine], "s--", color=line.get_color(), label=f"{name}, p50"
        )
        dry = [100 * row.dry / row.turns if row.turns else 0.0 for row in mine]
        below.plot(streams, dry, "o-", color=line.get_color(), label=name)
    above.set(ylabel="first text to first audio, ms", title="Streams at once")
    below.set(xlabel="streams", ylabel="turns that ran dry, %", xscale="log", ylim=(-2, 102))
    below.set_xticks([row.streams for row in rows], [str(row.streams) for row in rows])
    below.minorticks_off()
    above.legend()
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
