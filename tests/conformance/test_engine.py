"""What every engine promises, checked on each of them.

A new engine is one entry in UNDER_TEST: its name in ENGINES, a voice, three texts, and, where the defaults
do not do for a test, its settings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tests.spark.codecs import loaded_once
from tts_plugin.audio import AudioFrame, Pcm
from tts_plugin.config import EngineSettings, LatencySettings, SparkSettings, WindowSettings
from tts_plugin.engine import ENGINES, Engine, Segment, Turn, open_engine
from tts_plugin.engines.spark.random_model import write_model
from tts_plugin.engines.spark.voice import SparkVoice
from tts_plugin.errors import BadRequest
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice

FREED_S = 0.05  # after the generator is closed
TRIES = 8  # a bound that the machine's other work may break is met by the best of these


@dataclass(frozen=True)
class Case:
    """texts: of one breath each; the last one the longest. settings: made once, given an empty folder.
    off: how far apart two samples may be that should be the same."""

    voice: Voice
    texts: tuple[str, str, str]
    settings: Callable[[Path], EngineSettings] = lambda _: EngineSettings()
    off: int = 0

    @property
    def engine(self) -> str:
        return self.voice.engine


_ENGLISH = ("Good morning.", "How can I help you today?", "Let me look that up, it only takes a moment.")


def _of(engine: str, language: str) -> Voice:
    return Voice(id="test", engine=engine, language=language, licence="none")


def _tiny_spark(folder: Path) -> EngineSettings:
    """Noise; its windows look as far ahead as its codec hears, so that no clock is in the samples."""
    write_model(folder / "tiny")
    exact = LatencySettings(balanced=WindowSettings(first=8, ahead=40), settled=40)
    return EngineSettings(spark=SparkSettings(model=folder / "tiny", latency=exact))


UNDER_TEST = [
    Case(_of("tone", "und"), _ENGLISH),
    Case(_of("hibari", "en-US"), _ENGLISH),
    Case(
        SparkVoice(id="test", engine="spark", language="en", licence="none", global_tokens=tuple(range(32))),
        _ENGLISH,
        _tiny_spark,
        off=1,  # another window, another rounding
    ),
]


@pytest.fixture(scope="module", params=UNDER_TEST, ids=lambda case: case.engine)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture(scope="module")
def settings(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSettings]:
    made = case.settings(tmp_path_factory.mktemp(case.engine))
    with nullcontext() if made.spark.model is None else loaded_once(made.spark.model):
        yield made


@pytest_asyncio.fixture
async def engine(case: Case, settings: EngineSettings) -> AsyncIterator[Engine]:
    async with open_engine(case.engine, settings) as opened:
        yield opened


@pytest.fixture
def turn(case: Case) -> Turn:
    return Turn(case.voice, seed=1)


class Text:
    """Segments of these texts, counting how many were asked for; `error` is raised in place of another."""

    def __init__(self, texts: Sequence[str], error: Exception | None = None) -> None:
        self._texts = texts
        self._error = error
        self.taken = 0

    async def segments(self) -> AsyncGenerator[Segment]:
        at = 0
        for index, text in enumerate(self._texts):
            await asyncio.sleep(0)
            self.taken += 1
            yield Segment(index, text, at, at + len(text))
            at += len(text) + 1
        if self._error is not None:
            raise self._error


async def spoken(engine: Engine, turn: Turn, texts: Sequence[str]) -> list[AudioFrame]:
    frames = engine.speak(turn, Text(texts).segments())
    async with aclosing(frames):
        return [frame async for frame in frames]


def joined(frames: Sequence[AudioFrame]) -> Pcm:
    return np.concatenate([frame.pcm for frame in frames])


def same(case: Case, one: Pcm, other: Pcm) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=case.off)


def test_every_engine_is_tested() -> None:
    assert {case.engine for case in UNDER_TEST} == set(ENGINES)


async def test_frames_are_contiguous_mono_int16_of_one_rate(case: Case, engine: Engine, turn: Turn) -> None:
    frames = await spoken(engine, turn, case.texts)
    at = 0
    for frame in frames:
        assert frame.start == at
        assert frame.rate == engine.rate
        assert frame.pcm.dtype == np.int16
        assert frame.pcm.ndim == 1
        at += len(frame.pcm)
    assert np.abs(joined(frames).astype(int)).max() > 1000, "it is heard"


async def test_segments_are_spoken_in_order_and_the_last_frame_of_each_says_so(
    case: Case, engine: Engine, turn: Turn
) -> None:
    frames = await spoken(engine, turn, case.texts)
    assert [frame.segment for frame in frames] == sorted(frame.segment for frame in frames)
    assert {frame.segment for frame in frames} == {0, 1, 2}
    for segment in range(3):
        ends = [frame.ends_segment for frame in frames if frame.segment == segment]
        assert ends == [False] * (len(ends) - 1) + [True]


async def test_no_segments_give_no_frames(engine: Engine, turn: Turn) -> None:
    assert await spoken(engine, turn, []) == []


async def test_empty_text_gives_no_frames(engine: Engine, turn: Turn) -> None:
    async with Utterance(engine, turn, lead_s=None) as utterance:
        utterance.push(" \n")
        utterance.end()
        assert [frame async for frame in utterance] == []


async def test_the_same_seed_gives_the_same_samples(case: Case, engine: Engine, turn: Turn) -> None:
    once, again = await spoken(engine, turn, case.texts), await spoken(engine, turn, case.texts)
    same(case, joined(once), joined(again))


async def test_another_engine_object_gives_the_same_samples(
    case: Case, settings: EngineSettings, engine: Engine, turn: Turn
) -> None:
    once = await spoken(engine, turn, case.texts)
    async with open_engine(case.engine, settings) as other:
        same(case, joined(once), joined(await spoken(other, turn, case.texts)))


async def test_a_segment_sounds_the_same_whenever_the_next_one_comes(
    case: Case, engine: Engine, turn: Turn
) -> None:
    alone = joined(await spoken(engine, turn, case.texts[:1]))
    first = joined([frame for frame in await spoken(engine, turn, case.texts) if frame.segment == 0])
    same(case, first, alone)


async def test_two_turns_at_once_do_not_mix(case: Case, engine: Engine, turn: Turn) -> None:
    alone = [joined(await spoken(engine, turn, [text])) for text in case.texts]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(spoken(engine, turn, [text])) for text in case.texts]
    for task, expected in zip(running, alone, strict=True):
        same(case, joined(task.result()), expected)


async def test_closing_early_frees_the_backend(case: Case, engine: Engine, turn: Turn) -> None:
    """Within 50 ms of the close another turn is under way, no later than it would be on an idle engine."""
    waits_s, idle_s = [], []
    for _ in range(TRIES):
        idle_s.append(await _first_frame_s(engine, turn, case.texts[0]))
        text = Text([case.texts[2]] * 50)
        frames = engine.speak(turn, text.segments())
        async with aclosing(frames):
            await anext(frames)
            closing = asyncio.create_task(anext(frames))
            await asyncio.sleep(0)  # the next frame is being made
            closing.cancel()
            await asyncio.wait([closing])
        taken, began_s = text.taken, time.monotonic()
        await _first_frame_s(engine, turn, case.texts[0])
        waits_s.append(time.monotonic() - began_s)
        assert text.taken == taken <= 2, "nothing more is taken from a turn that is closed"
    assert min(waits_s) < min(idle_s) + FREED_S


async def test_closing_is_quick(case: Case, engine: Engine, turn: Turn) -> None:
    closes_s = []
    for _ in range(TRIES):
        frames = engine.speak(turn, Text([case.texts[2]] * 50).segments())
        await anext(frames)
        began_s = time.monotonic()
        await frames.aclose()
        closes_s.append(time.monotonic() - began_s)
    assert min(closes_s) < FREED_S


async def test_closing_twice_and_before_the_first_frame_is_fine(
    case: Case, engine: Engine, turn: Turn
) -> None:
    text = Text(case.texts)
    unused = engine.speak(turn, text.segments())
    await unused.aclose()
    await unused.aclose()
    assert text.taken == 0
    used = engine.speak(turn, Text(case.texts).segments())
    await anext(used)
    await used.aclose()
    await used.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(used)
    assert await spoken(engine, turn, case.texts[:1])


async def test_an_error_reaches_the_iterator_once(case: Case, engine: Engine, turn: Turn) -> None:
    frames = engine.speak(turn, Text(case.texts[:1], BadRequest("no more")).segments())
    heard: list[AudioFrame] = []

    async def listen() -> None:
        async for frame in frames:
            heard.append(frame)

    async with aclosing(frames):
        with pytest.raises(BadRequest, match="no more"):
            await listen()
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
    assert joined(heard).size > 0
    assert await spoken(engine, turn, case.texts[:1]), "and the engine goes on"


async def test_a_faster_turn_is_shorter(case: Case, engine: Engine, turn: Turn) -> None:
    fast = Turn(turn.voice, seed=1, speed=1.5)
    normal_s = joined(await spoken(engine, turn, case.texts)).size / engine.rate
    fast_s = joined(await spoken(engine, fast, case.texts)).size / engine.rate
    assert 0.5 * normal_s < fast_s < 0.9 * normal_s


async def test_warming_up_and_closing_the_engine_twice_is_fine(case: Case, settings: EngineSettings) -> None:
    async with open_engine(case.engine, settings) as engine:
        await engine.warm_up()
        await engine.aclose()


async def _first_frame_s(engine: Engine, turn: Turn, text: str) -> float:
    began_s = time.monotonic()
    frames = engine.speak(turn, Text([text]).segments())
    async with aclosing(frames):
        await anext(frames)
        return time.monotonic() - began_s
