"""`sparkvoice bench capacity`: how many streams this machine carries without an underrun, kept for the
engine server to go by."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tts_plugin import interrupt
from tts_plugin.arguments import Parser, number, whole_number
from tts_plugin.bench.concurrency import Run, add_options, lead_of, load_of, measured
from tts_plugin.bench.levels import Level
from tts_plugin.bench.report import save_rows, show_rows
from tts_plugin.bench.speakers import cast, served
from tts_plugin.capacity import Capacity, save
from tts_plugin.config import load_settings

_FAILED = 1  # the exit code where not even one stream is carried


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench capacity", description="Streams at once without an underrun.")
    add_options(parser)
    parser.add_argument("--most", type=whole_number(1, 4096), default=64, metavar="N", help="tried (64)")
    parser.add_argument(
        "--first-ms",
        type=number(1, 60_000),
        metavar="MS",
        help="p95 of the time from enough text to the first frame that still counts as carried",
    )
    parser.add_argument(
        "--confirm",
        type=whole_number(1, 20),
        default=2,
        metavar="N",
        help="runs more, of the number found (2)",
    )
    parser.add_argument("--no-save", action="store_true", help="only print it")
    parser.add_argument("--json", type=Path, metavar="F", help="write every level tried to F")
    options = parser.parse_args(argv)
    settings = load_settings(options.config)
    voice = cast(settings, options.voice)
    run = Run(voice.engine, settings, voice)
    streams, levels = interrupt.run(lambda: _measure(options, run))
    rows = [asdict(row) for row in levels]
    show_rows("bench capacity", [{key: row[key] for key in _COLUMNS} for row in rows])
    if options.json:
        save_rows(options.json, "capacity", rows, {"voice": voice.id, "streams": streams})
    if not streams:
        print(f"{voice.engine}: not even one stream without an underrun; nothing is kept")
        return _FAILED
    print(f"{voice.engine}: {streams} streams at once without an underrun")
    if streams == options.most:
        print(f"(as many as were tried; --most tries more than {options.most})")
    if not options.no_save:
        best = next(row for row in levels if row.streams == streams)
        facts = {"first_p95_ms": best.first_p95, "made_p95_ms": best.made_p95, "seconds": options.seconds}
        path = save(voice.engine, settings.engine, Capacity(streams, facts))
        print(f"kept in {path}; an engine server goes by it from its next start")
    return 0


_COLUMNS = (
    "streams",
    "turns",
    "first_p50",
    "first_p95",
    "made_p95",
    "dry",
    "dry_ms",
    "audio_per_s",
    "errors",
    "cores",
)


async def _measure(options: argparse.Namespace, run: Run) -> tuple[int, list[Level]]:
    tried: list[Level] = []
    async with served(run.settings, run.voice, options.most, lead_of(options, run.settings)) as stage:

        async def carries(streams: int, attempt: int) -> bool:
            load = replace(load_of(options, streams, 0.0), seed=options.seed + attempt)
            row = await measured(stage, run, load)
            tried.append(row)
            soon = options.first_ms is None or (row.made_p95 is not None and row.made_p95 <= options.first_ms)
            return row.holds and soon

        return await most_that(carries, options.most, options.confirm), tried


async def most_that(carries: Callable[[int, int], Awaitable[bool]], most: int, confirm: int) -> int:
    """The largest number up to `most` that that is carried, and then `confirm` times more; 0 if none is.

    Doubles until one is not, halves the gap, then steps down while a confirming run fails. carries: is given
    the number and which run of it this is, from 0.
    """
    good, bad, step = 0, most + 1, 1
    while step < bad:
        if await carries(step, 0):
            good, step = step, min(2 * step, most) if step < most else bad
        else:
            bad = step
    while bad - good > 1:
        middle = (good + bad) // 2
        if await carries(middle, 0):
            good = middle
        else:
            bad = middle
    while good and not await _again(carries, good, confirm):
        good -= 1
    return good


async def _again(carries: Callable[[int, int], Awaitable[bool]], streams: int, confirm: int) -> bool:
    for attempt in range(1, confirm + 1):
        if not await carries(streams, attempt):
            return False
    return True
