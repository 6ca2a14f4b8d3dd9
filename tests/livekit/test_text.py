"""C1 to C7: what goes in, however odd, comes out once and ends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine
from tests.livekit.helpers import (
    FERRY,
    ONCE,
    Log,
    Stopwatch,
    collect,
    pcm_of,
    say,
    seconds_of,
    text_of,
)
from tts_plugin.adapters.livekit import TTS

UNSPEAKABLE = ["...", "🙂", "**", "- ", "*** ---", "?!", "👍🏽 🎉", "```", "\u200b…", "…\n\n—", "# ", "\x00"]


async def test_c01_empty_input_ends_within_a_second_without_asking_the_engine(
    plugin: TTS, engine: BookedEngine
) -> None:
    log, watch = Log.of(plugin), Stopwatch()
    assert await say(plugin) == []
    assert watch.s < 1.0
    assert (log.errors, log.metrics, engine.started) == ([], [], 0)


async def test_c01_input_that_ends_later_is_waited_for(plugin: TTS) -> None:
    stream = plugin.stream(conn_options=ONCE)
    asyncio.get_running_loop().call_later(0.2, stream.end_input)
    assert await collect(stream) == []


async def test_c02_whitespace_is_no_audio_and_no_error(plugin: TTS, engine: BookedEngine) -> None:
    log, watch = Log.of(plugin), Stopwatch()
    for text in (" ", "\n\n", " \t\r\n "):
        assert await say(plugin, text) == []
        assert await collect(plugin.synthesize(text, conn_options=ONCE)) == []
    assert watch.s < 1.0
    assert (log.errors, engine.started) == ([], 0)


async def test_c03_unspeakable_text_is_a_short_silence_and_no_error(plugin: TTS) -> None:
    log = Log.of(plugin)
    for text in UNSPEAKABLE:
        watch = Stopwatch()
        for events in (await say(plugin, text), await collect(plugin.synthesize(text))):
            assert seconds_of(events) == pytest.approx(0.1, abs=0.011)
            assert not pcm_of(events).any()
            assert text_of(events) == text
        assert watch.s < 1.0
    assert log.errors == []


async def test_c03_markup_around_words_is_not_spoken(plugin: TTS, engine: BookedEngine) -> None:
    await say(plugin, "That is **really** bold.")
    assert engine.texts == ["That is really bold."]


async def test_c03_an_emoji_cut_in_two_is_left_out(plugin: TTS, engine: BookedEngine) -> None:
    log = Log.of(plugin)
    await say(plugin, "Hello there \ud83d", "\ude42 my good friend.")
    assert "".join(engine.texts).split()[:2] == ["Hello", "there"]
    assert "".join(engine.texts).endswith("my good friend.")
    assert log.errors == []


async def test_c04_ending_and_flushing_twice_speaks_once(plugin: TTS, engine: BookedEngine) -> None:
    stream = plugin.stream(conn_options=ONCE)
    stream.push_text(FERRY)
    for step in (stream.flush, stream.flush, stream.end_input, stream.end_input, stream.flush):
        step()
    stream.push_text("Too late.")
    events = await collect(stream)
    assert " ".join(engine.texts) == FERRY
    assert len(pcm_of(events)) == pytest.approx(engine.samples, abs=0.011 * 24000)


async def test_c05_one_character_at_a_time_sounds_like_the_whole(plugin: TTS) -> None:
    whole, single = await say(plugin, FERRY), await say(plugin, *FERRY)
    assert np.array_equal(pcm_of(whole), pcm_of(single))
    assert text_of(single) == FERRY


async def test_c06_a_flush_in_mid_sentence_speaks_everything_once(plugin: TTS, engine: BookedEngine) -> None:
    stream = plugin.stream(conn_options=ONCE)
    stream.push_text("The ferry to the isl")
    stream.flush()
    stream.end_input()
    await collect(stream)
    assert engine.texts == ["The ferry to the isl"]


async def test_c07_text_after_a_flush_is_dropped_by_livekit_and_nothing_hangs(
    plugin: TTS, engine: BookedEngine
) -> None:
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=ONCE)
    stream.push_text("One is spoken. ")
    stream.flush()
    stream.push_text("Two is dropped.")
    stream.end_input()
    assert seconds_of(await asyncio.wait_for(collect(stream), 2.0)) > 0.2
    assert (engine.texts, log.errors) == (["One is spoken."], [])


async def test_c07_dropped_text_alone_is_no_failure(plugin: TTS) -> None:
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=ONCE)
    stream.push_text("  ")
    stream.flush()
    stream.push_text("Dropped.")
    stream.end_input()
    await asyncio.wait_for(collect(stream), 2.0)
    assert log.errors == []


async def test_a_long_text_without_punctuation_is_spoken_whole(
    plugin_over: PluginOver,
) -> None:
    engine = BookedEngine(seconds_per_char=0.001)
    words = " ".join(f"word{number}" for number in range(400))
    events = await collect((await plugin_over(engine)).synthesize(words, conn_options=ONCE))
    assert " ".join(engine.texts) == words
    assert text_of(events) == words
