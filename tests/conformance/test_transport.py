"""What every transport must do with a caller's and an agent's audio; a new one is a line in TRANSPORTS.

A transport is tested as an open call: on our side the AudioOutput and AudioInput that the session
gets, on the far side what a caller hears and says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pytest
from livekit import rtc
from livekit.agents import llm
from livekit.agents.voice import io

from agent.assistant import Assistant
from agent.config import AgentSettings
from agent.media_io import Control
from agent.session import build_session, converse
from tests.fakes_livekit import (
    RATE,
    TICK_S,
    Audible,
    Handset,
    ScriptLLM,
    ScriptSTT,
    ScriptVAD,
    WordTTS,
    handset,
    one_word_around,
    spoken_by,
)
from tests.far_asterisk import a_phone_call
from tests.far_browser import a_speaking_browser
from tests.far_carrier import a_telephone_call
from tests.far_room import a_telephone_in_a_room
from tts_plugin.audio import Pcm, bytes_of, level_dbfs, samples_of

AUDIBLE_DBFS = -45.0
STEP_S = 0.02
REPLY = "The ferry to the island leaves at nine every morning and takes two hours to cross."


class OpenCall(Protocol):
    """One call over the transport under test, both ends of it."""

    rate: int  # Hz of what the far end hears

    @property
    def output(self) -> io.AudioOutput:
        """What the agent speaks into, at 24 kHz."""

    @property
    def input(self) -> io.AudioInput:
        """What the agent hears."""

    @property
    def controls(self) -> list[Control]:
        """What our side was told to pass on so far."""

    def heard(self) -> Pcm:
        """Everything the far end has been given to play so far, silence included."""

    def speak(self, pcm: Pcm) -> None:
        """The caller says this (16 kHz) from now on, in real time."""

    async def hang_up(self) -> None:
        """The far end ends the call."""


@dataclass(frozen=True)
class Transport:
    """How to open a call, and how fast the transport is.

    delay_s: longest way from our output to the far end. mute_s: longest from a pause or clear until
    the far end plays silence. silent_p90_s: from an interruption to silence there, of five the worst
    left out. caller_dbfs_loss: how much quieter the caller may arrive.
    """

    open: Callable[[], AbstractAsyncContextManager[OpenCall]]
    delay_s: float = 0.1
    mute_s: float = 0.06
    silent_p90_s: float = 0.15
    caller_dbfs_loss: float = 4.0  # a mono peer's frames, made stereo and mono again, have lost 3.01


class _HandsetCall:
    def __init__(self, far_end: Handset) -> None:
        self._far_end = far_end
        self.rate = far_end.rate

    @property
    def output(self) -> io.AudioOutput:
        return self._far_end.output

    @property
    def input(self) -> io.AudioInput:
        return self._far_end.input

    @property
    def controls(self) -> list[Control]:
        return [control for control, _ in self._far_end.controls]

    def heard(self) -> Pcm:
        return self._far_end.heard

    def speak(self, pcm: Pcm) -> None:
        count = round(TICK_S * 16000)
        self._far_end.mic.extend(pcm[at : at + count] for at in range(0, len(pcm), count))

    async def hang_up(self) -> None:
        self._far_end.input.close()


@asynccontextmanager
async def _handset_call(rate: int) -> AsyncIterator[OpenCall]:
    async with handset(rate) as far_end:
        yield _HandsetCall(far_end)


TRANSPORTS: dict[str, Transport] = {
    "playout-8k": Transport(partial(_handset_call, 8000)),
    "playout-48k": Transport(partial(_handset_call, 48000)),
    # the peer's own buffer holds 80 ms; the page cuts its gain instead of waiting for it
    "webrtc": Transport(a_speaking_browser, delay_s=0.25, mute_s=0.2, silent_p90_s=0.25),
    "twilio": Transport(partial(a_telephone_call, "twilio")),
    "telnyx": Transport(partial(a_telephone_call, "telnyx")),
    "plivo": Transport(partial(a_telephone_call, "plivo")),
    "audiosocket-8k": Transport(a_phone_call),
    "audiosocket-16k": Transport(partial(a_phone_call, 16000)),
    "audiosocket-dribble": Transport(partial(a_phone_call, dribble=True)),
    # the track's queue holds 40 ms, the far peer's buffer 20 more
    "livekit": Transport(a_telephone_in_a_room, delay_s=0.25, mute_s=0.2),
}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    return TRANSPORTS[request.param]


def tone(seconds: float, rate: int, hz: float = 500.0) -> Pcm:
    return (8000 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.int16)


def frames(pcm: Pcm) -> list[rtc.AudioFrame]:
    step = round(STEP_S * RATE)
    parts = [pcm[at : at + step] for at in range(0, len(pcm), step)]
    return [rtc.AudioFrame(bytes_of(part), RATE, 1, len(part)) for part in parts]


async def say(call: OpenCall, seconds: float, hz: float = 500.0) -> None:
    for frame in frames(tone(seconds, RATE, hz)):
        await call.output.capture_frame(frame)


def audible_s(pcm: Pcm, rate: int) -> float:
    """Seconds of it that are not silence, in steps of 5 ms."""
    step = rate // 200
    return sum(level_dbfs(pcm[at : at + step]) > AUDIBLE_DBFS for at in range(0, len(pcm), step)) / 200


def audible_until_s(pcm: Pcm, rate: int) -> float:
    """Where the last sound in it ends, in steps of 5 ms."""
    step = rate // 200
    loud = [at for at in range(0, len(pcm), step) if level_dbfs(pcm[at : at + step]) > AUDIBLE_DBFS]
    return (loud[-1] + step) / rate if loud else 0.0


async def audible(call: OpenCall, seconds: float, within_s: float) -> None:
    """Wait until the far end has heard `seconds` of sound."""
    async with asyncio.timeout(within_s):
        while audible_s(call.heard(), call.rate) < seconds:
            await asyncio.sleep(0.01)


class Playback:
    """What the output reported."""

    def __init__(self, call: OpenCall) -> None:
        self.started = 0
        self.finished: list[io.PlaybackFinishedEvent] = []
        call.output.on("playback_started", self._start)
        call.output.on("playback_finished", self.finished.append)

    def _start(self, _: io.PlaybackStartedEvent) -> None:
        self.started += 1


async def test_an_utterance_arrives_whole_and_finishes_once(transport: Transport) -> None:
    async with transport.open() as call:
        playback = Playback(call)
        await say(call, 0.5)
        call.output.flush()
        event = await asyncio.wait_for(call.output.wait_for_playout(), 2)
        assert not event.interrupted
        assert event.playback_position == pytest.approx(0.5, abs=0.03)
        await audible(call, 0.45, transport.delay_s + 0.5)
        await asyncio.sleep(transport.delay_s)
        assert audible_s(call.heard(), call.rate) == pytest.approx(0.5, abs=0.06)
        assert (playback.started, len(playback.finished)) == (1, 1)


async def test_the_far_end_hears_silence_while_nobody_speaks(transport: Transport) -> None:
    async with transport.open() as call:
        before = len(call.heard())
        await asyncio.sleep(0.3)
        heard = call.heard()[before:]
        assert len(heard) / call.rate == pytest.approx(0.3, abs=0.15)
        assert audible_s(heard, call.rate) == 0


async def test_two_utterances_are_heard_one_after_the_other(transport: Transport) -> None:
    async with transport.open() as call:
        playback = Playback(call)
        for _ in range(2):
            await say(call, 0.2)
            call.output.flush()
        await asyncio.wait_for(call.output.wait_for_playout(), 2)
        await audible(call, 0.36, transport.delay_s + 0.5)
        assert [event.interrupted for event in playback.finished] == [False, False]


async def test_a_clear_silences_and_reports_what_was_heard(transport: Transport) -> None:
    async with transport.open() as call:
        playback = Playback(call)
        await say(call, 0.9)
        await audible(call, 0.2, 2)
        call.output.clear_buffer()
        call.output.flush()
        await asyncio.wait_for(call.output.wait_for_playout(), 1)
        (event,) = playback.finished
        assert event.interrupted
        assert 0.15 <= event.playback_position <= 0.35 + transport.delay_s
        await asyncio.sleep(transport.mute_s)
        silent_from = len(call.heard())
        await asyncio.sleep(0.3)
        assert audible_s(call.heard()[silent_from:], call.rate) == 0
        assert call.controls[-1] is Control.CLEAR


async def test_nothing_of_a_cleared_utterance_is_heard_in_the_next(transport: Transport) -> None:
    async with transport.open() as call:
        await say(call, 0.9, hz=500)
        await audible(call, 0.2, 2)
        call.output.clear_buffer()
        call.output.flush()
        await asyncio.wait_for(call.output.wait_for_playout(), 1)
        await asyncio.sleep(transport.mute_s)
        at = len(call.heard())
        await say(call, 0.4, hz=1500)
        call.output.flush()
        await asyncio.wait_for(call.output.wait_for_playout(), 2)
        await asyncio.sleep(transport.delay_s)
        heard = call.heard()[at:].astype(float)
        spectrum = np.abs(np.fft.rfft(heard)) ** 2
        hz = np.fft.rfftfreq(len(heard), 1 / call.rate)
        old, new = spectrum[(hz > 450) & (hz < 550)].sum(), spectrum[(hz > 1450) & (hz < 1550)].sum()
        assert new > 100 * old


async def test_a_pause_mutes_and_a_resume_gives_the_rest(transport: Transport) -> None:
    async with transport.open() as call:
        playback = Playback(call)
        assert call.output.can_pause
        await say(call, 0.6)
        call.output.flush()
        await audible(call, 0.2, 2)
        call.output.pause()
        await asyncio.sleep(transport.mute_s)
        muted_from = len(call.heard())
        await asyncio.sleep(0.2)
        assert audible_s(call.heard()[muted_from:], call.rate) == 0
        assert playback.finished == []
        call.output.resume()
        event = await asyncio.wait_for(call.output.wait_for_playout(), 2)
        assert event.playback_position == pytest.approx(0.6, abs=0.03)
        await asyncio.sleep(transport.delay_s)
        assert audible_s(call.heard(), call.rate) == pytest.approx(0.6, abs=0.08)
        assert [c for c in call.controls if c is not Control.START] == [Control.PAUSE, Control.RESUME]


async def test_an_interrupted_agent_is_silent_soon_and_remembers_what_was_heard(transport: Transport) -> None:
    """A whole session's turns, on scripted parts."""
    settings = AgentSettings(greeting="")
    session = build_session(
        tts=WordTTS(Audible()), stt=ScriptSTT(), llm=ScriptLLM([REPLY]), vad=ScriptVAD(), settings=settings
    )
    silent_s: list[float] = []
    histories: list[tuple[str, str]] = []
    async with transport.open() as call:
        running = converse(session, Assistant(settings), audio_in=call.input, audio_out=call.output)
        async with running as conversation:
            for turn in range(5):
                sounded_s = audible_s(call.heard(), call.rate)
                handle = conversation.say(REPLY)
                await audible(call, sounded_s + 0.5 + 0.13 * turn, 10)
                decided = len(call.heard())
                await conversation.interrupt()
                await handle.wait_for_playout()
                await asyncio.sleep(transport.mute_s + 0.1)
                heard = call.heard()
                silent_s.append(audible_until_s(heard[decided:], call.rate))
                spoken = spoken_by(REPLY, audible_s(heard, call.rate) - sounded_s)
                (message,) = (item for item in handle.chat_items if isinstance(item, llm.ChatMessage))
                histories.append((spoken, message.text_content or ""))
    assert sorted(silent_s)[-2] <= transport.silent_p90_s, silent_s
    assert all(one_word_around(REPLY, spoken, kept) for spoken, kept in histories), histories


async def test_a_clear_with_nothing_to_say_is_ignored(transport: Transport) -> None:
    async with transport.open() as call:
        playback = Playback(call)
        call.output.clear_buffer()
        call.output.flush()
        await asyncio.sleep(0.05)
        assert playback.finished == []


async def test_the_caller_is_heard_in_real_time_and_at_full_level(transport: Transport) -> None:
    async with transport.open() as call:
        said = tone(0.5, 16000, hz=400)
        call.speak(said)
        chunks: list[rtc.AudioFrame] = []
        async with asyncio.timeout(3):
            async for frame in call.input:
                chunks.append(frame)
                if sum(chunk.duration for chunk in chunks) > 0.9 + transport.delay_s:
                    break
        assert {(chunk.sample_rate, chunk.num_channels) for chunk in chunks} == {(chunks[0].sample_rate, 1)}
        pcm = np.concatenate([samples_of(bytes(chunk.data.cast("b"))) for chunk in chunks])
        rate = chunks[0].sample_rate
        assert audible_s(pcm, rate) == pytest.approx(0.5, abs=0.06)
        loudest = max(level_dbfs(pcm[at : at + rate // 10]) for at in range(0, len(pcm), rate // 20))
        assert loudest == pytest.approx(level_dbfs(said), abs=transport.caller_dbfs_loss)


async def test_hanging_up_ends_the_input(transport: Transport) -> None:
    async with transport.open() as call:
        await call.hang_up()
        async with asyncio.timeout(5):
            async for _ in call.input:
                pass
