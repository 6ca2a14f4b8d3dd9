"""OpenAI's own client, and raw HTTP, against /v1/audio/speech and /v1/models."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openai
import pytest
from openai import OpenAI

from tests.engine_server import WAIT_S, ProbedTone, client, get, running, settings_of, voices_for
from tests.leftovers import held_now
from tests.openai_rig import FRAME, GatedEngine, answered, gated, post, posted, sdk, until, url
from tests.test_encoders import PADDING_S, decoded
from tts_plugin.audio import level_dbfs, samples_of
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.errors import EngineUnavailable, NotInstalled, Overloaded, SynthesisFailed, TTSError
from tts_plugin.server.encoders import FORMATS, Format
from tts_plugin.server.stream import Limits

TEXT = "The ferry leaves at nine. Please bring a coat, it can be windy."
ASK: dict[str, Any] = {"model": "tone", "voice": "tone", "input": TEXT, "response_format": "pcm"}
TONE = settings_of(engine={"voice": "tone"})
GATED: dict[str, Any] = {
    "model": "tts-1",
    "voice": "gated",
    "input": "Hello there.",
    "response_format": "pcm",
}


async def spoken_over_the_websocket(port: int, text: str, **start: Any) -> bytes:
    async with client(port) as caller:
        await caller.say(1, text, rate=24_000, lead_s=None, **start)
        return (await caller.over(1)).audio


# --- what is heard


async def test_the_sdk_hears_what_the_websocket_speaks() -> None:
    async with running(TONE) as port, sdk(port) as speaker:
        response = await speaker.audio.speech.create(
            model="gpt-4o-mini-tts", voice="tone", input=TEXT, response_format="pcm"
        )
        assert await response.aread() == await spoken_over_the_websocket(port, TEXT)
        assert response.response.headers["content-type"] == "audio/pcm"


async def test_the_sdk_that_blocks_writes_a_file(tmp_path: Path) -> None:
    def speak(port: int) -> None:
        with (
            OpenAI(base_url=url(port), api_key="any", max_retries=0, timeout=WAIT_S) as speaker,
            speaker.audio.speech.with_streaming_response.create(
                model="tts-1", voice="tone", input=TEXT, response_format="wav"
            ) as response,
        ):
            response.stream_to_file(tmp_path / "out.wav")

    async with running(TONE) as port:
        await asyncio.to_thread(speak, port)
        expected = samples_of(await spoken_over_the_websocket(port, TEXT))
    assert np.array_equal(decoded("wav", (tmp_path / "out.wav").read_bytes()), expected)


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("form", FORMATS)
async def test_every_format_is_as_long_and_as_loud_as_the_samples(
    form: Format, stream_format: Literal["audio", "sse"]
) -> None:
    async with running(TONE) as port:
        pcm = samples_of(await spoken_over_the_websocket(port, TEXT))
        answer = await post(port, ASK | {"response_format": form, "stream_format": stream_format})
    assert (answer.status, answer.whole) == (200, True)
    audio = answer.body
    if stream_format == "sse":
        audio = b"".join(base64.b64decode(event["audio"]) for event in answer.events[:-1])
    heard = decoded(form, audio)
    assert -0.001 <= (len(heard) - len(pcm)) / 24_000 <= PADDING_S[form]
    assert level_dbfs(heard) == pytest.approx(level_dbfs(pcm), abs=0.8)  # LAME turns down by 0.45 dB


async def test_events_carry_the_audio_and_end_with_the_usage() -> None:
    async with running(TONE) as port:
        answer = await post(port, ASK | {"stream_format": "sse"})
        expected = await spoken_over_the_websocket(port, TEXT)
    *deltas, done = answer.events
    assert answer.headers["content-type"] == "text/event-stream"
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == expected
    assert len(deltas) > 10
    tokens = -(-len(expected) // 2 * 50 // 24_000)
    usage = {"input_tokens": len(TEXT), "output_tokens": tokens, "total_tokens": len(TEXT) + tokens}
    assert done == {"type": "speech.audio.done", "usage": usage}


async def test_an_engine_of_another_rate_is_heard_at_24_khz(tmp_path: Path) -> None:
    registry = voices_for(tmp_path, {"tone": "und"})
    async with running(TONE, registry=registry, build=lambda _: ToneEngine(rate=16_000)) as port:
        answer = await post(port, ASK | {"input": "Hello"})
    assert len(answer.body) == 2 * round(5 * 0.06 * 24_000)


async def test_turns_at_once_do_not_mix() -> None:
    texts = [f"Number {number} speaks." for number in range(8)]
    async with running(TONE) as port:
        answers = await asyncio.gather(*(post(port, ASK | {"input": text}) for text in texts))
        for text, answer in zip(texts, answers, strict=True):
            assert answer.body == await spoken_over_the_websocket(port, text)


# --- when it is heard


@pytest.mark.parametrize("form", FORMATS)
async def test_bytes_leave_while_the_engine_still_speaks(form: Format, tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port, sdk(port) as speaker:
        asking = speaker.audio.speech.with_streaming_response.create(**GATED | {"response_format": form})
        engine.open(4)
        async with asking as response:
            chunks = response.iter_bytes()
            heard = await anext(chunks)
            while len(decoded_so_far(form, heard)) < FRAME:
                heard += await anext(chunks)
            assert (engine.made, engine.active) == (4, 1)
            engine.open(engine.frames)
            async for chunk in chunks:
                heard += chunk
    extra_s = len(decoded(form, heard)) / 24_000 - 1.0
    assert -0.001 <= extra_s <= PADDING_S[form]


def decoded_so_far(form: Format, data: bytes) -> Any:
    try:
        return decoded(form, data)
    except Exception:  # the container's head is not whole yet, which decoders tell in many ways
        return b""


async def test_headers_wait_for_the_first_sound(tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port, posted(port, GATED) as reader:
        await until(lambda: engine.active == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        engine.open(engine.frames)
        assert answered(await reader.read()).whole


# --- who leaves


async def test_a_client_that_leaves_before_the_first_sound_frees_the_engine(tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port:
        async with posted(port, GATED):
            await until(lambda: engine.active == 1)
        await until(lambda: engine.active == 0)
        assert engine.made == 0


@pytest.mark.parametrize("form", FORMATS)
async def test_a_client_that_leaves_frees_the_engine_within_a_step(form: Format, tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port:
        async with posted(port, GATED | {"response_format": form}) as reader:
            engine.open(2)
            await reader.readuntil(b"\r\n\r\n")
            await until(lambda: engine.made == 2)
        await until(lambda: engine.active == 0)
        engine.open(8)
        await asyncio.sleep(0.05)
        assert engine.made == 2


async def test_the_sdk_that_leaves_its_block_frees_the_engine(tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port, sdk(port) as speaker:
        engine.open(3)
        async with speaker.audio.speech.with_streaming_response.create(**GATED) as response:
            await anext(response.iter_bytes())
        await until(lambda: engine.active == 0)
        assert engine.made == 3


async def test_a_client_that_reads_nothing_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = GatedEngine(frames=2_000)  # far more than sockets hold
    async with gated(tmp_path, engine, stall_s=0.3) as port:
        async with posted(port, GATED) as reader:
            engine.open(engine.frames)
            await reader.read(1)
            await until(lambda: engine.active == 0)
    assert engine.made < engine.frames
    assert "nothing was read" in caplog.text


async def test_nothing_is_left_behind() -> None:
    async with running(TONE) as port:
        await post(port, ASK | {"response_format": "opus"})
        before = held_now()
        for form in FORMATS:
            await post(port, ASK | {"response_format": form})
            async with posted(port, ASK | {"response_format": form, "input": TEXT * 50}) as reader:
                await reader.readuntil(b"\r\n\r\n")
        await until(lambda: not held_now().more_than(before))


# --- errors


@pytest.mark.parametrize(
    ("change", "param", "told"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": " \n"}, "input", "empty"),
        ({"input": "🙂🙂"}, "input", "nothing in input that can be spoken"),
        ({"input": "...!?"}, "input", "nothing in input that can be spoken"),
        ({"input": "x" * 101}, "input", "101 characters, at most 100"),
        ({"input": None}, "input", "string"),
        ({"input": 7}, "input", "string"),
        ({"voice": "tune"}, "voice", 'did you mean "tone"'),
        ({"voice": {"id": "tune"}}, "voice", 'did you mean "tone"'),
        ({"voice": "alloy"}, "voice", "OpenAI's"),
        ({"voice": "hibari"}, "voice", 'spoken by model "hibari"'),
        ({"response_format": "aac"}, "response_format", "mp3 or opus"),
        ({"response_format": "ogg"}, "response_format", "known: flac, mp3"),
        ({"stream_format": "raw"}, "stream_format", "audio, sse"),
        ({"speed": 0.25}, "speed", "0.5"),
        ({"speed": 4}, "speed", "2"),
        ({"speed": "fast"}, "speed", "number"),
        ({"sped": 1.5}, "sped", 'did you mean "speed"'),
        ({"seed": -1}, "seed", "0"),
    ],
)
async def test_what_is_wrong_is_said_before_any_byte(change: dict[str, Any], param: str, told: str) -> None:
    settings = settings_of(engine={"voice": "tone", "max_text_chars": 100})
    async with running(settings) as port:
        answer = await post(port, ASK | change)
    assert answer.status == 400
    assert set(answer.error) == {"message", "type", "param", "code", "retryable"}
    assert (answer.error["type"], answer.error["param"]) == ("invalid_request_error", param)
    assert told in answer.error["message"]


@pytest.mark.parametrize("body", [b"", b"hello", b"[1]", b'{"model": "tone"', b"\xff\xfe", b'"x"'])
async def test_a_body_that_is_no_request_is_a_bad_request(body: bytes) -> None:
    async with running(TONE) as port:
        answer = await post(port, body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "body", [b'{"model": "tone", "input": "a\\ud800"}', b'{"model": "tone", "input": "\xc3("}']
)
async def test_text_that_is_no_text_is_a_bad_request(body: bytes) -> None:
    async with running(TONE) as port:
        assert (await post(port, body)).status == 400


async def test_a_body_without_end_is_refused_before_it_has_come() -> None:
    async with running(settings_of(engine={"voice": "tone", "max_text_chars": 100})) as port:
        answer = await post(port, b"x" * 200_000)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


async def test_a_body_that_trickles_is_refused_in_time_and_its_connection_closed() -> None:
    async with running(TONE, limits=Limits(body_s=0.3)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n")
        reading = asyncio.create_task(reader.read())  # to the end of the connection
        async with asyncio.timeout(WAIT_S):
            while not reading.done():
                writer.write(b" ")  # and no pause in which a server could lose its patience
                await asyncio.sleep(0.02)
        writer.transport.abort()
    answer = answered(await reading)
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")


async def test_requests_at_once_are_limited_those_included_whose_body_does_not_come() -> None:
    settings = settings_of(engine={"voice": "tone"}, server={"max_connections": 2})
    half: dict[str, str] = {"Content-Length": "1000"}
    async with running(settings) as port:
        async with posted(port, b"{", **half), posted(port, b"{", **half):
            async with asyncio.timeout(WAIT_S):
                while (refused := await post(port, ASK)).status == 200:  # they have not been taken up yet
                    await asyncio.sleep(0.005)
            assert (refused.status, refused.error["code"]) == (429, "overloaded")
            assert refused.headers["retry-after"] == "1"
            assert (await get(port, "/healthz"))[0] == 200
        async with asyncio.timeout(WAIT_S):
            while (await post(port, ASK)).status != 200:  # the two have left
                await asyncio.sleep(0.005)


async def test_text_of_another_language_is_told_of(tmp_path: Path) -> None:
    async with gated(tmp_path, GatedEngine()) as port:
        answer = await post(port, GATED | {"input": "你好"})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_text", "input")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("all 3 streams are taken"), 429, openai.RateLimitError),
        (SynthesisFailed("it broke"), 500, openai.InternalServerError),
        (EngineUnavailable("it died"), 503, openai.InternalServerError),
        (NotInstalled("no torch"), 501, openai.InternalServerError),
        (RuntimeError("whatever"), 500, openai.InternalServerError),
    ],
)
async def test_an_engine_that_fails_at_once_is_the_sdks_own_error(
    error: Exception, status: int, kind: type[openai.APIStatusError], tmp_path: Path
) -> None:
    engine = GatedEngine(fail_at=0, error=error)
    engine.open(1)
    async with gated(tmp_path, engine) as port, sdk(port) as speaker:
        with pytest.raises(kind) as raised:
            await speaker.audio.speech.create(**GATED)
    assert raised.value.status_code == status
    assert raised.value.code == (error.code if isinstance(error, TTSError) else "synthesis_failed")
    headers = raised.value.response.headers
    assert ("retry-after" in headers) == (status in (429, 503))
    assert (headers.get("x-should-retry") == "false") == (status == 501)


async def test_the_sdk_tries_again_when_it_is_told_to_come_back(tmp_path: Path) -> None:
    class FullOnce(GatedEngine):
        def speak(self, turn: Any, segments: Any) -> Any:
            self.open(self.frames)
            self.fail_at = 0 if not self.turns else None
            return super().speak(turn, segments)

    engine = FullOnce(error=Overloaded("full"))
    async with gated(tmp_path, engine) as port, sdk(port) as speaker:
        response = await speaker.with_options(max_retries=1).audio.speech.create(**GATED)
        assert len(await response.aread()) == 2 * FRAME * engine.frames
    assert len(engine.turns) == 2


async def test_a_failure_in_the_middle_does_not_look_like_an_end(tmp_path: Path) -> None:
    engine = GatedEngine(fail_at=3)
    engine.open(4)
    async with gated(tmp_path, engine) as port:
        answer = await post(port, GATED)
        assert (answer.status, answer.whole, len(answer.body)) == (200, False, 2 * 3 * FRAME)


async def test_a_failure_in_the_middle_of_events_is_an_event(tmp_path: Path) -> None:
    engine = GatedEngine(fail_at=3)
    engine.open(4)
    async with gated(tmp_path, engine) as port:
        answer = await post(port, GATED | {"stream_format": "sse"})
    assert answer.events[-1]["type"] == "error"
    assert answer.events[-1]["error"]["code"] == "synthesis_failed"
    assert not answer.whole
    assert [event["type"] for event in answer.events[:-1]] == ["speech.audio.delta"] * (
        len(answer.events) - 1
    )


async def test_the_door_answers_in_openais_words() -> None:
    async with running(settings_of(engine={"voice": "tone"}, server={"token": "right"})) as port:
        async with sdk(port, key="wrong") as speaker:
            with pytest.raises(openai.AuthenticationError) as refused:
                await speaker.models.list()
        assert (refused.value.type, refused.value.code) == ("authentication_error", "unauthorized")
        async with sdk(port, key="right") as speaker:
            assert (await speaker.audio.speech.create(**ASK)).response.status_code == 200
    async with running(TONE) as port:
        answer = await post(port, ASK, Origin="https://evil.example")
        assert (answer.status, answer.error["type"], answer.error["param"]) == (403, "permission_error", None)


# --- what may be asked


async def test_models_are_the_engines_that_have_a_voice(tmp_path: Path) -> None:
    async with running(TONE, registry=voices_for(tmp_path, {"tone": "und", "hibari": "en-US"})) as port:
        async with sdk(port) as speaker:
            listed = [model.id async for model in speaker.models.list()]
            assert listed == ["hibari", "tone"]
            for name in ("tone", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"):
                assert (await speaker.models.retrieve(name)).id == name
            with pytest.raises(openai.NotFoundError, match='did you mean "tone"') as unknown:
                await speaker.models.retrieve("tune")
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.NotFoundError, match='did you mean "tts-1"'):
                await speaker.audio.speech.create(model="tts-2", voice="tone", input=TEXT)


async def test_a_voice_may_be_an_object_or_left_out() -> None:
    async with running(TONE) as port:
        named = await post(port, ASK)
        assert (await post(port, ASK | {"voice": {"id": "tone"}})).body == named.body
        assert (
            await post(port, {key: value for key, value in ASK.items() if key != "voice"})
        ).body == named.body


async def test_speed_is_relative_to_the_voices_own_pace(tmp_path: Path) -> None:
    registry = voices_for(tmp_path, {"tone": "und"})
    file = tmp_path / "tone.yaml"
    file.write_text(file.read_text() + "speed: 1.5\n")
    registry.refresh()
    async with running(TONE, registry=registry) as port:
        plain, fast, slow = [await post(port, ASK | {"speed": speed}) for speed in (1.0, 1.25, 0.5)]
        too_fast = await post(port, ASK | {"speed": 2.0})
        websocket = await spoken_over_the_websocket(port, TEXT)
    assert plain.body == websocket
    assert len(fast.body) == pytest.approx(len(plain.body) / 1.25, rel=0.01)
    assert len(slow.body) == pytest.approx(len(plain.body) / 0.5, rel=0.01)
    assert (too_fast.status, too_fast.error["param"]) == (400, "speed")
    assert "0.33 to 1.33" in too_fast.error["message"]


async def test_seed_and_latency_reach_the_turn(tmp_path: Path) -> None:
    engine = GatedEngine()
    engine.open(engine.frames)
    async with gated(tmp_path, engine) as port, sdk(port) as speaker:
        await speaker.audio.speech.create(**GATED, extra_body={"seed": 7, "latency": "low"})
    assert (engine.turns[0].seed, engine.turns[0].latency) == (7, "low")


async def test_instructions_are_taken_and_named_as_not_followed() -> None:
    async with running(TONE) as port:
        plain, told = await post(port, ASK), await post(port, ASK | {"instructions": "Whisper."})
    assert told.body == plain.body
    assert told.headers["sparkvoice-ignored"] == "instructions"
    assert "sparkvoice-ignored" not in plain.headers


async def test_only_a_post_speaks() -> None:
    async with running(TONE) as port, sdk(port) as speaker:
        with pytest.raises(openai.APIStatusError) as refused:
            await speaker.get("/audio/speech", cast_to=str)
    assert refused.value.status_code == 405


async def test_an_utterance_is_one_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(TONE) as port:
        answer = await post(port, ASK | {"response_format": "flac"})
    (line,) = [record.message for record in caplog.records if record.message.startswith("utterance ")]
    facts = json.loads(line.removeprefix("utterance "))
    assert facts["outcome"] == "done"
    assert facts["request"] == answer.headers["x-request-id"]
    assert (facts["format"], facts["voice"], facts["chars"]) == ("flac", "tone", len(TEXT))
    assert "ferry" not in caplog.text


async def test_readiness_is_unchanged_by_who_speaks() -> None:
    engine = ProbedTone()
    async with running(TONE, build=lambda _: engine) as port:
        await post(port, ASK)
        assert (await get(port, "/readyz"))[0] == 200
        assert engine.speaking == 0


async def test_a_request_takes_a_place_and_gives_it_back(tmp_path: Path) -> None:
    engine = GatedEngine()
    settings = settings_of(engine={"voice": "tone", "tone": {"max_streams": 1}}, server={"max_waiting": 0})
    async with running(
        settings, registry=voices_for(tmp_path, {"tone": "und"}), build=lambda _: engine
    ) as port:
        async with posted(port, ASK):
            await until(lambda: engine.active == 1)
            refused = await post(port, ASK)
            assert (refused.status, refused.error["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
        await until(lambda: engine.active == 0)
        engine.open(2 * engine.frames)
        assert (await post(port, ASK)).status == 200
