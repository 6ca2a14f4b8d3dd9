"""C13 and C14: LiveKit's metrics, and our own count of turns that were cut off."""

from __future__ import annotations

import asyncio

import pytest

from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine
from tests.livekit.helpers import FERRY, ONCE, Log, collect, say, seconds_of, until
from tts_plugin.adapters.livekit import TTS


async def test_c13_a_turn_has_one_metrics_event_that_says_what_it_was(plugin: TTS) -> None:
    log = Log.of(plugin)
    events = await say(plugin, FERRY)
    (metrics,) = log.metrics
    assert 0 < metrics.ttfb < 1.0
    assert metrics.characters_count == len(FERRY)
    assert metrics.audio_duration == pytest.approx(seconds_of(events), abs=0.001)
    assert (metrics.cancelled, metrics.streamed) == (False, True)
    assert metrics.label == "tts_plugin.adapters.livekit.TTS"
    assert metrics.metadata is not None
    assert (metrics.metadata.model_name, metrics.metadata.model_provider) == ("tone", "sparkvoice")


async def test_c13_synthesize_has_one_metrics_event_too(plugin: TTS) -> None:
    log = Log.of(plugin)
    await collect(plugin.synthesize(FERRY, conn_options=ONCE))
    (metrics,) = log.metrics
    assert metrics.ttfb > 0
    assert (metrics.characters_count, metrics.streamed) == (len(FERRY), False)


async def test_c13_the_wait_for_a_slow_language_model_is_not_in_the_ttfb(plugin: TTS) -> None:
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=ONCE)
    await asyncio.sleep(0.3)
    for delta in ("Hello", " there,", " my", " good", " friend, how"):
        stream.push_text(delta)
        await asyncio.sleep(0.1)
    stream.push_text(" are you?")
    stream.end_input()
    await collect(stream)
    assert 0 < log.metrics[0].ttfb < 0.25


async def test_c13_the_wait_for_a_slow_engine_is(plugin_over: PluginOver) -> None:
    plugin = await plugin_over(BookedEngine(first_s=0.3))
    log = Log.of(plugin)
    await say(plugin, "Hello there.")
    assert 0.3 <= log.metrics[0].ttfb < 1.0


async def test_c14_a_stream_cut_off_has_no_metrics_and_is_counted(plugin_over: PluginOver) -> None:
    engine = BookedEngine(pace=0.5)
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    async with plugin.stream(conn_options=ONCE) as stream:
        stream.push_text(FERRY)
        await anext(stream)
    await until(lambda: engine.cancelled == 1)
    assert (log.metrics, plugin.cancelled_streams) == ([], 1)


async def test_c14_streams_that_end_or_never_spoke_are_not_counted(plugin: TTS) -> None:
    await say(plugin, "Hello there.")
    async with plugin.stream(conn_options=ONCE):
        pass
    assert plugin.cancelled_streams == 0
