"""C20 to C26: closing a stream frees its engine at once, at any moment, whatever the engine does."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from tests.leftovers import held_now
from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine, WedgedEngine
from tests.livekit.helpers import FERRY, ONCE, Log, Stopwatch, collect, pcm_of, say, until
from tts_plugin.adapters.livekit import TTS, SynthesizeStream

PROMPT_S = 0.25  # asked is 0.1; the rest is for a busy machine


async def _started(stream: SynthesizeStream, moment: str, engine: BookedEngine) -> None:
    """Bring the stream to the moment at which it will be closed."""
    if moment == "before any text":
        return
    stream.push_text(FERRY)
    if moment == "before the first audio":
        await until(lambda: engine.active)
    elif moment == "mid-audio":
        await anext(stream)
        await anext(stream)
    elif moment == "while flushing":
        stream.flush()
    elif moment == "after the end":
        stream.end_input()
        async for _ in stream:
            pass
    elif moment == "after the end of input":
        stream.end_input()
        await anext(stream)


MOMENTS = [
    "before any text",
    "before the first audio",
    "mid-audio",
    "while flushing",
    "after the end of input",
    "after the end",
]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_c20_closing_is_prompt_and_frees_the_engine(plugin_over: PluginOver, moment: str) -> None:
    engine = BookedEngine(first_s=0.05, pace=0.1)
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=ONCE)
    await _started(stream, moment, engine)
    watch = Stopwatch()
    await stream.aclose()
    assert watch.s < PROMPT_S
    await until(lambda: engine.active == 0, PROMPT_S)
    assert (engine.started, log.errors) == (engine.finished + engine.cancelled, [])
    stream.push_text("Nobody listens.")
    stream.flush()
    stream.end_input()


@pytest.mark.parametrize("times", ["one after another", "at once"])
async def test_c20_closing_twice_is_fine(plugin_over: PluginOver, times: str) -> None:
    engine = BookedEngine(pace=0.1)
    stream = (await plugin_over(engine)).stream(conn_options=ONCE)
    stream.push_text(FERRY)
    await anext(stream)
    watch = Stopwatch()
    if times == "at once":
        await asyncio.gather(stream.aclose(), stream.aclose())
    else:
        await stream.aclose()
        await stream.aclose()
    assert watch.s < PROMPT_S
    await until(lambda: (engine.active, engine.cancelled) == (0, 1), PROMPT_S)


async def test_c20_closing_a_synthesis_frees_the_engine_too(plugin_over: PluginOver) -> None:
    engine = BookedEngine(pace=0.1)
    plugin = await plugin_over(engine)
    async with plugin.synthesize(FERRY, conn_options=ONCE) as stream:
        await anext(stream)
    await until(lambda: (engine.active, engine.cancelled) == (0, 1), PROMPT_S)
    assert plugin.cancelled_streams == 1


async def test_c21_a_hundred_random_cancels_leave_nothing_behind(plugin_over: PluginOver) -> None:
    engine = BookedEngine(first_s=0.002, pace=0.02)
    plugin = await plugin_over(engine)
    expected = pcm_of(await say(plugin, FERRY))
    dice = random.Random(1)
    await asyncio.sleep(0.1)
    before = held_now()
    for _ in range(100):
        stream = plugin.stream(conn_options=ONCE)
        stream.push_text(FERRY[: dice.randint(0, len(FERRY))])
        if dice.random() < 0.3:
            stream.end_input()
        await asyncio.sleep(dice.random() * 0.02)
        await stream.aclose()
    await asyncio.sleep(0.05)
    left = held_now().more_than(before)
    assert engine.active == 0
    assert left == {}
    assert np.array_equal(pcm_of(await say(plugin, FERRY)), expected)


async def test_c22_nothing_of_a_cancelled_turn_is_heard_in_the_next(plugin: TTS) -> None:
    alone = pcm_of(await say(plugin, "New words."))
    async with plugin.stream(conn_options=ONCE) as stream:
        stream.push_text("Old words that go on and on and on.")
        await anext(stream)
    assert np.array_equal(pcm_of(await say(plugin, "New words.")), alone)


async def test_c23_of_twenty_at_once_those_not_cancelled_sound_as_if_alone(plugin: TTS) -> None:
    texts = [f"This is text number {number}, and it says so." for number in range(20)]
    alone = [pcm_of(await say(plugin, text)) for text in texts]
    streams = [plugin.stream(conn_options=ONCE) for _ in texts]
    for stream, text in zip(streams, texts, strict=True):
        stream.push_text(text)
        stream.end_input()

    async def close(stream: SynthesizeStream) -> None:
        await anext(stream)
        await stream.aclose()

    closing = asyncio.gather(*(close(stream) for stream in streams[1::2]))
    kept = await asyncio.gather(*(collect(stream) for stream in streams[::2]))
    await closing
    for events, expected in zip(kept, alone[::2], strict=True):
        assert np.array_equal(pcm_of(events), expected)


async def test_c24_the_only_place_of_an_engine_is_free_after_a_close(plugin_over: PluginOver) -> None:
    engine = BookedEngine(capacity=1, pace=0.1)
    plugin = await plugin_over(engine)
    for _ in range(5):
        async with plugin.stream(conn_options=ONCE) as stream:
            stream.push_text(FERRY)
            await asyncio.wait_for(anext(stream), 1.0)
    await until(lambda: engine.started == engine.cancelled == 5)


async def test_c25_closing_the_tts_closes_its_streams(plugin_over: PluginOver) -> None:
    engine = BookedEngine(pace=0.1)
    plugin = await plugin_over(engine)
    streams = [plugin.stream(conn_options=ONCE) for _ in range(3)]
    for stream in streams:
        stream.push_text(FERRY)
    chunked = plugin.synthesize(FERRY, conn_options=ONCE)
    await until(lambda: engine.active == 4)
    await plugin.aclose()
    await until(lambda: (engine.active, engine.cancelled) == (0, 4), PROMPT_S)
    assert chunked.done
    await plugin.aclose()


async def test_c26_closing_does_not_wait_for_an_engine_that_holds_on(plugin_over: PluginOver) -> None:
    engine = WedgedEngine()
    plugin = await plugin_over(engine)
    stream = plugin.stream(conn_options=ONCE)
    stream.push_text(FERRY)
    await anext(stream)
    watch = Stopwatch()
    await stream.aclose()
    assert watch.s < PROMPT_S
    engine.let_go = True
    await until(lambda: engine.active == 0)
