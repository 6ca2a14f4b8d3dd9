"""A crowd: callers who each have one turn after the other spoken and listen to it, all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tts_plugin.bench.listener import Listener
from tts_plugin.bench.speakers import Spoken
from tts_plugin.bench.texts import reply, tokens_of
from tts_plugin.errors import TTSError

_ARRIVE_S = 2.0  # within which the callers come
_PAUSE_S = 0.5  # between two turns of a caller on average
_CUT_S = (0.1, 2.5)  # after its first sound a turn is cut off
_JITTER = 0.5  # of the gap between two tokens of a language model, either way
_BURST = 3  # tokens that a network hands over at once ...
_BURSTS = 0.1  # ... now and then


@dataclass(frozen=True, slots=True)
class Load:
    """seconds: for which the callers call. tokens_per_s: of the language model that writes the text; None:
    it is there at once. cancel: share of the turns that are cut off. buffer_s: of every listener."""

    streams: int
    seconds: float = 20.0
    tokens_per_s: float | None = 30.0
    cancel: float = 0.0
    buffer_s: float = 0.0
    seed: int = 1


@dataclass(slots=True)
class Take:
    """One turn as it went; times in seconds from its first text. silent_s: it was left without a sound so
    long after. free_s: from the cut to the word that the engine is free. report: the engine side's."""

    first_s: float | None = None
    onset_s: float | None = None
    silent_s: float | None = None
    audio_s: float = 0.0
    underruns: int = 0
    dry_s: float = 0.0
    free_s: float | None = None
    orphan_ms: float | None = None
    error: str | None = None
    report: dict[str, Any] = field(default_factory=dict)


async def gather(open_turn: Callable[[], Spoken], load: Load) -> list[Take]:
    """The turns of a crowd; those still under way when time is up are told as far as they went."""
    takes: list[Take] = []
    seeds = np.random.SeedSequence(load.seed).spawn(load.streams)
    with suppress(TimeoutError):
        async with asyncio.timeout(load.seconds), asyncio.TaskGroup() as callers:
            for seed in seeds:
                callers.create_task(_call(open_turn, load, np.random.default_rng(seed), takes))
    return takes


async def _call(
    open_turn: Callable[[], Spoken], load: Load, draw: np.random.Generator, takes: list[Take]
) -> None:
    await asyncio.sleep(draw.uniform(0, min(_ARRIVE_S, load.seconds / 4)))
    while True:
        take = Take()
        takes.append(take)
        try:
            over_at_s = await _turn(open_turn(), load, draw, take)
        except* TTSError as failed:  # a group, since the writer is a task
            take.error = _first_of(failed).code
            over_at_s = time.monotonic()
        await asyncio.sleep(max(0.0, over_at_s - time.monotonic()) + draw.exponential(_PAUSE_S))


def _first_of(failed: ExceptionGroup[TTSError]) -> TTSError:
    first: TTSError | ExceptionGroup[TTSError] = failed
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


async def _turn(spoken: Spoken, load: Load, draw: np.random.Generator, take: Take) -> float:
    """Have it spoken and follow it; gives when its listener has heard it."""
    text, listener = reply(draw), Listener(load.buffer_s)
    cut_s = draw.uniform(*_CUT_S) if draw.random() < load.cancel else None
    async with spoken:
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(write(spoken, text, load.tokens_per_s, draw))
            try:
                async with asyncio.timeout(None) as scope:
                    async for frame in spoken:
                        now_s = time.monotonic()
                        if listener.first_s is None and cut_s is not None:
                            scope.reschedule(asyncio.get_running_loop().time() + cut_s)
                        listener.frame(frame, now_s)
                take.report = spoken.report
            except TimeoutError:
                cut_at_s = time.monotonic()
                take.orphan_ms = await spoken.cancel()
                take.free_s = time.monotonic() - cut_at_s
            finally:
                writer.cancel()
                _tell(take, listener, begun_s, is_over=bool(take.report) or take.free_s is not None)
    # who cut it off hears no more of it
    return time.monotonic() if take.free_s is not None else listener.over_at_s or time.monotonic()


def _tell(take: Take, listener: Listener, begun_s: float, *, is_over: bool) -> None:
    now_s = time.monotonic()
    if take.report:
        listener.end(now_s)
    elif not is_over:
        listener.leave(now_s)
    if listener.first_s is None:
        take.silent_s = now_s - begun_s
    else:
        take.first_s = listener.first_s - begun_s
        take.onset_s = None if listener.onset_s is None else listener.onset_s - begun_s
    take.audio_s, take.underruns, take.dry_s = listener.audio_s, listener.underruns, listener.dry_s


async def write(spoken: Spoken, text: str, tokens_per_s: float | None, draw: np.random.Generator) -> None:
    """Push the text whole, or as a language model writes it: at an uneven pace, now and then some at once."""
    tokens = [text] if tokens_per_s is None else tokens_of(text)
    at = 0
    while at < len(tokens):
        count = _BURST if draw.random() < _BURSTS else 1
        spoken.push("".join(tokens[at : at + count]))
        at += count
        if tokens_per_s is not None:
            await asyncio.sleep(count / tokens_per_s * draw.uniform(1 - _JITTER, 1 + _JITTER))
    spoken.end()
