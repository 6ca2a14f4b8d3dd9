"""Soak: many turns one after the other, some of them cut off, and what memory they leave behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from tts_plugin.bench.crowd import write
from tts_plugin.bench.process import spent_by
from tts_plugin.bench.speakers import Stage
from tts_plugin.bench.texts import reply

_AT_ONCE = 4
_SETTLED = 0.2  # share of the turns after which what is kept for good has been made
_SAMPLES = 100
_CUT_FRAMES = (1, 12)  # a turn that is cut off is, after so many frames


@dataclass(frozen=True, slots=True)
class Soaked:
    """resident_mb: after the share of turns that settles it, and at the end. kb_a_turn: the slope of a line
    through what was resident from then on, by least squares, and ± twice its standard error."""

    turns: int
    cancelled: int
    seconds: float
    settled_mb: float
    end_mb: float
    kb_a_turn: float
    kb_a_turn_error: float

    @property
    def is_flat(self) -> bool:
        """No growth that could be told from none, or none that matters: 1 MB in 1000 turns."""
        return self.kb_a_turn <= max(self.kb_a_turn_error, 1.0)


async def soaked(stage: Stage, turns: int, cancel: float, seed: int) -> Soaked:
    """Speak so many, `cancel` of them cut off, some at once and as fast as it goes; Linux only."""
    draw = np.random.default_rng(seed)
    queue = [(reply(draw), bool(draw.random() < cancel)) for _ in range(turns)]
    cancelled = sum(cut for _, cut in queue)
    done: list[float] = []  # resident memory after each turn
    begun_s = time.monotonic()

    async def work() -> None:
        while queue:
            text, cut = queue.pop()
            await _turn(stage, text, int(draw.integers(*_CUT_FRAMES)) if cut else None, draw)
            spent = spent_by(stage.pid)
            done.append(float("nan") if spent is None else spent.resident_mb)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())
    settled = round(turns * _SETTLED)
    slope, error = _line(np.array(done[settled:]))
    return Soaked(
        turns,
        cancelled,
        round(time.monotonic() - begun_s, 1),
        round(done[settled], 1),
        round(done[-1], 1),
        round(slope * 1024, 2),
        round(2 * error * 1024, 2),
    )


async def _turn(stage: Stage, text: str, frames: int | None, draw: np.random.Generator) -> None:
    async with stage.open() as spoken:
        await write(spoken, text, None, draw)
        came = 0
        async for _ in spoken:
            came += 1
            if came == frames:
                await spoken.cancel()
                return


def _line(values: np.ndarray) -> tuple[float, float]:
    """Slope a step, and its standard error. Neighbours are alike, so it is taken over means of blocks."""
    blocks = np.array(
        [block.mean() for block in np.array_split(values, min(_SAMPLES, max(3, len(values) // 5)))]
    )
    at = np.arange(len(blocks)) * (len(values) / len(blocks))
    at = at - at.mean()
    slope = float(at @ blocks / (at @ at))
    rest = blocks - blocks.mean() - slope * at
    return slope, float(np.sqrt(rest @ rest / max(1, len(blocks) - 2) / (at @ at)))
