"""RemoteUtterance: the same turn, spoken by a real engine server over its websocket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.engine_server import ProbedTone, running, settings_of
from tts_plugin.engine import Turn
from tts_plugin.errors import ConfigError, EngineUnavailable, SynthesisFailed, Unauthorized, VoiceNotFound
from tts_plugin.link import Address
from tts_plugin.remote import Remote, RemoteUtterance, Request
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice

TEXT = "Hello there, my friend. This is a second sentence. And here is a third one, to be sure."
ASK = Request(rate=24000, voice="tone", lead_s=None)


@asynccontextmanager
async def remote_to(port: int, token: str | None = None) -> AsyncIterator[Remote]:
    async def locate() -> Address:
        return Address(f"http://127.0.0.1:{port}", token)

    remote = Remote(locate)
    try:
        yield remote
    finally:
        await remote.aclose()


async def samples(utterance: RemoteUtterance | Utterance, text: str = TEXT) -> np.ndarray:
    utterance.push(text)
    utterance.end()
    return np.concatenate([frame.pcm async for frame in utterance])


async def test_a_remote_turn_has_the_samples_spans_and_words_of_a_local_one() -> None:
    voice = Voice(id="tone", engine="tone", language="und", licence="Apache-2.0")
    async with Utterance(ProbedTone(), Turn(voice), lead_s=None) as local:
        expected = await samples(local)
    async with running() as port, remote_to(port) as remote, remote.utterance(ASK) as utterance:
        np.testing.assert_array_equal(await samples(utterance), expected)
    assert utterance.text.spans == local.text.spans
    assert utterance.spoken(1.0) == local.spoken(1.0) != ""
    assert utterance.server_timeline["audio_s"] == pytest.approx(utterance.timeline.audio_s)
    assert utterance.timeline.report()["first_frame_ms"] > 0


async def test_turns_of_one_connection_do_not_mix_and_the_connection_is_kept() -> None:
    async with running() as port, remote_to(port) as remote:
        await remote.connect()
        first = remote._link

        async def speak(text: str) -> np.ndarray:
            async with remote.utterance(ASK) as utterance:
                return await samples(utterance, text)

        texts = [f"Number {index} speaks here, all alone." for index in range(12)]
        alone = [await speak(text) for text in texts]
        together = await asyncio.gather(*map(speak, texts))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one, other)
        assert remote._link is first


@pytest.mark.parametrize("leave", ["before the first frame", "in the middle"])
async def test_leaving_the_block_frees_the_engine_on_the_server(leave: str) -> None:
    engine = ProbedTone()
    async with running(build=lambda name: engine) as port, remote_to(port) as remote:
        await remote.connect()
        begun = time.monotonic()
        async with remote.utterance(Request(rate=24000, voice="tone")) as utterance:
            utterance.push(TEXT * 20)
            if leave == "in the middle":
                await anext(utterance)
        assert time.monotonic() - begun < 0.5
        async with asyncio.timeout(1.0):
            while engine.speaking:
                await asyncio.sleep(0.005)
        async with remote.utterance(ASK) as after:
            assert len(await samples(after, "Hi there, friend.")) > 0


async def test_cancel_tells_how_much_audio_was_made_for_nothing() -> None:
    async with running() as port, remote_to(port) as remote:
        async with remote.utterance(Request(rate=24000, voice="tone", lead_s=3.0)) as utterance:
            utterance.push(TEXT * 20)
            await anext(utterance)
            await asyncio.sleep(0.1)
            orphan_ms = await utterance.cancel()
            assert 1000 < orphan_ms < 4000
            with pytest.raises(StopAsyncIteration):
                await anext(utterance)
        assert await utterance.cancel() == 0.0


async def test_errors_of_the_server_come_as_our_own_types() -> None:
    async with running() as port, remote_to(port) as remote:
        async with remote.utterance(Request(rate=24000, voice="tome")) as utterance:
            utterance.push(TEXT)
            with pytest.raises(VoiceNotFound, match='did you mean "tone"'):
                await anext(utterance)
            with pytest.raises(StopAsyncIteration):
                await anext(utterance)


async def test_a_wrong_token_is_refused_with_a_way_out() -> None:
    async with running(settings_of(engine={"voice": "tone"}, server={"token": "right"})) as port:
        async with remote_to(port, "wrong") as remote:
            with pytest.raises(Unauthorized, match="SPARKVOICE_TOKEN"):
                await remote.connect()
        async with remote_to(port, "right") as remote:
            await remote.connect()
            assert remote.connected


async def test_a_server_that_is_not_there_is_named() -> None:
    async with running() as port:
        pass
    async with remote_to(port) as remote:
        with pytest.raises(EngineUnavailable, match=rf"127\.0\.0\.1:{port}.*sparkvoice serve"):
            await remote.connect()


@pytest.mark.parametrize(
    "url",
    ["", "engine:8081", "ftp://engine", "http://", "http://engine:x", "http://engine:99999", "ws://[::1"],
)
async def test_a_url_that_is_none_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        _ = Address(url).stream_url


async def test_a_server_that_dies_ends_the_turn_at_once_and_the_next_one_connects_anew() -> None:
    ports: list[int] = []

    async def locate() -> Address:
        return Address(f"http://127.0.0.1:{ports[-1]}")

    remote = Remote(locate)
    async with running() as first:
        ports.append(first)
        utterance = remote.utterance(Request(rate=24000, voice="tone"))
        await utterance.__aenter__()
        utterance.push(TEXT * 20)
        await anext(utterance)
    with pytest.raises(EngineUnavailable):
        async with asyncio.timeout(1.0):
            while True:
                await anext(utterance)
    await utterance.__aexit__(None, None, None)
    async with running() as second:
        ports.append(second)
        async with remote.utterance(ASK) as again:
            assert len(await samples(again)) > 0
    await remote.aclose()
    await remote.aclose()


async def test_half_a_surrogate_pair_costs_its_own_place_and_no_word() -> None:
    async with running() as port, remote_to(port) as remote, remote.utterance(ASK) as utterance:
        assert len(await samples(utterance, "So \ud83d many words, all spoken.")) > 0
    assert utterance.text.text == "So \ufffd many words, all spoken."


@pytest.mark.parametrize("garbage", ["not json", '{"type": "nonsense"}', b"short"])
async def test_a_server_that_talks_nonsense_is_an_error_not_a_hang(garbage: str | bytes) -> None:
    async def talk(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(garbage)
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with remote_to(port) as remote, remote.utterance(ASK) as utterance:
            with pytest.raises(SynthesisFailed, match="garbage"):
                await asyncio.wait_for(anext(utterance), 2.0)
