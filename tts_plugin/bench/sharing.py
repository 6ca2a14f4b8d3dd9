"""`sparkvoice bench sharing`: how language model and codec of Spark get on with each other on one machine's
cores: first frame, speed, and gaps at listeners with and without a buffer, by threads and by latency."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tts_plugin.arguments import Parser, whole_number
from tts_plugin.bench.report import save_rows, show_rows
from tts_plugin.config import load_settings
from tts_plugin.engine import ENGINES, Engine, Segment, Turn, open_engine
from tts_plugin.errors import BadRequest
from tts_plugin.limits import Latency
from tts_plugin.strict_yaml import Json
from tts_plugin.voices import Voice, open_registry

BUFFER_S = 0.3  # of a listener who waits for so much before the first sound
_STAGGER_S = 0.7  # between the beginnings of turns at once
# 6 s of speech, so 300 tokens
_TEXT = "The ferry leaves at nine and takes two hours to cross the bay, so bring a coat."


@dataclass(frozen=True, slots=True)
class Heard:
    """One turn. pieces: when each came, in seconds from the push, and how long it sounds."""

    pieces: tuple[tuple[float, float], ...]

    @property
    def first_s(self) -> float:
        return self.pieces[0][0]

    @property
    def audio_s(self) -> float:
        return sum(length_s for _, length_s in self.pieces)

    @property
    def speed(self) -> float:
        """Seconds that a second of audio took (RTF)."""
        return self.pieces[-1][0] / self.audio_s

    def gap_s(self, buffer_s: float = 0.0) -> float:
        """Silence within the speech for a listener who starts when `buffer_s` of it are there."""
        come_s, begin_s = 0.0, self.pieces[-1][0]
        for at_s, length_s in self.pieces:
            come_s += length_s
            if come_s >= buffer_s:
                begin_s = at_s
                break
        gap_s, dry_s = 0.0, begin_s
        for at_s, length_s in self.pieces:
            gap_s += max(0.0, at_s - dry_s)
            dry_s = max(dry_s, at_s) + length_s
        return gap_s


def main(argv: Sequence[str]) -> int:
    parser = Parser("sparkvoice bench sharing", description="Spark's two halves on one machine's cores.")
    parser.add_argument("--config", type=Path, metavar="F.yaml")
    parser.add_argument(
        "--threads",
        action="append",
        metavar="LM/CODEC",
        help="threads of each, such as 2/1; may be given again (default: as in the settings)",
    )
    parser.add_argument("--latency", choices=get_args(Latency), action="append", help="may be given again")
    parser.add_argument("--streams", type=whole_number(1, 64), default=1, help="turns at once")
    parser.add_argument("--rounds", type=whole_number(1, 100), default=5)
    parser.add_argument("--json", type=Path, metavar="F")
    args = parser.parse_args(argv)
    rows = []
    for threads in args.threads or [None]:
        for latency in args.latency or ["balanced"]:
            heard = asyncio.run(_measured(args.config, threads, latency, args.streams, args.rounds))
            rows.append({"threads": threads or "-", "latency": latency, **row_of(heard)})
    title = f"bench sharing, {args.streams} at once, medians of {args.rounds * args.streams} turns"
    show_rows(title, rows)
    if args.json:
        save_rows(args.json, "sharing", rows, {"streams": args.streams, "rounds": args.rounds})
    return 0


def row_of(heard: Sequence[Heard]) -> dict[str, object]:
    """Medians, and how many of the turns had a gap behind a buffer."""
    return {
        "first_ms": round(statistics.median(turn.first_s for turn in heard) * 1000),
        "rtf": round(statistics.median(turn.speed for turn in heard), 2),
        "gaps_ms": round(statistics.median(turn.gap_s() for turn in heard) * 1000),
        "gaps_buffered_ms": round(statistics.median(turn.gap_s(BUFFER_S) for turn in heard) * 1000),
        "with_gaps": sum(turn.gap_s(BUFFER_S) > 0 for turn in heard),
        "audio_s": round(statistics.median(turn.audio_s for turn in heard), 1),
        "n": len(heard),
    }


async def _measured(
    config: Path | None, threads: str | None, latency: Latency, streams: int, rounds: int
) -> list[Heard]:
    settings = load_settings(config, engine={"spark": _threads(threads)}).engine
    voice = open_registry(settings, ENGINES).get(settings.voice or "spark-female")
    async with open_engine("spark", settings) as engine:
        return await rounds_of(engine, voice, latency, streams, rounds)


async def rounds_of(engine: Engine, voice: Voice, latency: Latency, streams: int, rounds: int) -> list[Heard]:
    """`rounds` times so many turns at once; one before them is not counted."""
    await _turn(engine, Turn(voice, seed=0, latency=latency), 0.0)
    heard: list[Heard] = []
    for number in range(rounds):
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(
                    _turn(engine, Turn(voice, seed=1 + number, latency=latency), at * _STAGGER_S)
                )
                for at in range(streams)
            ]
        heard += [task.result() for task in running]
    return heard


async def _turn(engine: Engine, turn: Turn, wait_s: float) -> Heard:
    await asyncio.sleep(wait_s)

    async def segments() -> AsyncIterator[Segment]:
        yield Segment(0, _TEXT, 0, len(_TEXT))

    pieces = []
    begun_s = time.perf_counter()
    async with aclosing(engine.speak(turn, segments())) as frames:
        async for frame in frames:
            pieces.append((time.perf_counter() - begun_s, len(frame.pcm) / frame.rate))
    return Heard(tuple(pieces))


def _threads(given: str | None) -> dict[str, Json]:
    if given is None:
        return {}
    lm, _, codec = given.partition("/")
    if not (lm.isdecimal() and codec.isdecimal()):
        raise BadRequest(f'--threads "{given}" should be such as 2/1: of the language model, of the codec')
    return {"openvino": {"threads": int(lm)}, "codec_threads": int(codec)}
