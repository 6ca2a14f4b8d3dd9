"""C8 to C12 and C45: what the frames look like, when they come, and the words that come with them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine
from tests.livekit.helpers import FERRY, ONCE, Stopwatch, collect, pcm_of, say, seconds_of, text_of, words_of
from tts_plugin.adapters.livekit import TTS
from tts_plugin.engine import open_engine


async def test_c08_one_request_one_segment_and_only_the_last_frame_is_final(plugin: TTS) -> None:
    events = await say(plugin, FERRY)
    assert len({event.request_id for event in events}) == 1
    assert events[0].request_id
    assert len({event.segment_id for event in events}) == 1
    assert events[0].segment_id
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
async def test_c09_every_frame_has_the_declared_rate_and_is_plain_pcm(
    plugin_over: PluginOver, rate: int
) -> None:
    plugin = await plugin_over(BookedEngine(rate=16000), rate=rate)
    events = await say(plugin, "Hello there.")
    assert {event.frame.sample_rate for event in events} == {plugin.sample_rate} == {rate}
    assert {event.frame.num_channels for event in events} == {plugin.num_channels} == {1}
    data = b"".join(bytes(event.frame.data) for event in events)
    assert len(data) % 2 == 0
    assert b"RIFF" not in data
    assert seconds_of(events) == pytest.approx(12 * 0.02, abs=0.011)


async def test_c10_frames_are_short_and_their_sum_is_what_the_engine_made(
    plugin: TTS, engine: BookedEngine
) -> None:
    events = await say(plugin, FERRY)
    assert events[0].frame.duration <= 0.02
    assert max(event.frame.duration for event in events) <= 0.04
    assert seconds_of(events) == pytest.approx(engine.samples / engine.rate, abs=0.011)


async def test_c11_audio_comes_before_the_input_ends(plugin: TTS) -> None:
    async with plugin.stream(conn_options=ONCE) as stream:
        stream.push_text(FERRY + " Bring a coat.")
        first = await asyncio.wait_for(anext(stream), 2.0)
        assert first.frame.duration > 0


async def test_c12_the_first_sentence_is_heard_while_the_second_is_typed(
    plugin: TTS, engine: BookedEngine
) -> None:
    async with plugin.stream(conn_options=ONCE) as stream:
        for char in "The ferry leaves at nine. It ta":
            stream.push_text(char)
        await asyncio.wait_for(anext(stream), 2.0)
        assert engine.texts == ["The ferry leaves at nine."]


async def test_c12_a_language_model_that_stalls_does_not_hold_a_finished_clause(plugin: TTS) -> None:
    watch = Stopwatch()
    async with plugin.stream(conn_options=ONCE) as stream:
        stream.push_text("Hello there my friend.")
        await asyncio.wait_for(anext(stream), 2.0)
    assert watch.s < 1.0


async def test_a_stream_is_synthesised_three_seconds_ahead_and_a_text_as_fast_as_it_goes(
    plugin_over: PluginOver,
) -> None:
    engine = BookedEngine(seconds_per_char=0.1)
    plugin = await plugin_over(engine)
    async with plugin.stream(conn_options=ONCE) as stream:
        stream.push_text(" ".join([FERRY] * 4))
        stream.end_input()
        await anext(stream)
        await asyncio.sleep(0.3)
        assert 3.0 <= engine.samples / engine.rate <= 4.5
    watch = Stopwatch()
    assert seconds_of(await collect(plugin.synthesize(FERRY))) > 7.0
    assert watch.s < 2.0


async def test_c45_words_join_to_the_text_in_order_and_within_the_audio(plugin: TTS) -> None:
    for deltas in ((FERRY,), tuple(FERRY), ("  Well, ", "it\n\nleaves ", "** at ", "nine...  ")):
        events = await say(plugin, *deltas)
        words = words_of(events)
        assert text_of(events) == "".join(deltas)
        assert all(word.start_s <= word.end_s for word in words)
        assert all(one.end_s <= two.start_s for one, two in pairwise(words))
        assert words[-1].end_s <= seconds_of(events) + 0.05


async def test_c45_words_come_no_later_than_their_audio(plugin: TTS) -> None:
    played_s = 0.0
    for event in await say(plugin, FERRY):
        played_s += event.frame.duration
        for word in words_of([event])[:-1]:
            assert word.start_s >= played_s - event.frame.duration - 0.4


async def test_c45_the_embedded_voice_times_its_words(plugin_over: PluginOver) -> None:
    async with open_engine("hibari") as hibari:
        events = await collect((await plugin_over(hibari, voice="hibari")).synthesize(FERRY))
    words = words_of(events)
    assert text_of(events) == FERRY
    assert len(words) == len(FERRY.split())
    assert words[-1].end_s == pytest.approx(seconds_of(events), abs=0.05)
    assert words[8].start_s == pytest.approx(seconds_of(events) / 2, abs=0.8)
    assert np.abs(pcm_of(events)).max() > 3000
