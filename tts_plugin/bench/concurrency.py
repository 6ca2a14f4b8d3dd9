"""`sparkvoice bench concurrency`: what many streams at once come to, by the number of streams."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tts_plugin import interrupt
from tts_plugin.arguments import Parser, number, whole_number
from tts_plugin.bench.crowd import Load, gather
from tts_plugin.bench.levels import Level, level
from tts_plugin.bench.process import spent_by
from tts_plugin.bench.report import save_rows, show_rows
from tts_plugin.bench.soak import Soaked, soaked
from tts_plugin.bench.speakers import Stage, cast, in_process, served
from tts_plugin.bench.texts import LLM_TOKENS_PER_S
from tts_plugin.config import Settings, load_settings
from tts_plugin.engine import Engine, load_engine
from tts_plugin.errors import BadRequest
from tts_plugin.limits import MAX_LEAD_S
from tts_plugin.voices import Voice

_LEVELS = (1, 2, 4, 8, 16, 32)
_MOST = 4096
_SERVERS_OWN = "as set"


@dataclass(frozen=True, slots=True)
class Run:
    """One way to speak, at every level. name: of its rows."""

    name: str
    settings: Settings
    voice: Voice


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench concurrency", description="Many streams at once, level by level.")
    add_options(parser)
    parser.add_argument(
        "--streams", type=_levels, default=_LEVELS, metavar="N,N", help="default: 1,2,4 .. 32"
    )
    parser.add_argument("--cancel", type=number(0, 1), default=0.0, metavar="X", help="share that is cut off")
    parser.add_argument(
        "--backend", metavar="NAME,NAME", help="language models of Spark, one after the other"
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="Spark in this process, beside 50-token chunks with cross-fades and whole utterances",
    )
    parser.add_argument(
        "--soak", type=whole_number(20, 1_000_000), metavar="N", help="so many turns, and memory"
    )
    parser.add_argument("--json", type=Path, metavar="F")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="needs matplotlib")
    options = parser.parse_args(argv)
    runs = _runs(options)
    if options.soak:
        return _soak(options, runs)
    rows = interrupt.run(lambda: _measure(options, runs))
    show_rows("bench concurrency (ms from a turn's first text)", [_shown(row) for row in rows])
    for line in _ratios(rows) if options.baseline else ():
        print(line)
    if options.json:
        save_rows(options.json, "concurrency", [asdict(row) for row in rows], _how(options, runs))
    if options.plot:
        from tts_plugin.bench.concurrency_plot import plot  # needs matplotlib

        plot(rows, options.plot)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this bench and `bench capacity` have in common."""
    parser.add_argument("--config", type=Path, metavar="F", help="settings of the engine server")
    parser.add_argument("--voice", metavar="ID", help="default: the server's own")
    parser.add_argument("--seconds", type=number(0.5, 3600), default=20.0, metavar="S", help="a level (20)")
    parser.add_argument(
        "--text-rate",
        type=number(0, 10_000),
        default=LLM_TOKENS_PER_S,
        metavar="T",
        help="tokens a second that the text comes with (30); 0: all at once",
    )
    parser.add_argument(
        "--buffer-ms", type=number(0, 10_000), default=0.0, metavar="MS", help="of each listener (0)"
    )
    parser.add_argument(
        "--lead",
        type=number(0, MAX_LEAD_S),
        metavar="S",
        help="how far a turn is made ahead of its listener (default: as set); 0: as fast as it goes",
    )
    parser.add_argument("--seed", type=whole_number(0, 2**32 - 1), default=1)


def load_of(options: argparse.Namespace, streams: int, cancel: float) -> Load:
    return Load(
        streams=streams,
        seconds=options.seconds,
        tokens_per_s=options.text_rate or None,
        cancel=cancel,
        buffer_s=options.buffer_ms / 1000,
        seed=options.seed,
    )


def lead_of(options: argparse.Namespace, settings: Settings) -> float | None:
    if options.lead is None:
        return settings.engine.lead_s
    return float(options.lead) or None


async def measured(stage: Stage, run: Run, load: Load) -> Level:
    """One level."""
    before = spent_by(stage.pid)
    takes = await gather(stage.open, load)
    after = spent_by(stage.pid)
    spent = after.since(before) if before is not None and after is not None else None
    first = run.settings.engine.spark.latency.balanced  # what a turn asks for unless told otherwise
    return level(run.name, load.streams, takes, load.seconds, spent, first.first + first.ahead - 1)


def _runs(options: argparse.Namespace) -> list[Run]:
    if options.backend is None:
        settings = load_settings(options.config)
        voice = cast(settings, options.voice)
        runs = [Run(voice.engine, settings, voice)]
    else:
        runs = []
        for name in options.backend.split(","):
            settings = load_settings(options.config, engine={"spark": {"lm": name}})
            runs.append(Run(name, settings, cast(settings, options.voice)))
    if (options.backend or options.baseline) and any(run.voice.engine != "spark" for run in runs):
        raise BadRequest("--backend and --baseline are about Spark: name a voice of it, or its settings")
    return runs


async def _measure(options: argparse.Namespace, runs: Sequence[Run]) -> list[Level]:
    rows = []
    for run in runs:
        async with _stages(options, run) as stages:
            for name, stage in stages.items():
                for streams in options.streams:
                    load = load_of(options, streams, options.cancel)
                    rows.append(await measured(stage, replace(run, name=name), load))
    return rows


@asynccontextmanager
async def _stages(options: argparse.Namespace, run: Run) -> AsyncIterator[dict[str, Stage]]:
    """The ways to speak that one loaded engine offers, by name."""
    lead_s = lead_of(options, run.settings)
    if not options.baseline:
        async with served(run.settings, run.voice, max(options.streams, default=1), lead_s) as stage:
            yield {run.name: stage}
        return
    from tts_plugin.bench.crossfade import CHUNKS, WHOLE, CrossFadeEngine  # needs torch
    from tts_plugin.engines.spark.engine import SparkEngine

    engine = load_engine(run.voice.engine, run.settings.engine)
    assert isinstance(engine, SparkEngine)
    try:
        await engine.warm_up()
        policies: dict[str, Engine] = {
            run.name: engine,
            f"{run.name}, 50-token chunks": CrossFadeEngine(engine, CHUNKS),
            f"{run.name}, whole segments": CrossFadeEngine(engine, WHOLE),
        }
        yield {name: in_process(made, run.voice, lead_s, os.getpid()) for name, made in policies.items()}
    finally:
        await engine.aclose()


def _soak(options: argparse.Namespace, runs: Sequence[Run]) -> int:
    async def soak(run: Run) -> Soaked:
        async with served(run.settings, run.voice, 16, None) as stage:
            return await soaked(stage, options.soak, options.cancel, options.seed)

    found = {run.name: interrupt.run(lambda run=run: soak(run)) for run in runs}  # type: ignore[misc]
    rows = [{"name": name, **asdict(one)} for name, one in found.items()]
    show_rows("bench concurrency --soak (resident memory of the engine server)", rows)
    if options.json:
        save_rows(options.json, "soak", rows, _how(options, runs))
    return 0 if all(one.is_flat for one in found.values()) else 1


def _ratios(rows: Sequence[Level]) -> list[str]:
    """How many times sooner than each other policy the first of the same streams sounds."""
    ours = {row.streams: row for row in rows if "," not in row.name}
    told = []
    for row in rows:
        first = ours[row.streams].first_p50
        if "," in row.name and first and row.first_p50:
            told.append(
                f"{row.streams} streams: first audio {row.first_p50 / first:.1f} times sooner than {row.name}"
            )
    return told


def _shown(row: Level) -> dict[str, object]:
    """For the table: what there is nothing of is a dash, and memory is for the JSON."""
    cells = {name: "-" if value is None else value for name, value in asdict(row).items()}
    del cells["resident_mb"]
    return cells


def _how(options: argparse.Namespace, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "voice": runs[0].voice.id,
        "engine": runs[0].voice.engine,
        "settings": {run.name: _section(run) for run in runs},
        "lead_s": _SERVERS_OWN if options.lead is None else options.lead,
        "buffer_ms": options.buffer_ms,
        "text_rate": options.text_rate,
        "seconds": options.seconds,
        "cancel": options.cancel,
        "seed": options.seed,
    }


def _section(run: Run) -> Any:
    return run.settings.engine.model_dump(mode="json").get(run.voice.engine)


def _levels(text: str) -> tuple[int, ...]:
    one = whole_number(1, _MOST)
    return tuple(one(part) for part in text.split(","))
