"""The stream of the engine server, over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from tests.engine_server import WAIT_S, ProbedTone, client, running, same, settings_of, voices_for
from tests.leftovers import held_now
from tts_plugin import g711, wire
from tts_plugin.audio import AudioFrame, Pcm
from tts_plugin.engine import Engine, Segment, Turn, open_engine
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.errors import EngineUnavailable
from tts_plugin.server.stream import Limits
from tts_plugin.utterance import Utterance
from tts_plugin.voices import open_registry

SENTENCE = "The quick brown fox jumps over the lazy dog. It does so twice, because it can."
LONG = " ".join(f"Sentence number {index} of a long answer goes on and on." for index in range(60))
MESSAGES: tuple[type[wire.Message], ...] = (
    *(wire.Start, wire.Text, wire.Flush, wire.End, wire.Cancel),
    *(wire.Started, wire.SegmentSpan, wire.Done, wire.Cancelled, wire.Error),
)
FREE_S = 2.0  # bound on what takes milliseconds when the machine is idle


async def in_process(text: str, voice: str = "tone", seed: int | None = None, rate: int | None = None) -> Pcm:
    settings = settings_of()
    found = open_registry(settings.engine, ("tone", "hibari")).get(voice)
    async with (
        open_engine(found.engine) as engine,
        Utterance(engine, Turn(found, seed=seed), rate=rate, lead_s=None) as utterance,
    ):
        utterance.push(text)
        utterance.end()
        return np.concatenate([frame.pcm async for frame in utterance])


async def until(condition: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


async def test_a_context_is_started_spoken_and_done() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, lead_s=None)
        heard = await caller.over(1)
    started = heard.messages[0]
    assert started == wire.Started(
        context=1, voice="tone", engine="tone", language="und", rate=24000, encoding="pcm_s16le"
    )
    assert isinstance(heard.last, wire.Done)
    samples = [sample for sample, _ in heard.chunks]
    assert samples == list(np.cumsum([0] + [len(audio) // 2 for _, audio in heard.chunks[:-1]]))
    assert heard.last.timeline["audio_s"] == pytest.approx(len(heard.pcm) / 24000, abs=1e-3)
    assert heard.last.timeline["first_frame_ms"] < heard.last.timeline["total_ms"]
    assert heard.last.foreign == ""


@pytest.mark.parametrize(
    ("voice", "rate"), [("tone", None), ("tone", 16000), ("hibari", None), ("hibari", 8000)]
)
async def test_streamed_samples_equal_those_made_in_process(voice: str, rate: int | None) -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, voice=voice, seed=7, rate=rate, lead_s=None)
        heard = await caller.over(1)
    assert isinstance(heard.last, wire.Done)
    assert same(heard.pcm, await in_process(SENTENCE, voice, seed=7, rate=rate))


async def test_text_may_arrive_in_any_pieces() -> None:
    async with running() as port, client(port) as caller:
        await caller.send(wire.Start(context=1, lead_s=None))
        for at in range(0, len(SENTENCE), 3):
            await caller.send(wire.Text(context=1, text=SENTENCE[at : at + 3]))
        await caller.send(wire.End(context=1), wire.End(context=1))
        heard = await caller.over(1)
    assert same(heard.pcm, await in_process(SENTENCE))


async def test_flush_speaks_without_waiting_for_more() -> None:
    async with running() as port, client(port) as caller:
        await caller.send(wire.Start(context=1), wire.Text(context=1, text="Yes"), wire.Flush(context=1))
        await caller.audio(1)
        await caller.send(wire.End(context=1))
        assert isinstance((await caller.over(1)).last, wire.Done)


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
async def test_telephone_audio_is_one_byte_a_sample_at_8_khz(encoding: g711.Law) -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, encoding=encoding, rate=8000, lead_s=None)
        await caller.say(2, SENTENCE, rate=8000, lead_s=None)
        heard = await caller.over(1, 2)
        linear = caller.of(2).pcm
    assert isinstance(heard.last, wire.Done)
    assert heard.last.timeline["audio_s"] == pytest.approx(len(heard.audio) / 8000, abs=0.01)
    assert heard.audio == g711.encode(linear, encoding)


async def test_segments_cover_the_audio_and_precede_it() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, lead_s=None)
        heard = caller.of(1)
        while not heard.is_over:
            had = len(heard.chunks)
            await caller.receive()
            for sample, audio in heard.chunks[had:]:
                told = heard.spans[-1]
                assert told.sample_from < sample + len(audio) // 2, "no segment is told before its turn"
                assert told.sample_to is None or sample < told.sample_to, "none is told late"
    complete = [span for span in heard.spans if span.sample_to is not None]
    assert len(complete) > 1
    assert complete[0].sample_from == 0
    assert complete[-1].sample_to == len(heard.pcm)
    for left, right in itertools.pairwise(complete):
        assert left.sample_to == right.sample_from
        assert left.text_to <= right.text_from
    words = [word for span in complete for word in SENTENCE[span.text_from : span.text_to].split()]
    assert words == SENTENCE.split()
    assert len(heard.spans) == len(set(heard.spans)), "nothing is told twice"


async def test_a_segment_known_at_once_is_told_once() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, "Good morning.", voice="hibari", lead_s=None)
        heard = await caller.over(1)
    assert len(heard.spans) == 1
    assert heard.spans[0].sample_to == len(heard.pcm)


async def test_twenty_contexts_at_once_do_not_mix() -> None:
    texts = {
        context: f"Caller {context} hears only {context * 37}. Nothing else." for context in range(1, 21)
    }
    async with running() as port, client(port) as caller:
        for context, text in texts.items():
            await caller.say(context, text, lead_s=None)
        await caller.over(*texts)
        for context, text in texts.items():
            await caller.say(context + 100, text, lead_s=None)
            alone = await caller.over(context + 100)
            assert same(caller.of(context).pcm, alone.pcm)
    assert same(caller.of(1).pcm, await in_process(texts[1]))


async def test_two_clients_may_use_the_same_number() -> None:
    async with running() as port, client(port) as one, client(port) as two:
        await one.say(1, "This is one.", lead_s=None)
        await two.say(1, "And this is two.", lead_s=None)
        assert same((await one.over(1)).pcm, await in_process("This is one."))
        assert same((await two.over(1)).pcm, await in_process("And this is two."))


async def test_a_number_is_free_again_after_its_last_message() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, "Once.", lead_s=None)
        await caller.over(1)
        caller.heard.clear()
        await caller.say(1, "Twice.", lead_s=None)
        assert same((await caller.over(1)).pcm, await in_process("Twice."))


async def test_a_stream_runs_at_most_three_seconds_ahead_by_default() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.audio(1)
        first_s = time.monotonic()
        ahead_s = []
        while time.monotonic() - first_s < 1.0:
            await caller.audio(1)
            ahead_s.append(len(caller.of(1).pcm) / 24000 - (time.monotonic() - first_s))
        await caller.send(wire.Cancel(context=1))
        await caller.over(1)
    assert 2.0 < max(ahead_s) < 3.2


async def test_a_stream_without_lead_runs_as_fast_as_it_goes() -> None:
    async with running() as port, client(port) as caller:
        began_s = time.monotonic()
        await caller.say(1, LONG, lead_s=None)
        heard = await caller.over(1)
    assert len(heard.pcm) / 24000 > 5 * (time.monotonic() - began_s)


async def test_the_settings_give_the_lead_that_a_start_does_not_name() -> None:
    settings = settings_of(engine={"voice": "tone", "lead_s": 0.5})
    async with running(settings) as port, client(port) as caller:
        await caller.send('{"type": "start", "context": 1}', wire.Text(context=1, text=LONG))
        await caller.quiet(0.05)
        assert len(caller.of(1).pcm) / 24000 < 1.5


# --- cancel


async def test_cancel_before_the_first_audio() -> None:
    async with running() as port, client(port) as caller:
        await caller.send(wire.Start(context=1), wire.Text(context=1, text="Hel"), wire.Cancel(context=1))
        heard = await caller.over(1)
        await caller.quiet()
    assert heard.last == wire.Cancelled(context=1, orphan_ms=0.0)
    assert heard.chunks == []


async def test_cancel_in_mid_audio_frees_the_engine_and_nothing_follows() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.audio(1)
        assert engine.speaking == 1
        began_s = time.monotonic()
        await caller.send(wire.Cancel(context=1))
        heard = await caller.over(1)
        assert time.monotonic() - began_s < FREE_S
        assert engine.speaking == 0, "the engine is free before the cancel is acknowledged"
        made = engine.samples
        await caller.quiet()
        assert engine.samples == made
    assert isinstance(heard.last, wire.Cancelled)
    assert 0 < heard.last.orphan_ms <= 3300


async def test_cancel_after_the_end_is_ignored() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, "Hello.", lead_s=None)
        await caller.over(1)
        await caller.send(wire.Cancel(context=1), wire.Cancel(context=99))
        await caller.quiet()
        assert isinstance(caller.of(1).last, wire.Done)
        await caller.say(2, "Still here.", lead_s=None)
        assert isinstance((await caller.over(2)).last, wire.Done)
    assert None not in caller.heard


async def test_a_second_cancel_changes_nothing() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.audio(1)
        await caller.send(*[wire.Cancel(context=1)] * 3)
        assert isinstance((await caller.over(1)).last, wire.Cancelled)
        await caller.quiet()


async def test_two_hundred_random_cancels_leave_nothing_behind() -> None:
    engine, dice = ProbedTone(), random.Random(1)
    async with running(build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1000, SENTENCE, lead_s=None)
        await caller.over(1000)
        before = held_now()
        for context in range(1, 201):
            await caller.say(context, SENTENCE, lead_s=dice.choice((None, 3.0)))
            for _ in range(dice.randrange(8)):
                await caller.receive()
            await caller.send(wire.Cancel(context=context))
        await caller.over(*range(1, 201))
        await caller.quiet(0.1)
        assert engine.speaking == 0
        assert held_now().more_than(before) == {}
        await caller.say(1001, SENTENCE, lead_s=None)
        assert same((await caller.over(1001)).pcm, await in_process(SENTENCE))


async def test_a_client_that_does_not_read_can_still_cancel() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1, LONG * 20, lead_s=None)  # 50 MB of audio
        await caller.say(2, LONG * 20, lead_s=None)
        await until(lambda: engine.samples > 1_000_000, "the engine runs")
        stuck = -1
        while stuck != engine.samples:  # until the socket is full
            stuck = engine.samples
            await asyncio.sleep(0.1)
        assert engine.speaking == 2
        await caller.send(wire.Cancel(context=1))
        await until(lambda: engine.speaking == 1, "a full socket does not hold the cancel")
        await caller.send(wire.Cancel(context=2))
        await until(lambda: engine.speaking == 0, "nor another context's")
        await caller.over(1, 2)  # receive() checks that no audio follows
        await caller.quiet()
    assert isinstance(caller.of(1).last, wire.Cancelled)
    assert isinstance(caller.of(2).last, wire.Cancelled)


async def test_a_client_that_stalls_is_disconnected() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine, limits=Limits(stall_s=0.5)) as port, client(port) as caller:
        await caller.say(1, LONG * 20, lead_s=None)
        await until(lambda: engine.speaking == 1, "the engine runs")
        # unread it would never end; making the few MB that fill the sockets takes a busy machine seconds
        await until(lambda: engine.speaking == 0, "the engine is free", within_s=60.0)
        with pytest.raises(ConnectionClosed):
            await caller.over(1)


# --- disconnect

_DOOMED_CLIENT = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], proxy=None, compression=None) as socket:
    socket.send('{"type": "start", "context": 1, "lead_s": 3.0}')
    socket.send('{"type": "text", "context": 1, "text": "' + "A long answer goes on and on. " * 100 + '"}')
    for _ in range(5):
        socket.recv()
    print("hears", flush=True)
    while True:
        socket.recv()
"""


async def test_a_killed_client_frees_the_engine() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _DOOMED_CLIENT, f"ws://127.0.0.1:{port}{wire.PATH}", stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 10) == b"hears\n"
        assert engine.speaking == 1
        process.send_signal(signal.SIGKILL)
        await until(lambda: engine.speaking == 0, "the engine is free")
        await process.wait()


async def test_leaving_stops_every_context() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port:
        async with client(port) as caller:
            for context in range(1, 6):
                await caller.say(context, LONG)
            await caller.audio(5)
            assert engine.speaking == 5
        await until(lambda: engine.speaking == 0, "the engine is free")


# --- what cannot be spoken


@pytest.mark.parametrize("text", ["", "   \n\t", "...", "**", "\U0001f600"])
async def test_text_without_anything_to_say_is_done_without_audio(text: str) -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, text, voice="hibari")
        heard = await caller.over(1)
    assert isinstance(heard.last, wire.Done)
    assert heard.last.timeline["audio_s"] == 0
    assert heard.chunks == []
    assert heard.spans == []


async def test_text_in_a_language_the_voice_lacks_is_an_error_naming_it() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, "你好，今天天气怎么样？", voice="hibari")
        heard = await caller.over(1)
    assert isinstance(heard.last, wire.Error)
    assert (heard.last.code, heard.last.retryable) == ("unsupported_text", False)
    assert "en-US" in heard.last.message


async def test_an_unknown_voice_is_an_error_naming_the_nearest() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, "Hello.", voice="hibary")
        heard = await caller.over(1)
        await caller.quiet(0.1)
    assert isinstance(heard.last, wire.Error)
    assert (heard.last.code, heard.last.retryable) == ("voice_not_found", False)
    assert 'did you mean "hibari"?' in heard.last.message
    assert len(heard.messages) == 1
    assert None not in caller.heard, "text that was on its way is no second error"


class Broken(ToneEngine):
    """Speaks a frame and fails."""

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        async for segment in segments:
            yield AudioFrame(np.zeros(240, dtype=np.int16), self.rate, 0, segment.index)
            raise RuntimeError("a wire is loose")


async def test_an_engine_that_fails_ends_its_context_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engines: dict[str, Engine] = {"tone": ToneEngine(), "broken": Broken()}
    registry = voices_for(tmp_path, {"tone": "und", "broken": "und"})
    async with running(registry=registry, build=engines.__getitem__) as port, client(port) as caller:
        await caller.say(1, SENTENCE, voice="tone", lead_s=None)
        await caller.say(2, SENTENCE, voice="broken", lead_s=None)
        await caller.over(1, 2)
    assert isinstance(caller.of(1).last, wire.Done)
    failed = caller.of(2).last
    assert isinstance(failed, wire.Error)
    assert (failed.code, failed.retryable) == ("synthesis_failed", True)
    assert len(caller.of(2).chunks) == 1
    assert "a wire is loose" in caplog.text
    assert "Traceback" in caplog.text


async def test_an_engine_that_cannot_be_loaded_is_tried_again(tmp_path: Path) -> None:
    tries: list[str] = []

    def build(name: str) -> Engine:
        tries.append(name)
        if len(tries) < 3:
            raise EngineUnavailable("no GPU is free")
        return ToneEngine()

    registry = voices_for(tmp_path, {"late": "und"})
    settings = settings_of(engine={"warm": []})
    async with running(settings, registry=registry, build=build) as port, client(port) as caller:
        for context in (1, 2):
            await caller.say(context, "Hello.", voice="late")
            failed = (await caller.over(context)).last
            assert isinstance(failed, wire.Error)
            assert (failed.code, failed.retryable) == ("engine_unavailable", True)
        await caller.say(3, "Hello.", voice="late", lead_s=None)
        assert isinstance((await caller.over(3)).last, wire.Done)
    assert len(tries) == 3


# --- what a client may not do


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "hello",
        "[]",
        "null",
        '{"type": "sing"}',
        '{"context": 1}',
        '{"type": "text", "context": 0, "text": "x"}',
        '{"type": "end", "context": 1, "loud": true}',
        '{"type": "text", "context": "1", "text": "x"}',
        '{"type": "text", "context": 1, "text": "\\ud800"}',
        "[" * 10_000,
        b"\x00\x00\x00\x01",
    ],
)
async def test_garbage_is_answered_and_the_connection_stays(garbage: str | bytes) -> None:
    async with running() as port, client(port) as caller:
        await caller.send(garbage)
        error = await caller.error()
        assert (error.code, error.retryable) == ("bad_request", False)
        await caller.say(1, "Still here.", lead_s=None)
        assert isinstance((await caller.over(1)).last, wire.Done)


async def test_a_start_that_cannot_be_read_is_told_to_its_context() -> None:
    async with running() as port, client(port) as caller:
        await caller.send('{"type": "start", "context": 5, "rate": 96000}', wire.Text(context=5, text="Hi"))
        heard = await caller.over(5)
        assert isinstance(heard.last, wire.Error)
        assert "rate" in heard.last.message
        await caller.quiet(0.1)


async def test_a_bad_message_for_an_open_context_ends_it() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.audio(1)
        await caller.send('{"type": "flush", "context": 1, "hard": true}')
        heard = await caller.over(1)
        assert isinstance(heard.last, wire.Error)
        assert heard.last.code == "bad_request"
        assert engine.speaking == 0


async def test_only_garbage_is_shown_the_door() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.send(*["rubbish"] * 25)
        with pytest.raises(ConnectionClosed) as closed:
            await caller.over(1)
    assert len(caller.of(None).messages) == 20
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_a_number_that_is_open_cannot_be_started_again() -> None:
    async with running() as port, client(port) as caller:
        await caller.send(wire.Start(context=1), wire.Start(context=1), wire.Text(context=1, text="Hello."))
        heard = await caller.over(1)
        await caller.quiet(0.1)
    assert isinstance(heard.last, wire.Error)
    assert (heard.last.code, heard.last.retryable) == ("bad_request", False)
    assert heard.chunks == []


@pytest.mark.parametrize(
    "message", [wire.Text(context=7, text="x"), wire.Flush(context=7), wire.End(context=7)]
)
async def test_a_message_for_a_context_never_started_is_an_error(message: wire.Message) -> None:
    async with running() as port, client(port) as caller:
        await caller.send(message)
        error = (await caller.over(7)).last
        assert isinstance(error, wire.Error)
        assert "start" in error.message
        await caller.say(8, "Still here.", lead_s=None)
        assert isinstance((await caller.over(8)).last, wire.Done)


async def test_text_after_the_end_is_an_error() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, LONG)
        await caller.send(wire.Text(context=1, text="One more thing."))
        assert isinstance((await caller.over(1)).last, wire.Error)


async def test_oversize_text_is_an_error_naming_the_limit() -> None:
    settings = settings_of(engine={"voice": "tone", "max_text_chars": 1000})
    async with running(settings) as port, client(port) as caller:
        await caller.say(1, "a " * 501)
        await caller.send(wire.Start(context=2, lead_s=None))
        for _ in range(500):
            await caller.send(wire.Text(context=2, text="aa "))
        heard = await caller.over(1, 2)
        await caller.say(3, "\U0001f600" * 1000)  # the longest text of the most bytes fits in one message
        await caller.over(3)
    for context in (1, 2):
        error = caller.of(context).last
        assert isinstance(error, wire.Error)
        assert (error.code, error.retryable) == ("bad_request", False)
        assert "1000 characters" in error.message
    assert heard.chunks == []
    assert isinstance(caller.of(3).last, wire.Done)


async def test_a_message_beyond_every_limit_closes_the_connection() -> None:
    settings = settings_of(engine={"voice": "tone", "max_text_chars": 1000})
    async with running(settings) as port, client(port) as caller:
        await caller.send(wire.Start(context=1), wire.Text(context=1, text="a" * 200_000))
        with pytest.raises(ConnectionClosed) as closed:
            await caller.over(1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_contexts_of_a_connection_are_limited() -> None:
    settings = settings_of(engine={"voice": "tone"}, server={"max_contexts": 2})
    async with running(settings) as port, client(port) as caller:
        await caller.send(*(wire.Start(context=context) for context in (1, 2, 3)))
        error = (await caller.over(3)).last
        assert isinstance(error, wire.Error)
        assert (error.code, error.retryable) == ("overloaded", True)
        await caller.send(wire.Cancel(context=1))
        await caller.over(1)
        await caller.say(4, "There is room again.", lead_s=None)
        assert isinstance((await caller.over(4)).last, wire.Done)


def _random_message(dice: random.Random) -> str | bytes:
    """Anything from noise to nearly right."""
    kind = dice.choice(["start", "text", "flush", "end", "cancel", "sing", None])
    message: dict[str, object] = {
        "type": kind,
        "context": dice.choice([1, 2, 3, 0, -1, 2**32, "1", None, 1.5]),
    }
    for key in dice.sample(["text", "voice", "rate", "seed", "lead_s", "encoding", "speed", "extra"], 3):
        message[key] = dice.choice(
            ["x", "tone", "Hello there. ", 8000, -1, None, 1e400, [], {}, True, "\x00"]
        )
    if dice.random() < 0.5:
        message = {"type": kind, "context": dice.choice([1, 2, 3])}
        if kind == "text":
            message["text"] = "Hello there. "
    raw = json.dumps(message)
    match dice.randrange(6):
        case 0:
            return dice.randbytes(dice.randrange(40))
        case 1:
            return raw[: dice.randrange(len(raw))]
        case 2:
            at = dice.randrange(len(raw))
            return raw[:at] + chr(dice.randrange(1, 0xD800)) + raw[at:]
    return raw


async def test_random_messages_never_break_the_server() -> None:
    dice, engine = random.Random(2), ProbedTone()
    limits = Limits(garbage=1000, complaints=1000)
    async with running(build=lambda _: engine, limits=limits) as port, client(port) as other:
        async with client(port) as caller:
            for _ in range(200):
                await caller.send(_random_message(dice))
            await caller.send(wire.Start(context=77, voice="none"))
            while True:  # numbers are used again here, so what comes is not kept apart
                data = await asyncio.wait_for(caller.socket.recv(), WAIT_S)
                if isinstance(data, str) and wire.parse_server(data).context == 77:
                    break
            await other.say(1, SENTENCE, lead_s=None)
            assert same((await other.over(1)).pcm, await in_process(SENTENCE))
        await until(lambda: engine.speaking == 0, "the engine is free")


# --- the log


async def test_the_log_has_one_line_an_utterance_and_never_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running() as port, client(port) as caller:
        await caller.say(1, "My secret is zanzibar. Yes.", lead_s=None)
        await caller.say(2, "你好 zanzibar 你好", voice="hibari", lead_s=None)
        await caller.say(3, "秘密秘密", voice="hibari", lead_s=None)
        await caller.over(1, 2, 3)
        await caller.say(4, f"zanzibar {LONG}")
        await caller.audio(4)
        await caller.send(wire.Cancel(context=4))
        await caller.over(4)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("tts_plugin.server")]
    said = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("utterance ")]
    assert sorted(line["outcome"] for line in said) == ["cancelled", "done", "done", "error"]
    first = next(line for line in said if line["engine"] == "tone" and line["outcome"] == "done")
    assert first["audio_s"] > 0
    assert first["first_frame_ms"] is not None
    assert not re.search("zanzibar|秘密|你好", "\n".join(lines))


async def test_the_example_client_of_the_protocol_page_works(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    assert len(example.splitlines()) <= 30
    async with running() as port:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            example.replace("127.0.0.1:8081", f"127.0.0.1:{port}"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert b"audio_s" in out
    spoken = await in_process("Hello there. How are you?")
    assert len((tmp_path / "out.pcm").read_bytes()) == 2 * len(spoken)


def test_the_worked_example_of_the_protocol_page_is_right() -> None:
    page = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
    found = re.search(r"^((?:[0-9a-f]{2} )+[0-9a-f]{2})$", page, re.MULTILINE)
    assert found is not None
    context, sample, audio = wire.unpack_audio(bytes.fromhex(found[1]))
    assert (context, sample) == (7, 1920)
    assert np.frombuffer(audio, "<i2").tolist() == [0, 256, -2]


def test_the_protocol_page_names_every_message_and_field() -> None:
    page = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
    for kind in MESSAGES:
        assert f'{{"type": "{kind.model_fields["type"].default}"' in page
        for name in kind.model_fields:
            assert f'"{name}"' in page or f"`{name}`" in page, f"{kind.__name__}.{name}"
