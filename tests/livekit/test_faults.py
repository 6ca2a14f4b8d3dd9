"""C30 to C34 and C37 over the network: a server that is down, stalls, resets, closes or sends garbage."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, APITimeoutError
from websockets.asyncio.server import ServerConnection

from tests.livekit import faulty
from tests.livekit.faulty import RATE, SECONDS
from tests.livekit.helpers import FERRY, ONCE, Log, Stopwatch, say, say_to_error, seconds_of
from tts_plugin.adapters.livekit import TTS

THRICE = APIConnectOptions(max_retry=2, retry_interval=0.0, timeout=5.0)
IMPATIENT = APIConnectOptions(max_retry=0, timeout=0.4)

PluginAt = Callable[[str], TTS]


@pytest.fixture
async def plugin_at() -> AsyncIterator[PluginAt]:
    async with AsyncExitStack() as stack:

        def make(url: str) -> TTS:
            plugin = TTS(url=url, token="secret", voice="tone", rate=RATE)
            stack.push_async_callback(plugin.aclose)
            return plugin

        yield make


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_a_server_that_keeps_the_protocol_is_heard(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.speak) as url:
        events = await say(plugin_at(url), FERRY)
    assert seconds_of(events) == pytest.approx(SECONDS, abs=0.011)


async def test_c30_a_server_that_is_down_is_a_connection_error_after_all_attempts(
    plugin_at: PluginAt,
) -> None:
    plugin = plugin_at(f"http://127.0.0.1:{_free_port()}")
    log = Log.of(plugin)
    _, error = await say_to_error(plugin, FERRY, THRICE)
    assert isinstance(error, APIConnectionError)
    assert "sparkvoice serve" in str(error)
    assert [event.recoverable for event in log.errors] == [True, True, False]
    assert log.metrics == []


async def test_c30_a_turn_that_says_nothing_does_not_need_the_server(plugin_at: PluginAt) -> None:
    plugin = plugin_at(f"http://127.0.0.1:{_free_port()}")
    log = Log.of(plugin)
    assert await say(plugin, "\n") == []
    assert log.errors == []


async def test_c31_a_server_that_never_finishes_the_handshake_is_a_timeout(plugin_at: PluginAt) -> None:
    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with faulty.tcp_server(say_nothing) as url:
        watch = Stopwatch()
        _, error = await say_to_error(plugin_at(url), FERRY, IMPATIENT)
    assert isinstance(error, APITimeoutError)
    assert 0.3 <= watch.s < 1.5


async def test_c31_a_server_that_does_not_speak_is_a_timeout(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.never_answer) as url:
        watch = Stopwatch()
        _, error = await say_to_error(plugin_at(url), FERRY, IMPATIENT)
    assert isinstance(error, APITimeoutError)
    assert 0.3 <= watch.s < 1.5


async def test_c32_a_stall_in_mid_audio_keeps_what_was_heard(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.stall_in_mid_audio) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        events, error = await say_to_error(
            plugin, FERRY, APIConnectOptions(max_retry=3, retry_interval=0.0, timeout=0.4)
        )
    assert isinstance(error, APITimeoutError)
    assert seconds_of(events) == pytest.approx(SECONDS / 2, abs=0.011)
    assert [event.recoverable for event in log.errors] == [False]


@pytest.mark.parametrize(
    "behave", [faulty.reset_in_mid_audio, faulty.close_in_mid_audio, faulty.half_close_in_mid_audio]
)
async def test_c33_a_connection_lost_in_mid_audio_is_an_error_within_a_second(
    plugin_at: PluginAt, behave: faulty.Behaviour
) -> None:
    async with faulty.server(behave) as url:
        plugin = plugin_at(url)
        watch = Stopwatch()
        events, error = await say_to_error(plugin, FERRY, THRICE)
        assert watch.s < 1.0
    assert isinstance(error, APIConnectionError)
    assert seconds_of(events) == pytest.approx(SECONDS / 2, abs=0.011)


async def test_c33_a_connection_lost_before_audio_is_tried_again(plugin_at: PluginAt) -> None:
    lost = 0

    async def lose_one(connection: ServerConnection) -> None:
        nonlocal lost
        lost += 1
        await (faulty.reset_before_audio if lost == 1 else faulty.speak)(connection)

    async with faulty.server(lose_one) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        events = await say(plugin, FERRY, conn_options=THRICE)
    assert seconds_of(events) == pytest.approx(SECONDS, abs=0.011)
    assert [event.recoverable for event in log.errors] == [True]


@pytest.mark.parametrize(
    ("code", "retryable", "status", "attempts"),
    [
        ("voice_not_found", False, 404, 1),
        ("unsupported_text", False, 422, 1),
        ("bad_request", False, 400, 1),
        ("overloaded", True, 429, 3),
        ("synthesis_failed", True, 503, 3),
        ("of_tomorrow", True, 503, 3),
        ("of_tomorrow", False, 400, 1),
    ],
)
async def test_c33_an_error_of_the_server_is_tried_again_only_if_it_may_help(
    plugin_at: PluginAt, code: str, retryable: bool, status: int, attempts: int
) -> None:
    async with faulty.server(faulty.fail(code, retryable=retryable)) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        _, error = await say_to_error(plugin, FERRY, THRICE)
    assert isinstance(error, APIStatusError)
    assert error.status_code == status
    assert "it says no" in error.message
    assert len(log.errors) == attempts


@pytest.mark.parametrize(
    ("status", "kind", "attempts"),
    [
        (401, APIStatusError, 1),
        (403, APIStatusError, 1),
        (503, APIStatusError, 3),
        (500, APIConnectionError, 3),
    ],
)
async def test_c33_a_refused_connection_is_tried_again_only_if_it_may_help(
    plugin_at: PluginAt, status: int, kind: type[APIError], attempts: int
) -> None:
    async with faulty.server(faulty.speak, status=status) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        _, error = await say_to_error(plugin, FERRY, THRICE)
    assert isinstance(error, kind)
    assert len(log.errors) == attempts


@pytest.mark.parametrize(
    "messages",
    [
        ("garbage",),
        (b"\x00\x01",),
        ("",),
        ("[]",),
        ('{"type": "done"}',),
        ('{"type": "error", "context": CONTEXT}',),
        ('{"type": "segment", "context": CONTEXT, "text_from": 0}',),
        ('{"type": "error", "code": "bad_request", "message": "what?", "retryable": false}',),
        (b"\x00\x00\x00\x01" + bytes(8) + b"odd",),
    ],
)
async def test_c34_garbage_is_an_api_error(plugin_at: PluginAt, messages: tuple[str | bytes, ...]) -> None:
    async with faulty.server(faulty.answer(*messages)) as url:
        _, error = await say_to_error(plugin_at(url), FERRY, APIConnectOptions(max_retry=0, timeout=0.4))
    assert str(error)


async def test_c34_what_is_not_http_is_a_connection_error(plugin_at: PluginAt) -> None:
    async def smtp(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await writer.drain()

    async with faulty.tcp_server(smtp) as url:
        _, error = await say_to_error(plugin_at(url), FERRY, ONCE)
    assert isinstance(error, APIConnectionError)


@pytest.mark.parametrize("seed", range(25))
async def test_c34_whatever_a_server_babbles_the_stream_ends_or_raises_an_api_error(
    plugin_at: PluginAt, seed: int
) -> None:
    async with faulty.server(faulty.babble(seed)) as url:
        plugin = plugin_at(url)
        stream = plugin.stream(conn_options=APIConnectOptions(max_retry=0, timeout=0.4))
        stream.push_text(FERRY)
        stream.end_input()
        async with asyncio.timeout(3.0), stream:
            try:
                async for event in stream:
                    assert event.frame.sample_rate == RATE
            except APIError:
                pass


async def test_c34_a_server_that_is_done_too_early_does_not_end_the_input(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.answer('{"type": "done", "context": CONTEXT, "timeline": {}}')) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        events = await say(plugin, FERRY)
    assert seconds_of(events) == pytest.approx(0.1, abs=0.011)
    assert log.errors == []


async def test_c37_a_server_restarted_between_turns_is_found_again(plugin_at: PluginAt) -> None:
    port = _free_port()
    plugin = plugin_at(f"http://127.0.0.1:{port}")
    log = Log.of(plugin)
    for _ in range(3):
        async with faulty.server(faulty.speak, port):
            assert seconds_of(await say(plugin, FERRY)) == pytest.approx(SECONDS, abs=0.011)
    assert log.errors == []


async def test_c37_a_server_that_closes_idle_connections_costs_no_error(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.speak_one_turn_a_connection) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        for _ in range(3):
            await say(plugin, FERRY)
            await asyncio.sleep(0.02)
    assert log.errors == []
    assert [metrics.connection_reused for metrics in log.metrics] == [False, False, False]


async def test_the_connection_is_reused_from_the_second_turn_on(plugin_at: PluginAt) -> None:
    async with faulty.server(faulty.speak) as url:
        plugin = plugin_at(url)
        log = Log.of(plugin)
        for _ in range(3):
            await say(plugin, FERRY)
    assert [metrics.connection_reused for metrics in log.metrics] == [False, True, True]
