"""C31 to C36 and C41: how an engine's failures reach LiveKit, and what is no failure."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, APITimeoutError

from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine, FailingEngine, StallingEngine
from tests.livekit.helpers import (
    FERRY,
    ONCE,
    Log,
    Stopwatch,
    collect,
    collect_to_error,
    pcm_of,
    say,
    say_to_error,
    seconds_of,
    until,
)
from tts_plugin.adapters.livekit import TTS, SynthesizeStream
from tts_plugin.engine import open_engine
from tts_plugin.errors import (
    BadRequest,
    ConfigError,
    EngineUnavailable,
    NotInstalled,
    Overloaded,
    SynthesisFailed,
    Unauthorized,
)

THRICE = APIConnectOptions(max_retry=2, retry_interval=0.0, timeout=5.0)
IMPATIENT = APIConnectOptions(max_retry=0, timeout=0.5)


async def test_c31_an_engine_that_makes_no_sound_is_a_timeout(plugin_over: PluginOver) -> None:
    plugin = await plugin_over(StallingEngine(frames=0))
    watch = Stopwatch()
    _, error = await say_to_error(plugin, FERRY, IMPATIENT)
    assert isinstance(error, APITimeoutError)
    assert 0.4 <= watch.s < 1.5


async def test_c31_each_attempt_times_out_and_is_reported(plugin_over: PluginOver) -> None:
    engine = StallingEngine(frames=0)
    plugin = await plugin_over(engine)
    log, watch = Log.of(plugin), Stopwatch()
    await say_to_error(plugin, FERRY, APIConnectOptions(max_retry=3, retry_interval=0.0, timeout=0.3))
    assert 1.0 <= watch.s < 3.0
    assert [error.recoverable for error in log.errors] == [True, True, True, False]
    assert log.metrics == []
    await until(lambda: engine.active == 0)


async def test_c31_it_is_a_timeout_although_the_language_model_writes_on(plugin_over: PluginOver) -> None:
    plugin = await plugin_over(StallingEngine(frames=0))
    stream = plugin.stream(conn_options=IMPATIENT)

    async def write() -> None:
        while True:
            stream.push_text("And so on. ")
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    watch = Stopwatch()
    _, error = await collect_to_error(stream)
    assert isinstance(error, APITimeoutError)
    assert watch.s < 1.5
    writing.cancel()


async def test_c31_a_synthesis_times_out_too(plugin_over: PluginOver) -> None:
    _, error = await collect_to_error(
        (await plugin_over(StallingEngine(frames=3))).synthesize(FERRY, conn_options=IMPATIENT)
    )
    assert isinstance(error, APITimeoutError)


async def test_c32_a_stall_in_mid_audio_is_an_error_that_is_not_tried_again(plugin_over: PluginOver) -> None:
    engine = StallingEngine(frames=20)
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    options = APIConnectOptions(max_retry=3, retry_interval=0.0, timeout=0.4)
    events, error = await say_to_error(plugin, FERRY, options)
    assert isinstance(error, APITimeoutError)
    assert seconds_of(events) == pytest.approx(20 * 0.02, abs=0.011)
    assert [error.recoverable for error in log.errors] == [False]
    assert engine.started == 1


ERRORS: list[tuple[Exception, type[APIError], int | None, int]] = [
    # what the engine raises, what LiveKit sees, its status, attempts
    (BadRequest("no"), APIStatusError, 400, 1),
    (ConfigError("no"), APIStatusError, 400, 1),
    (Unauthorized("no"), APIStatusError, 401, 1),
    (Overloaded("no"), APIStatusError, 429, 3),
    (SynthesisFailed("no"), APIStatusError, 503, 3),
    (EngineUnavailable("no"), APIConnectionError, None, 3),
    (NotInstalled("no"), APIConnectionError, None, 1),
    (ValueError("no"), APIStatusError, 503, 3),
    (TimeoutError("no"), APIStatusError, 503, 3),
    (OSError("no"), APIStatusError, 503, 3),
    (StopAsyncIteration(), APIStatusError, 503, 3),
]


async def test_c33_c34_every_error_is_one_livekit_knows_and_tried_again_only_if_it_may_help(
    plugin_over: PluginOver,
) -> None:
    engine = FailingEngine()
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    for raised, kind, status, attempts in ERRORS:
        for chunked in (False, True):
            engine.errors = [raised] * attempts
            log.errors.clear()
            if chunked:
                _, error = await collect_to_error(plugin.synthesize("Hello there.", conn_options=THRICE))
            else:
                _, error = await say_to_error(plugin, "Hello there.", THRICE)
            assert isinstance(error, kind), raised
            assert getattr(error, "status_code", None) == status, raised
            recoverable = [event.recoverable for event in log.errors]
            assert recoverable == [True] * (attempts - 1) + [False], raised


async def test_c33_an_error_in_mid_audio_keeps_what_was_said(plugin_over: PluginOver) -> None:
    engine = FailingEngine(SynthesisFailed("the device is gone"), frames=20)
    plugin = await plugin_over(engine)
    events, error = await say_to_error(plugin, FERRY, THRICE)
    assert "the device is gone" in str(error)
    assert seconds_of(events) == pytest.approx(20 * 0.02, abs=0.011)
    assert engine.started == 1
    assert seconds_of(await say(plugin, FERRY)) > 1.0


async def test_c35_a_language_model_that_pauses_is_no_timeout(plugin: TTS) -> None:
    log = Log.of(plugin)

    async def pause_after(begun: str) -> float:
        stream = plugin.stream(conn_options=APIConnectOptions(max_retry=0, timeout=0.2))
        stream.push_text(begun)
        going_on = asyncio.get_running_loop().call_later(0.8, go_on, stream)
        events = await collect(stream)
        going_on.cancel()
        return seconds_of(events)

    def go_on(stream: SynthesizeStream) -> None:
        stream.push_text(" and that was all.")
        stream.end_input()

    begun = [
        "Hello",
        "Hello ",
        "Well,",
        "...",
        "3.",
        "It leaves at nine. ",
        "It leaves at nine. It",
        "It leaves a",
    ]
    assert min(await asyncio.gather(*map(pause_after, begun))) > 0.3
    assert log.errors == []


async def test_c35_an_engine_that_is_far_enough_ahead_is_no_timeout(plugin_over: PluginOver) -> None:
    plugin = await plugin_over(BookedEngine(rate=16000, seconds_per_char=0.05))
    events = await say(plugin, FERRY, conn_options=APIConnectOptions(max_retry=0, timeout=0.15))
    assert seconds_of(events) == pytest.approx(len(FERRY) * 0.05, abs=0.1)


async def test_c36_a_second_attempt_speaks_the_whole_text_once(plugin_over: PluginOver) -> None:
    expected = pcm_of(await say(await plugin_over(BookedEngine()), FERRY))
    engine = FailingEngine(SynthesisFailed("first"), Overloaded("second"))
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=THRICE)
    half = len(FERRY) // 2
    stream.push_text(FERRY[:half])

    async def go_on() -> None:
        await asyncio.sleep(0.05)  # during the wait before the second attempt
        stream.push_text(FERRY[half:])
        stream.end_input()

    going_on = asyncio.create_task(go_on())
    events = await collect(stream)
    await going_on
    assert np.array_equal(pcm_of(events), expected)
    assert [event.recoverable for event in log.errors] == [True, True]
    assert len(log.metrics) == 1


async def test_c41_an_unknown_voice_is_refused_once_with_the_nearest(
    plugin_over: PluginOver, engine: BookedEngine
) -> None:
    plugin = await plugin_over(engine, voice="hibary")
    log = Log.of(plugin)
    _, error = await say_to_error(plugin, FERRY, THRICE)
    assert isinstance(error, APIStatusError)
    assert (error.status_code, error.retryable) == (404, False)
    assert 'did you mean "hibari"' in error.message
    assert len(log.errors) == 1
    assert engine.started == 0


async def test_text_in_a_language_the_voice_lacks_is_refused_by_name(plugin_over: PluginOver) -> None:
    async with open_engine("hibari") as hibari:
        plugin = await plugin_over(hibari, voice="hibari")
        log = Log.of(plugin)
        _, error = await say_to_error(plugin, "你好，世界。", THRICE)
        assert isinstance(error, APIStatusError)
        assert (error.status_code, error.retryable) == (422, False)
        assert "en-US" in error.message
        assert len(log.errors) == 1
        assert seconds_of(await say(plugin, "Hello, 你好.", conn_options=ONCE)) > 0.2
