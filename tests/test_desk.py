"""A telephone desk on a line: a real session and a scripted caller."""

from __future__ import annotations

import asyncio
import json
import re
import wave
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from livekit.agents import llm

from agent.calls import Calls
from agent.config import Settings, load_settings
from agent.desk.bot import open_desk
from agent.desk.settings import LanguageSettings
from agent.phone import Receptionist
from agent.session import Conversation, build_llm
from tests.fakes_livekit import Engine, ScriptLLM, ScriptSTT, ToolCall, WordTTS
from tests.scripted_line import ScriptedLine, ringing

OPEN = datetime.fromisoformat("2026-01-05T10:00:00+00:00")  # a Monday
CLOSED = datetime.fromisoformat("2026-01-04T10:00:00+00:00")
HELLO = "Hello there."


class Call:
    """A line being answered. said: what the agent began to say, in order."""

    def __init__(self, line: ScriptedLine, engine: Engine, ears: ScriptSTT) -> None:
        self.line = line
        self.ears = ears
        self._engine = engine
        self.conversation: Conversation | None = None

    @property
    def said(self) -> str:
        return "".join(self._engine.texts)

    async def until(self, true: Callable[[], bool], within_s: float = 8.0) -> None:
        async with asyncio.timeout(within_s):
            while not true():
                await asyncio.sleep(0.01)

    async def hears(self, text: str) -> None:
        await self.until(lambda: text in self.said)

    async def replied(self, text: str, times: int = 1) -> None:
        """Until so many turns of the agent in the history end with `text`."""

        def there() -> bool:
            if self.conversation is None:
                return False
            said = self.conversation.session.history.messages()
            ends = [message for message in said if (message.text_content or "").strip().endswith(text)]
            return len(ends) >= times

        await self.until(there)

    async def silent(self) -> None:
        """Until the agent has said all it wanted to."""
        await self.until(lambda: self.line.playout.idle)


def settings(desk: Mapping[str, Any], **agent: Any) -> Settings:
    quiet: dict[str, Any] = {"silence": None, "limit": None, **desk}
    return load_settings(
        arguments={"greeting": HELLO, "endpointing_s": 0.0, **agent}, phone={"desk": quiet}, environ={}
    )


@asynccontextmanager
async def answered(
    told: Settings,
    *,
    replies: list[str | ToolCall] | None = None,
    brain: Any = None,
    now: datetime = OPEN,
    refuses: str | None = None,
) -> AsyncIterator[Call]:
    engine, ears = Engine(speed=20), ScriptSTT()
    mouth = WordTTS(engine)

    async def make_tts() -> Any:  # a WordTTS stands for the product's TTS
        return mouth

    async with open_desk(told, now=lambda: now) as desk, ringing(refuses=refuses) as line:
        call = Call(line, engine, ears)

        def meet(_: Any, conversation: Conversation) -> None:
            call.conversation = conversation

        answer = Receptionist(
            told.agent, ears, brain or ScriptLLM(replies or ["Well."]), make_tts, Calls(), desk.bot, meet
        )
        talking = asyncio.create_task(answer(line))
        try:
            yield call
        finally:
            line.hang_up("the caller hung up")
            await asyncio.wait_for(talking, 10)


async def test_a_desk_greets_and_answers() -> None:
    async with answered(settings({}), replies=["Two days."]) as call:
        await call.hears("there.")
        await call.silent()
        call.ears.hear("how long does it take")
        await call.hears("days.")
    assert call.line.why == "the caller hung up"


async def test_a_closed_desk_says_so_and_hands_nobody_over() -> None:
    told = settings(
        {
            "closed": "We are closed.",
            "hours": {"monday": "09:00-18:00"},
            "hand_over": {"to": "+15550100", "closed": "Nobody is here."},
            "keys": {"0": {"hand_over": True}},
        }
    )
    async with answered(told, now=CLOSED) as call:
        await call.hears("closed.")
        call.line.press("0")
        await call.hears("Nobody is here.")
        assert HELLO not in call.said
        assert call.line.transferred == []


async def test_a_key_hands_the_caller_over_once_that_has_been_said() -> None:
    told = settings(
        {"hand_over": {"to": "+15550100", "say": "I connect you."}, "keys": {"0": {"hand_over": True}}}
    )
    async with answered(told) as call:
        call.line.press("0")  # even before the greeting
        await call.hears("connect you.")
        assert call.line.transferred == []
        await call.until(lambda: call.line.transferred == ["+15550100"])
        sounded_s = call.line.far_end.sounding_s
        assert sounded_s >= 0.8 * len("I connect you.") * 0.04
    assert call.line.why == "handed over"


async def test_a_carrier_that_refuses_leaves_the_caller_with_the_agent() -> None:
    told = settings(
        {"hand_over": {"to": "+15550100", "failed": "Nobody answers."}, "keys": {"0": {"hand_over": True}}}
    )
    async with answered(told, replies=["Still here."], refuses="busy") as call:
        call.line.press("0")
        await call.hears("Nobody answers.")
        await call.silent()
        call.ears.hear("are you there")
        await call.hears("Still here.")


async def test_a_language_model_hands_over_and_hangs_up_by_tools() -> None:
    told = settings({"hand_over": {"to": "sip:desk@example.org"}})
    async with answered(told, replies=[ToolCall("hand_over")]) as call:
        await call.hears("there.")
        await call.silent()
        call.ears.hear("give me a human")
        await call.until(lambda: call.line.transferred == ["sip:desk@example.org"])
    async with answered(settings({"goodbye": "Bye now."}), replies=[ToolCall("hang_up")]) as call:
        await call.hears("there.")
        await call.silent()
        call.ears.hear("goodbye")
        await call.until(lambda: call.line.why == "the agent said goodbye")
        assert call.said.endswith("Bye now.")


async def test_without_a_language_model_the_faq_does_all_that() -> None:
    told = settings({"hand_over": {"to": "+15550100"}, "keys": {"*": {"ask": "could you repeat that"}}})
    async with answered(told, brain=build_llm(told)) as call:
        await call.hears("there.")
        await call.silent()
        call.ears.hear("what is your phone number")
        await call.hears("four two.")
        await call.silent()
        call.ears.hear("can you spell that")
        await call.hears("five, five, five; oh, one, four, two.")
        await call.silent()
        call.ears.hear("what are your opening hours")
        await call.hears("until noon.")
        await call.silent()
        call.line.press("*")
        await call.until(lambda: call.said.count("until noon.") == 2)
        await call.silent()
        call.ears.hear("i want to speak to a human")
        await call.until(lambda: call.line.transferred == ["+15550100"])


async def test_silence_is_prompted_and_then_the_agent_hangs_up() -> None:
    told = settings({"silence": {"after_s": 0.4, "prompts": ["Hello?"], "goodbye": "Bye."}})
    async with answered(told) as call:
        await call.hears("there. Hello?".removeprefix("there. "))
        await call.hears("Bye.")
        await call.until(lambda: call.line.why is not None)
    assert call.line.why == "the agent gave up waiting, or the time was up"


async def test_a_call_has_an_end_even_while_the_agent_speaks() -> None:
    told = settings({"limit": {"call_s": 1.5, "warning_s": 0, "goodbye": "Time is up."}})
    async with answered(told, replies=["A very long story " * 20]) as call:
        await call.hears("there.")
        await call.silent()
        call.ears.hear("tell me a story")
        await call.hears("Time is up.")
        await call.until(lambda: call.line.why is not None)


@pytest.mark.parametrize("refuses", [None, "busy"])
async def test_a_call_whose_time_is_up_while_it_is_handed_over_is_handed_over_first(
    refuses: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    told = settings(
        {
            "limit": {"call_s": 0.5, "warning_s": 0, "goodbye": "Time is up."},
            "hand_over": {"to": "+15550100", "say": "I connect you with a colleague.", "failed": "No."},
            "keys": {"0": {"hand_over": True}},
        }
    )
    async with answered(told, refuses=refuses) as call:
        call.line.carrier_s = 0.5
        call.line.press("0")
        await call.until(lambda: call.line.why is not None)
    assert ("Time is up." in call.said) == (refuses is not None)
    assert call.line.transferred == ([] if refuses else ["+15550100"])
    assert "a call failed" not in caplog.text


async def test_a_call_ends_also_when_its_last_words_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.desk.bot._LAST_WORDS_S", 0.2)
    told = settings({"keys": {"#": {"hang_up": True}}, "goodbye": "Goodbye, " * 50})
    async with answered(told) as call:
        call.line.press("#")
        await call.until(lambda: call.line.why == "the agent said goodbye")


async def test_a_key_changes_the_language(tmp_path: Path) -> None:
    faq = tmp_path / "faq.yaml"
    faq.write_text(
        "greeting: Hej\nfallback: Vad?\nagain: Igen?\nentries:\n"
        "  - questions: [tack]\n    answer: Varsågod.\n"
    )
    told = settings(
        {
            "keys": {"2": {"language": "sv"}},
            "languages": {"sv": {"greeting": "God dag.", "faq": str(faq)}},
        }
    )
    async with answered(told) as call:
        await call.hears("there.")
        call.line.press("2")
        await call.hears("God dag.")
        await call.silent()
        call.ears.hear("tack")
        await call.hears("Varsågod.")


SWEDISH: dict[str, Any] = {
    "greeting": "God dag.",
    "instructions": "Svara kort.",
    "goodbye": "Hej då.",
    "hand_over": {"failed": "Ingen svarar."},
    "asks": {"3": "var är mitt paket"},
}
BILINGUAL: dict[str, Any] = {
    "keys": {
        "0": {"hand_over": True},
        "1": {"language": "en"},
        "2": {"language": "sv"},
        "3": {"ask": "where is my parcel"},
        "#": {"hang_up": True},
    },
    "hand_over": {"failed": "Nobody answers."},
    "back": "English again.",
    "languages": {"sv": SWEDISH},
}


def said_in(context: llm.ChatContext) -> list[tuple[str, str]]:
    return [(message.role, (message.text_content or "").strip()) for message in context.messages()]


async def test_a_change_of_language_forgets_nothing_and_can_be_taken_back() -> None:
    brain = ScriptLLM(["Hello Ann.", "Ann.", "Still Ann."])
    async with answered(settings(BILINGUAL, instructions="Be brief."), brain=brain) as call:
        await call.replied(HELLO)
        call.ears.hear("my name is ann")
        await call.replied("Hello Ann.")
        call.line.press("2")
        await call.replied("God dag.")
        call.ears.hear("vad heter jag")
        await call.replied("Ann.", times=2)
        call.line.press("1")
        await call.replied("English again.")
        call.ears.hear("and now")
        await call.replied("Still Ann.")
    before = [("assistant", HELLO), ("user", "my name is ann"), ("assistant", "Hello Ann.")]
    swedish = [("assistant", "God dag."), ("user", "vad heter jag")]
    assert said_in(brain.asked[1]) == [("system", "Svara kort."), *before, *swedish]
    back = [("assistant", "Ann."), ("assistant", "English again."), ("user", "and now")]
    assert said_in(brain.asked[2]) == [("system", "Be brief."), *before, *swedish, *back]


async def test_what_a_change_of_language_cuts_short_is_remembered_as_far_as_it_was_heard() -> None:
    story = "Once upon a time there was a lamp that nobody wanted to switch on."
    brain = ScriptLLM([story, "Jaha."])
    async with answered(settings(BILINGUAL), brain=brain) as call:
        await call.replied(HELLO)
        call.ears.hear("tell me a story")
        await call.hears("Once upon")
        await asyncio.sleep(0.6)
        call.line.press("2")
        await call.replied("God dag.")
        call.ears.hear("och sedan")
        await call.replied("Jaha.")
    told = said_in(brain.asked[1])[3:]
    assert [role for role, _ in told] == ["assistant", "assistant", "user"]
    assert story.startswith(told[0][1])
    assert 0 < len(told[0][1]) < len(story)


async def test_a_desk_says_its_own_texts_in_the_language_that_was_chosen_and_the_others_as_they_are() -> None:
    told = settings(
        {
            **BILINGUAL,
            "silence": {"after_s": 2.5, "prompts": ["Hello?"], "goodbye": "Bye."},
            "languages": {"sv": {**SWEDISH, "silence": {"prompts": ["Hallå?"]}}},
        }
    )
    brain = ScriptLLM(["Snart."])
    async with answered(told, brain=brain) as call:
        await call.replied(HELLO)
        call.line.press("2")
        await call.replied("God dag.")
        call.line.press("0")
        await call.replied("Ingen svarar.")
        call.line.press("3")
        await call.replied("Snart.")
        assert said_in(brain.asked[0])[-1] == ("user", "var är mitt paket")
        await call.replied("Hallå?")
        await call.replied("Bye.")  # nobody has written it in Swedish
        await call.until(lambda: call.line.why is not None)
    assert "Hello?" not in call.said


async def test_back_in_the_first_language_a_desk_says_its_first_texts() -> None:
    async with answered(settings(BILINGUAL)) as call:
        await call.replied(HELLO)
        call.line.press("21")  # as fast as they can be pressed
        await call.replied("English again.")
        call.line.press("0")
        await call.replied("Nobody answers.")
        call.line.press("1")
        await call.replied("English again.", times=2)
        call.line.press("2")
        await call.replied("God dag.")
        call.line.press("#")
        await call.until(lambda: call.line.why == "the agent said goodbye")
        await call.replied("Hej då.")


async def test_a_language_that_is_chosen_outside_the_hours_begins_with_that() -> None:
    told = settings(
        {
            **BILINGUAL,
            "hours": {"monday": "09:00-18:00"},
            "languages": {"sv": {**SWEDISH, "closed": "Vi har stängt."}},
        }
    )
    async with answered(told, now=CLOSED) as call:
        call.line.press("2")
        await call.replied("Vi har stängt.")


async def test_a_language_has_its_voice_and_the_first_one_has_the_agents() -> None:
    told = settings(
        {**BILINGUAL, "languages": {"sv": {**SWEDISH, "voice": "astrid"}, "de": {"greeting": "Guten Tag."}}},
        voice="hibari",
    )
    async with open_desk(told) as desk:
        voices = {name: tongue.voice for name, tongue in desk.tongues.items()}
    assert voices == {"en": "hibari", "sv": "astrid", "de": "hibari"}


def log_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.iterdir()
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] != "turn"]


async def test_a_call_that_ends_in_the_middle_of_a_sentence_has_that_sentence_before_its_end(
    tmp_path: Path,
) -> None:
    told = settings(
        {"log": str(tmp_path)}, greeting="Good morning, you have reached the lamp shop of the harbour."
    )
    async with answered(told) as call:
        await call.hears("reached")
        await asyncio.sleep(0.8)
    lines = log_of(tmp_path)
    assert [line["event"] for line in lines] == ["began", "agent", "ended"]
    assert lines[1]["interrupted"]
    assert lines[1]["text"].startswith("Good morning")


async def test_who_cuts_the_agent_short_is_written_after_what_was_cut(tmp_path: Path) -> None:
    told = settings(
        {"log": str(tmp_path), "keys": {"1": {"ask": "and my parcel"}}},
        greeting="Good morning, you have reached the lamp shop of the harbour.",
    )
    async with answered(
        told, replies=["That is a very long story which I shall tell you now.", "Soon."]
    ) as call:
        await call.hears("reached")
        await asyncio.sleep(0.6)
        call.ears.hear("wait a moment")
        await call.hears("long story")
        await asyncio.sleep(0.8)
        call.line.press("1")
        await call.replied("Soon.")
    lines = log_of(tmp_path)
    events = ["began", "agent", "caller", "agent", "key", "caller", "agent", "ended"]
    assert [line["event"] for line in lines] == events
    assert [line["interrupted"] for line in lines if line["event"] == "agent"] == [True, True, False]
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


async def test_what_was_said_is_written_down_with_no_telephone_number(tmp_path: Path) -> None:
    told = settings({"log": str(tmp_path / "calls"), "keys": {"1": {"ask": "and my number"}}})
    async with answered(told, replies=["It is 020 7946 0123."]) as call:
        await call.hears("there.")
        await call.silent()
        await call.replied(HELLO)
        call.ears.hear("my number is 0207 946 0123")
        await call.replied("0123.")
        call.line.press("1")
        await call.replied("0123.", times=2)
    (path,) = (tmp_path / "calls").iterdir()
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    events = " ".join(line["event"] for line in lines if line["event"] != "turn")
    assert events == "began agent caller agent key caller agent ended"
    assert "0123" not in text.replace("CA0123456789abcdef", "")
    assert lines[0]["caller"] == "**********23"
    assert lines[-1]["why"] == "the caller hung up"
    assert "79460123" not in path.name


async def test_a_recording_begins_after_it_has_been_announced_and_keeps_both_sides(tmp_path: Path) -> None:
    told = settings({"recording": {"folder": str(tmp_path), "consent": "We record."}})
    async with answered(told) as call:
        await call.hears("record.")
        assert HELLO not in call.said
        await call.hears("there.")
        call.line.far_end.mic.extend([np.full(320, 900, np.int16)] * 20)
        await call.silent()
        await asyncio.sleep(0.5)
        assert [path.suffix for path in tmp_path.iterdir()] in ([], [".part"])
    (path,) = tmp_path.iterdir()
    with wave.open(str(path), "rb") as file:
        both = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, 2)
        seconds = file.getnframes() / file.getframerate()
    assert np.abs(both[:, 1]).max() > 3000  # the greeting, not the announcement before it
    assert 0.3 < np.count_nonzero(both[:, 1]) / 8000 < len(HELLO) * 0.04 + 0.3
    assert np.abs(both[:, 0]).max() > 500
    assert seconds < 5


async def test_nobody_is_recorded_whom_the_announcement_did_not_reach(tmp_path: Path) -> None:
    told = settings({"recording": {"folder": str(tmp_path), "consent": "..."}})  # nothing to be heard
    async with answered(told) as call:
        await call.hears("there.")
        await call.replied(HELLO)
    assert list(tmp_path.iterdir()) == []


async def test_a_caller_who_does_not_want_to_be_recorded_is_not(tmp_path: Path) -> None:
    told = settings(
        {"recording": {"folder": str(tmp_path)}, "keys": {"9": {"stop_recording": True}}, "log": None}
    )
    async with answered(told) as call:
        await call.hears("there.")
        await call.silent()
        await asyncio.sleep(0.6)
        call.line.press("9")
        await asyncio.sleep(0.2)
    assert list(tmp_path.iterdir()) == []


def test_the_bundled_desk_is_what_its_file_says() -> None:
    told = load_settings(Path("configs/support-bot.yaml"), environ={})
    assert told.phone.desk is not None
    assert set(told.phone.desk.keys) == {"0", "1", "2", "*", "#"}
    assert told.phone.desk.languages == {}
    assert replace(told, llm=None).agent.greeting is None


async def test_the_languages_in_the_documents_are_a_desk(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", Path("docs/phone.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "bot.yaml").write_text(block, encoding="utf-8")
    async with open_desk(load_settings(tmp_path / "bot.yaml", environ={})) as desk:
        swedish = desk.tongues["sv"].desk
    told = desk.settings.languages["sv"].model_dump()
    assert (
        set(told) == set(LanguageSettings.model_fields) == set(desk.settings.languages["sv"].model_fields_set)
    )
    assert swedish.hand_over.failed == "Ingen kan svara just nu."
    assert swedish.keys["3"].ask == "var är mitt paket"


async def test_a_file_that_names_folders_means_them_from_where_it_lies(tmp_path: Path) -> None:
    config = tmp_path / "deep" / "bot.yaml"
    config.parent.mkdir()
    (config.parent / "sv.yaml").write_text("greeting: Hej\nfallback: V\nagain: I\nentries: []\n")
    config.write_text(
        "phone:\n  desk:\n    log: calls\n    recording: {folder: wavs}\n"
        "    languages:\n      sv: {greeting: Hej, faq: sv.yaml}\n"
    )
    desk = load_settings(config, environ={}).phone.desk
    assert desk is not None
    assert desk.recording is not None
    assert (desk.log, desk.recording.folder) == (config.parent / "calls", config.parent / "wavs")
    assert desk.languages["sv"].faq == config.parent / "sv.yaml"
    with pytest.raises(Exception, match=r"entries"):
        async with open_desk(load_settings(config, environ={})):
            pass
