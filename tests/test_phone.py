"""The agent on a telephone line: it greets, is interrupted, and remembers what the caller has heard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import pytest
from livekit.agents import llm

from agent.assistant import Assistant
from agent.calls import Calls
from agent.config import AgentSettings
from agent.heard import HeardAgent
from agent.line import Line, MediaLine
from agent.media_io import Control
from agent.phone import Answer, Receptionist, if_free
from agent.role_log import AgentSaid, Event
from agent.session import Conversation, build_session, converse
from agent.transports.dialect import Kind
from tests.fakes_livekit import S_PER_CHAR, Engine, ScriptLLM, ScriptSTT, ScriptVAD, WordTTS, spoken_by
from tests.far_carrier import RATE, TelephoneCall, a_telephone_call, office
from tts_plugin import TTS
from tts_plugin.audio import level_dbfs
from tts_plugin.engines.tone import ToneEngine

KINDS: tuple[Kind, ...] = get_args(Kind)
REPLY = "The ferry to the island leaves at nine every morning and takes two hours to cross."
LATENCY_S = 0.04  # of the network, each way
AUDIBLE_DBFS = -45.0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


async def until(true: Callable[[], object], within_s: float = 8.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


def heard_s(call: TelephoneCall) -> float:
    """Seconds that were not silent at the far end."""
    return sum(level_dbfs(block) > AUDIBLE_DBFS for block in call.far.played) * 0.02


async def hears(call: TelephoneCall, seconds: float) -> None:
    """Wait until the far end has had so much sound."""
    await until(lambda: heard_s(call) > seconds)


@dataclass
class Talk:
    call: TelephoneCall
    conversation: Conversation
    vad: ScriptVAD
    stt: ScriptSTT
    decided_s: list[float] = field(default_factory=list)  # when a pause or clear was asked for
    decided_at: list[int] = field(default_factory=list)  # and how many blocks had been played by then

    @property
    def said(self) -> list[llm.ChatMessage]:
        items = self.conversation.session.history.items
        return [item for item in items if isinstance(item, llm.ChatMessage) and item.role == "assistant"]

    async def messages(self, count: int) -> list[llm.ChatMessage]:
        """The agent's messages in the history, once there are so many."""
        await until(lambda: len(self.said) == count)
        return self.said

    async def silent_after_ms(self) -> float:
        """From the last decision to the far end's last sounding block; checks that it stays silent."""
        played, at = self.call.far.played, self.decided_at[-1]
        await until(lambda: len(played) >= at + 25)
        loud = [n for n, block in enumerate(played[at:]) if level_dbfs(block) > AUDIBLE_DBFS]
        assert max(loud, default=0) < 15, "the far end still sounds"
        return max(loud, default=-1) * 20.0 + 20.0


@asynccontextmanager
async def a_talk(kind: Kind, *, speed: float = 4.0) -> AsyncIterator[Talk]:
    """A scripted session on a telephone line whose network takes its time."""
    vad, ears = ScriptVAD(), ScriptSTT()
    settings = AgentSettings(greeting="", false_interruption_s=0.4)
    session = build_session(
        tts=WordTTS(Engine(speed=speed)), stt=ears, llm=ScriptLLM([REPLY]), vad=vad, settings=settings
    )
    async with a_telephone_call(kind, latency_s=LATENCY_S) as call:
        running = converse(session, Assistant(settings), audio_in=call.input, audio_out=call.output)
        async with running as conversation:
            talk = Talk(call, conversation, vad, ears)

            def decided(control: Control) -> None:
                if control in (Control.PAUSE, Control.CLEAR):
                    talk.decided_s.append(time.monotonic())
                    talk.decided_at.append(len(call.far.played))

            call.output.on_control(decided)
            yield talk


@pytest.mark.parametrize("speed", [1.5, 50.0], ids=["still synthesising", "synthesis done"])
async def test_an_interruption_silences_the_far_end_and_the_history_ends_where_it_was_cut(
    kind: Kind, speed: float
) -> None:
    silent_ms: list[float] = []
    async with a_talk(kind, speed=speed) as talk:
        for turn in range(4):
            before_s = heard_s(talk.call)
            talk.conversation.say(REPLY)
            await hears(talk.call, before_s + 0.6 + 0.13 * turn)
            await talk.conversation.interrupt()
            silent_ms.append(await talk.silent_after_ms())
            text = str((await talk.messages(turn + 1))[-1].text_content)
            assert REPLY.startswith(text)
            whole = f"{spoken_by(REPLY, heard_s(talk.call) - before_s)}|".split()[
                :-1
            ]  # to the last one's end
            assert abs(len(text.split()) - len(whole)) <= 1, (text, whole)
        assert len(talk.call.far.cleared_s) == 4
        assert all(at_s - asked_s < 0.1 + LATENCY_S for at_s, asked_s in _pairs(talk))
    # all but one of the cuts; of every one, 40 ms are spent in the network
    assert sorted(silent_ms)[-2] < 150, silent_ms


def _pairs(talk: Talk) -> list[tuple[float, float]]:
    return list(zip(talk.call.far.cleared_s, talk.decided_s, strict=True))


async def test_a_cough_pauses_the_far_end_and_then_nothing_is_missing(kind: Kind) -> None:
    async with a_talk(kind) as talk:
        talk.conversation.say(REPLY)
        await until(lambda: heard_s(talk.call) > 0.8)
        talk.vad.begin()
        await until(lambda: talk.decided_s)
        assert await talk.silent_after_ms() < 150
        talk.vad.end()
        await until(lambda: talk.said)
        assert talk.said[0].text_content == REPLY
        await asyncio.sleep(0.3)
        # a block may be heard twice where it was cut, none may be missing
        whole_s = len(REPLY) * S_PER_CHAR
        assert whole_s - 0.03 <= heard_s(talk.call) <= whole_s + 0.25


async def test_the_far_end_is_never_far_behind_and_hears_every_sample(kind: Kind) -> None:
    async with a_talk(kind) as talk:
        talk.conversation.say(REPLY)
        await until(lambda: talk.said)
        whole_s = len(REPLY) * S_PER_CHAR
        await until(lambda: heard_s(talk.call) > whole_s - 0.06)
        await asyncio.sleep(0.2)  # nothing more comes
        assert max(talk.call.far.waiting_s) <= 0.2 + 0.02
        assert heard_s(talk.call) == pytest.approx(whole_s, abs=0.06)
        assert talk.call.far.cleared_s == []


# ------------------------------------------------------------------------------------ the receptionist
@dataclass
class Bot:
    """Says one thing, notes what happens, and attends until it is told not to."""

    line: Line
    events: list[Event] = field(default_factory=list)
    attended: asyncio.Event = field(default_factory=asyncio.Event)
    left: bool = False
    ends: int = 0

    @property
    def agent(self) -> HeardAgent:
        return Assistant(AgentSettings(greeting="Good morning to you."))

    def show(self, event: Event) -> None:
        self.events.append(event)

    async def attend(self, conversation: Conversation) -> None:
        self.attended.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True

    def over(self) -> None:
        assert self.left
        self.ends += 1


def receptionist(calls: Calls, bots: list[Bot], *, voice: str | None = "tone") -> Receptionist:
    async def make_tts() -> TTS:
        return TTS(engine=ToneEngine(), voice=voice)

    def make_bot(line: Line) -> Bot:
        bots.append(Bot(line))
        return bots[-1]

    settings = AgentSettings(echo_guard=False)
    return Receptionist(settings, ScriptSTT(), ScriptLLM([REPLY]), make_tts, calls, make_bot)


async def test_a_caller_is_greeted_by_the_bot_of_the_line_until_one_hangs_up(kind: Kind) -> None:
    calls, bots = Calls(), list[Bot]()
    async with office(kind, receptionist(calls, bots), calls) as place, place.dialled() as far:
        await until(lambda: any(level_dbfs(block) > AUDIBLE_DBFS for block in far.played))
        await until(lambda: any(isinstance(event, AgentSaid) and event.final for event in bots[0].events))
        assert bots[0].line.call.caller == "+15550111"
        assert bots[0].attended.is_set()
        bots[0].line.hang_up("said good-bye")
        await asyncio.wait_for(far.closed.wait(), 5)
        assert bots[0].left
        await until(lambda: bots[0].ends == 1)
        assert far.breaches == []
    text = calls.exposition().decode()
    assert f'sparkvoice_first_word_seconds_count{{transport="{kind}"}} 1.0' in text
    assert f'sparkvoice_call_seconds_count{{transport="{kind}"}} 1.0' in text
    assert f'sparkvoice_barge_ins_total{{transport="{kind}"}} 0.0' in text  # the call's end is none


async def test_an_engine_that_is_not_there_ends_the_call(caplog: pytest.LogCaptureFixture) -> None:
    from tts_plugin.errors import EngineUnavailable

    async def make_tts() -> TTS:
        raise EngineUnavailable("nothing listens there")

    calls = Calls()
    answer = Receptionist(AgentSettings(), ScriptSTT(), ScriptLLM([REPLY]), make_tts, calls)
    async with office("twilio", answer, calls) as place, place.dialled() as far:
        await asyncio.wait_for(far.closed.wait(), 5)
    assert "a call ended: nothing listens there" in caplog.text


async def test_a_line_without_a_busy_signal_is_hung_up_when_all_are_taken() -> None:
    calls, talked = Calls(max_calls=1), list[MediaLine]()

    async def answer(line: MediaLine) -> None:
        talked.append(line)
        assert calls.taken == 1

    async with a_telephone_call("twilio") as call:
        polite: Answer = if_free(calls, answer)
        await polite(call.line)
        assert talked == [call.line]
        assert calls.taken == 0
        with calls.place("audiosocket"):
            await polite(call.line)
        assert talked == [call.line]
        assert "lines are busy" in await call.line.ended()


def test_the_fake_voice_is_loud_enough_to_be_told_from_silence() -> None:
    assert level_dbfs(np.full(RATE, 5000, dtype=np.int16)) > AUDIBLE_DBFS + 20
