"""C34 at a server that is full: LiveKit tries again, and not before the server said that it may."""

from __future__ import annotations

import asyncio
import time

import pytest
from livekit.agents import APIConnectOptions, APIStatusError

from tests.engine_server import ProbedTone, client, running, settings_of
from tests.livekit.conftest import PluginOver
from tests.livekit.engines import FailingEngine
from tests.livekit.helpers import FERRY, Log, Stopwatch, say, say_to_error, seconds_of
from tests.test_server import LONG
from tts_plugin import wire
from tts_plugin.adapters.backoff import Backoff
from tts_plugin.adapters.livekit import TTS
from tts_plugin.errors import Overloaded, SynthesisFailed

AGAIN = APIConnectOptions(max_retry=1, retry_interval=0.0, timeout=5.0)


async def test_a_turn_that_was_refused_is_spoken_once_there_is_a_place() -> None:
    settings = settings_of(engine={"voice": "tone", "tone": {"max_streams": 1}}, server={"max_waiting": 0})
    engine = ProbedTone()
    async with running(settings, build=lambda _: engine) as port, client(port) as other:
        await other.say(1, LONG)
        await other.audio(1)
        async with TTS(url=f"http://127.0.0.1:{port}", voice="tone") as plugin:
            log = Log.of(plugin)
            speaking = asyncio.create_task(say(plugin, FERRY, conn_options=AGAIN))
            while not log.errors:
                await asyncio.sleep(0.005)
            refused = log.errors[0].error
            assert isinstance(refused, APIStatusError)
            assert refused.status_code == 429
            assert isinstance(refused.body, dict)
            assert refused.body["code"] == "overloaded"
            assert refused.body["retry_after_s"] >= 0.5
            await other.send(wire.Cancel(context=1))
            await other.over(1)
            assert seconds_of(await speaking) > 1.0
            assert [error.recoverable for error in log.errors] == [True]


async def test_the_servers_advice_is_waited_for_and_the_last_attempts_error_is_told_at_once(
    plugin_over: PluginOver,
) -> None:
    engine = FailingEngine(Overloaded("full", 0.6), Overloaded("full", 30.0))
    plugin, watch = await plugin_over(engine), Stopwatch()
    _, error = await say_to_error(plugin, FERRY, AGAIN)
    assert isinstance(error, APIStatusError)
    assert 0.6 <= watch.s < 4.0


async def test_nobody_is_kept_waiting_for_longer_than_a_connection_may_take(plugin_over: PluginOver) -> None:
    engine = FailingEngine(Overloaded("full", 30.0))
    plugin, watch = await plugin_over(engine), Stopwatch()
    options = APIConnectOptions(max_retry=1, retry_interval=0.0, timeout=0.5)
    assert seconds_of(await say(plugin, FERRY, conn_options=options)) > 1.0
    assert 0.5 <= watch.s < 10.0


async def test_a_turn_that_waits_to_be_tried_again_can_be_left(plugin_over: PluginOver) -> None:
    engine = FailingEngine(Overloaded("full", 30.0))
    plugin = await plugin_over(engine)
    log = Log.of(plugin)
    stream = plugin.stream(conn_options=APIConnectOptions(max_retry=1, timeout=30.0))
    stream.push_text(FERRY)
    stream.end_input()
    while not log.errors:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.15)  # LiveKit's own pause
    begun_s = time.monotonic()
    await stream.aclose()
    assert time.monotonic() - begun_s < 2.0


def test_only_an_overload_is_backed_off_from() -> None:
    now_s = 10.0
    backoff = Backoff(5.0, clock=lambda: now_s)
    backoff.note(SynthesisFailed("broken"))
    backoff.note(Overloaded("full"))
    assert backoff.left_s == 0.0
    backoff.note(Overloaded("full", 2.0))
    assert backoff.left_s == pytest.approx(2.0)
    now_s += 1.5
    assert backoff.left_s == pytest.approx(0.5)
    backoff.note(Overloaded("full", 60.0))
    assert backoff.left_s == pytest.approx(5.0)
