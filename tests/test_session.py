"""The real AgentSession, headless, on scripted parts: turns, interruptions, histories, captions."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from livekit.agents import llm

from agent.assistant import Assistant
from agent.brains import FaqBrain
from agent.config import GREETING, AgentSettings, LlmSettings, PhoneSettings, Settings
from agent.faq import Entry, Faq
from agent.media_io import Control
from agent.role_log import AgentSaid, Ended, Event, FalseInterruption, StateChanged, TurnMeasured, UserSaid
from agent.session import Conversation, build_llm, build_session, build_vad, converse
from tests.fakes_livekit import (
    RATE,
    S_PER_CHAR,
    Engine,
    Handset,
    ScriptLLM,
    ScriptSTT,
    ScriptVAD,
    ToolCall,
    WordTTS,
    handset,
    spoken_by,
    voice,
)
from tts_plugin.audio import samples_of

REPLY = "The ferry to the island leaves at nine every morning and takes two hours to cross."
SHORT = "The ferry leaves at nine."
DATA = Path(__file__).parent / "data"


@dataclass
class Call:
    conversation: Conversation
    far_end: Handset
    engine: Engine
    vad: ScriptVAD
    stt: ScriptSTT
    brain: ScriptLLM
    events: list[Event]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def said(self) -> list[llm.ChatMessage]:
        """The agent's messages in the history."""
        items = self.conversation.session.history.items
        return [item for item in items if isinstance(item, llm.ChatMessage) and item.role == "assistant"]


@asynccontextmanager
async def call(
    replies: Sequence[str | ToolCall] = (REPLY,),
    *,
    greeting: str = "",
    engine: Engine | None = None,
    rate: int = RATE,
    tools: Sequence[llm.Tool] = (),
    settings: AgentSettings | None = None,
    real_vad: bool = False,
    brain: FaqBrain | None = None,
) -> AsyncIterator[Call]:
    settings = settings or AgentSettings(greeting=greeting, false_interruption_s=0.3)
    voice_ = WordTTS(engine)
    ears, scripted, script = ScriptSTT(), ScriptVAD(), ScriptLLM(replies)
    events: list[Event] = []
    async with (
        handset(rate) as far_end,
        converse(
            build_session(
                tts=voice_,
                stt=ears,
                llm=brain or script,
                vad=build_vad(settings, far_end.playout) if real_vad else scripted,
                settings=settings,
            ),
            Assistant(settings, tools=tools),
            audio_in=far_end.input,
            audio_out=far_end.output,
            tell=events.append,
        ) as conversation,
    ):
        yield Call(conversation, far_end, voice_.engine, scripted, ears, script, events)


async def until(true: Callable[[], object], within_s: float = 8.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


def one_word_around(text: str, said: str) -> bool:
    """Whether `said` is the beginning of `text` up to a word that `text` ends in or next to."""
    words, heard = said.split(), text.split()
    return abs(len(words) - len(heard)) <= 1 and REPLY.split()[: len(words)] == words


@pytest.fixture(autouse=True)
def nobody_complains(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """LiveKit logs a warning where it finds a sink or a turn out of order: here that is a failure."""
    yield
    complaints = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= WARNING]
    assert complaints == []


async def test_the_greeting_is_said_on_start_and_captioned_as_it_is_heard() -> None:
    async with call(greeting=SHORT) as one:
        await until(lambda: one.said)
        await until(lambda: any(event.final for event in one.of(AgentSaid)))
        assert one.said[0].text_content == SHORT
        captions = one.of(AgentSaid)
        assert captions[-1] == AgentSaid(0, SHORT, final=True, interrupted=False)
        growing = [event.text for event in captions if not event.final]
        assert growing == sorted(growing, key=len)
        assert len(growing) >= 4
        assert one.far_end.sounding_s == pytest.approx(len(SHORT) * S_PER_CHAR, abs=0.002)


@pytest.mark.parametrize("brain", ["a FAQ", "a language model"])
async def test_without_a_greeting_of_its_own_the_agent_says_the_faqs(brain: str) -> None:
    greeting = "Hello, this is Harbour Lamps." if brain == "a FAQ" else GREETING
    entry = Entry(questions=("when",), answer=("At nine.",))
    faq = Faq(greeting=greeting, fallback="No idea.", again="Pardon?", entries=(entry,))
    answering = FaqBrain(faq) if brain == "a FAQ" else None
    async with call(settings=AgentSettings(), brain=answering) as one:
        await until(lambda: one.said)
        assert one.said[0].text_content == greeting


async def test_a_spoken_turn_is_answered_logged_and_measured() -> None:
    async with call([SHORT]) as one:
        one.vad.begin()
        one.stt.hear("when does", final=False)
        await asyncio.sleep(0.5)  # 0.3 s of speech, 0.2 s of silence
        one.stt.hear("when does the ferry leave")
        await asyncio.sleep(0.08)
        one.vad.end(speech_s=0.3)
        await until(lambda: one.said)
        await until(lambda: one.of(TurnMeasured))
        assert [(event.text, event.final) for event in one.of(UserSaid)] == [
            ("when does", False),
            ("when does the ferry leave", True),
        ]
        assert one.said[0].text_content is not None
        assert one.said[0].text_content.strip() == SHORT
        measured = one.of(TurnMeasured)[-1]
        assert measured.speech_ms is not None
        assert measured.speech_ms > 0
        assert measured.answer_ms is not None
        assert measured.recognition_ms == pytest.approx(200, abs=100)
        assert measured.endpointing_ms == pytest.approx(80, abs=100)
        assert measured.total_ms is not None
        assert measured.total_ms > measured.recognition_ms
        states = [event.state for event in one.of(StateChanged) if event.who == "agent"]
        assert states[-2:] == ["speaking", "listening"]
        assert len(one.brain.asked) == 1


async def test_interrupted_before_the_first_audio_leaves_no_history() -> None:
    async with call(engine=Engine(ttfa_s=5.0)) as one:
        handle = one.conversation.say(REPLY)
        await until(lambda: one.engine.active)
        await asyncio.wait_for(one.conversation.interrupt(), 1)
        await asyncio.wait_for(handle.wait_for_playout(), 1)
        await until(lambda: one.engine.active == 0, 1)
        assert one.said == []
        assert one.far_end.sounding_s == 0
        assert one.engine.cancelled == 1
        assert one.of(AgentSaid) == []


async def test_a_turn_cut_in_the_middle_of_its_first_word_stands_in_the_history_as_it_was_captioned() -> None:
    async with call([SHORT]) as one:
        handle = one.conversation.say("Congratulations are in order.")
        await until(lambda: one.of(AgentSaid))
        assert one.far_end.sounding_s >= len("Congratulations ") / 2 * S_PER_CHAR
        await asyncio.wait_for(one.conversation.interrupt(), 1)
        await asyncio.wait_for(handle.wait_for_playout(), 1)
        await until(lambda: any(event.final for event in one.of(AgentSaid)), 1)
        assert one.of(AgentSaid)[-1] == AgentSaid(0, "Congratulations", final=True, interrupted=True)
        assert [message.text_content for message in one.said] == ["Congratulations "]
        await one.conversation.say(SHORT)
        await until(lambda: one.of(AgentSaid)[-1].turn == 1)
        assert all(SHORT.startswith(event.text) for event in one.of(AgentSaid) if event.turn == 1)


async def test_a_turn_cut_at_the_begin_of_its_first_word_leaves_neither_history_nor_caption() -> None:
    async with call([SHORT]) as one:
        handle = one.conversation.say("Congratulations are in order.")
        await until(lambda: one.far_end.sounding_s)
        await asyncio.wait_for(one.conversation.interrupt(), 1)
        assert one.far_end.sounding_s < len("Congratulations ") / 2 * S_PER_CHAR
        await asyncio.wait_for(handle.wait_for_playout(), 1)
        assert one.said == []
        assert one.of(AgentSaid) == []


async def test_ten_cuts_at_any_place_leave_what_was_heard_to_half_a_word() -> None:
    async with call() as one:
        for number in range(10):
            before_s = one.far_end.sounding_s
            handle = one.conversation.say(REPLY)
            wanted_s = before_s + 0.3 + 0.17 * number
            await until(lambda wanted_s=wanted_s: one.far_end.sounding_s >= wanted_s)  # type: ignore[misc]
            await asyncio.wait_for(one.conversation.interrupt(), 1)
            await asyncio.wait_for(handle.wait_for_playout(), 1)
            heard = spoken_by(REPLY, one.far_end.sounding_s - before_s)
            text = one.said[-1].text_content or ""
            assert REPLY.startswith(text)
            begun, whole = len(heard.split()), len(heard.split(" ")) - 1
            assert whole <= len(text.split()) <= begun, (text, heard)


async def test_interrupted_in_the_middle_the_history_is_what_was_heard() -> None:
    async with call() as one:
        handle = one.conversation.session.generate_reply(user_input="when is the ferry")
        await until(lambda: one.far_end.sounding_s > 1.2)
        await asyncio.wait_for(one.conversation.interrupt(), 1)
        sounded_s = one.far_end.sounding_s
        assert one.engine.active == 0
        await asyncio.wait_for(handle.wait_for_playout(), 1)
        await asyncio.sleep(0.2)
        assert one.far_end.sounding_s <= sounded_s + 0.03  # a block under way and the 5 ms fade
        (message,) = one.said
        assert message.interrupted
        assert one_word_around(spoken_by(REPLY, sounded_s), message.text_content or "")
        final = one.of(AgentSaid)[-1]
        assert final == AgentSaid(0, (message.text_content or "").strip(), final=True, interrupted=True)


async def test_interrupted_after_the_end_changes_nothing() -> None:
    async with call() as one:
        await one.conversation.say(SHORT)
        await asyncio.wait_for(one.conversation.interrupt(), 1)
        (message,) = one.said
        assert message.text_content == SHORT
        assert not message.interrupted
        await one.conversation.say("Anything else?")
        assert [message.text_content for message in one.said] == [SHORT, "Anything else?"]


async def test_speech_mutes_within_a_block_and_words_commit_the_interruption() -> None:
    async with call() as one:
        handle = one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.8)
        began = len(one.far_end.blocks)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused, 0.5)
        (muted,) = [at for control, at in one.far_end.controls if control is Control.PAUSE]
        assert muted <= began + 1
        await asyncio.sleep(0.1)
        fade = round(0.005 * RATE)
        after = np.concatenate(one.far_end.blocks[muted:])
        assert not after[fade:].any()
        assert not handle.interrupted  # a pause frees nothing yet
        heard_s = one.far_end.sounding_s
        one.stt.hear("wait a second")
        await until(lambda: handle.interrupted, 1)
        await asyncio.wait_for(handle.wait_for_playout(), 1)
        assert one.engine.active == 0
        one.vad.end()
        message = one.said[0]
        assert message.interrupted
        assert one_word_around(spoken_by(REPLY, heard_s), message.text_content or "")
        await until(lambda: len(one.said) == 2 or one.far_end.sounding_s > heard_s + 0.1)  # the new answer


async def test_a_cough_resumes_with_the_whole_text_said_once() -> None:
    async with call() as one:
        handle = one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.8)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused, 0.5)
        await asyncio.sleep(0.1)
        one.vad.end()
        await until(lambda: one.of(FalseInterruption))
        assert one.of(FalseInterruption) == [FalseInterruption(resumed=True)]
        await asyncio.wait_for(handle.wait_for_playout(), 8)
        (message,) = one.said
        assert message.text_content == REPLY
        assert not message.interrupted
        assert one.engine.texts == [f"{word} " for word in REPLY.split()[:-1]] + [REPLY.split()[-1]]
        # without its silences, what was heard is the voice sample for sample, but for the two fades
        heard = one.far_end.heard
        sounded = heard[np.flatnonzero(heard)[0] :]
        sounded = sounded[sounded != 0]
        whole = voice(round(len(REPLY) * S_PER_CHAR * RATE))
        assert len(sounded) == pytest.approx(len(whole), abs=2)
        differing = np.flatnonzero(sounded[: len(whole)] != whole[: len(sounded)])
        assert len(differing) <= 2 * round(0.005 * RATE)
        assert differing[-1] - differing[0] <= 2 * round(0.005 * RATE)


async def test_after_a_false_interruption_a_real_one_still_works() -> None:
    async with call([SHORT]) as one:
        handle = one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.4)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused, 0.5)
        one.vad.end()
        await until(lambda: one.of(FalseInterruption))
        await until(lambda: not one.far_end.playout.paused)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused, 0.5)
        one.stt.hear("stop please")
        await until(lambda: handle.interrupted, 1)
        one.vad.end()
        await until(lambda: len(one.said) == 2)
        assert [message.interrupted for message in one.said] == [True, False]


async def test_a_caller_s_real_voice_mutes_the_agent() -> None:
    with wave.open(str(DATA / "goforward.wav")) as file:
        caller = samples_of(file.readframes(file.getnframes()))
    async with call(real_vad=True) as one:
        one.conversation.say(REPLY)
        await until(lambda: len(one.far_end.blocks) > 55)  # the first second of a call is ignored
        one.far_end.mic.extend(np.split(caller[: len(caller) // 320 * 320], len(caller) // 320))
        await until(lambda: one.far_end.playout.paused, 1.5)


async def test_a_turn_that_only_calls_a_tool_does_not_hang() -> None:
    called: list[str] = []

    @llm.function_tool
    async def lookup() -> str:
        """Look up the timetable."""
        called.append("lookup")
        return "nine"

    async with call([ToolCall("lookup"), SHORT], tools=[lookup]) as one:
        handle = one.conversation.session.generate_reply(user_input="when is the ferry")
        await asyncio.wait_for(handle.wait_for_playout(), 6)
        await until(lambda: one.said)
        assert called == ["lookup"]
        assert (one.said[-1].text_content or "").strip() == SHORT


async def test_ten_unspeakable_turns_in_a_row_survive() -> None:
    texts = ["...", "🙂", "**", "- ", "!!!", "…", "( )", "???", "*", "—"]
    async with call([*texts, SHORT]) as one:
        for _ in texts:
            handle = one.conversation.session.generate_reply(user_input="hm")
            await asyncio.wait_for(handle.wait_for_playout(), 3)
        await asyncio.wait_for(
            one.conversation.session.generate_reply(user_input="so?").wait_for_playout(), 5
        )
        assert one.of(Ended) == []
        assert (one.said[-1].text_content or "").strip() == SHORT


async def test_an_8_khz_line_hears_the_whole_reply() -> None:
    async with call(rate=8000) as one:
        await one.conversation.say(SHORT)
        assert one.far_end.sounding_s == pytest.approx(len(SHORT) * S_PER_CHAR, abs=0.01)
        assert np.abs(one.far_end.heard.astype(int)).max() < 32767


async def test_typed_text_stops_the_agent_and_is_answered() -> None:
    async with call([SHORT]) as one:
        one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.3)
        handle = await one.conversation.ask("when is the ferry?")
        await asyncio.wait_for(handle.wait_for_playout(), 5)
        assert UserSaid("when is the ferry?", final=True) in one.events
        assert [message.interrupted for message in one.said] == [True, False]


async def test_hanging_up_in_the_middle_frees_the_engine_and_says_so() -> None:
    async with call() as one:
        one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.3)
    assert one.engine.active == 0
    assert [event.error for event in one.of(Ended)] == [None]
    await asyncio.wait_for(one.conversation.closed(), 1)


async def test_hanging_up_while_paused_does_not_wait_for_anything() -> None:
    async with call() as one:
        one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.3)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused, 0.5)
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s < 2.0
    assert one.engine.active == 0


async def test_hanging_up_on_a_caller_who_speaks_keeps_the_words_and_complains_of_nothing() -> None:
    async with call() as one:
        one.conversation.say(REPLY)
        await until(lambda: one.far_end.sounding_s > 0.3)
        one.vad.begin()
        one.stt.hear("when does the", final=False)
        await until(lambda: one.of(UserSaid))
    messages = one.conversation.session.history.messages()
    assert (messages[-1].role, messages[-1].text_content) == ("user", "when does the")
    assert logging.getLogger("livekit.agents").filters == []


async def test_a_call_leaves_no_task_behind() -> None:
    async with call(greeting=SHORT) as one:
        await until(lambda: one.far_end.sounding_s > 0.2)
    await asyncio.sleep(0.1)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


def test_with_a_key_or_an_url_a_language_model_answers() -> None:
    brain = build_llm(
        Settings(AgentSettings(), PhoneSettings(), LlmSettings("small", "http://127.0.0.1:9/v1", "none"))
    )
    assert brain.model == "small"
    assert "openai" in type(brain).__module__


MODELS_UNTOUCHED = """
import livekit.local_inference as models

def forbidden(*args, **kwargs):
    raise AssertionError("a model of livekit-local-inference was built")

models.VAD = models.EOT = models.init_vad = models.init_eot = forbidden

import asyncio
from tests.test_session import SHORT, call, until

async def main():
    async with call([SHORT], greeting=SHORT) as one:
        await until(lambda: one.far_end.sounding_s > 0.8)
        one.vad.begin()
        await until(lambda: one.far_end.playout.paused)
        one.stt.hear("wait")
        one.vad.end()
        await until(lambda: len(one.said) == 2)
    return len(one.said)

print("answers:", asyncio.run(main()))
"""


def test_neither_model_that_comes_with_livekit_is_built() -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", MODELS_UNTOUCHED],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "answers: 2" in done.stdout
