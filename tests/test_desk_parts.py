"""The parts of a telephone desk, each alone: hours, patience, masking, numbers read out, the recording."""

from __future__ import annotations

import asyncio
import json
import wave
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from agent.desk.call_log import CallLog
from agent.desk.hours import is_open
from agent.desk.masking import masked, masked_number
from agent.desk.patience import Patience, Say
from agent.desk.recording import Recording
from agent.desk.scribe import Scribe
from agent.desk.settings import (
    DeskSettings,
    HoursSettings,
    KeySettings,
    LimitSettings,
    RecordingSettings,
    SilenceSettings,
)
from agent.line import CallInfo
from agent.read_out import digit_by_digit
from agent.role_log import AgentSaid, StateChanged, UserSaid
from tts_plugin.audio import Pcm

RATE = 8000
OFFICE = HoursSettings(
    timezone="Europe/London",
    monday="09:00-12:30, 13:30-18:00",
    saturday="22:00-24:00",
    holidays=(date(2026, 6, 8),),
)


def at(day: str, clock: str) -> datetime:
    return datetime.fromisoformat(f"{day}T{clock}+00:00")


# ------------------------------------------------------------------------------------- hours
@pytest.mark.parametrize(
    ("moment", "open_"),
    [
        (at("2026-01-05", "08:59:59"), False),
        (at("2026-01-05", "09:00:00"), True),
        (at("2026-01-05", "12:30:00"), False),
        (at("2026-01-05", "13:30:00"), True),
        (at("2026-01-05", "18:00:00"), False),
        (at("2026-06-01", "08:30:00"), True),  # half past nine there: summer time
        (at("2026-06-01", "17:30:00"), False),
        (at("2026-01-06", "10:00:00"), False),  # Tuesday
        (at("2026-01-10", "23:59:59"), True),
        (at("2026-06-08", "10:00:00"), False),  # a Monday, but a holiday
    ],
)
def test_a_desk_is_open_by_the_clock_of_its_own_place(moment: datetime, open_: bool) -> None:
    assert is_open(OFFICE, moment) is open_


def test_a_desk_without_hours_is_always_open() -> None:
    assert is_open(None, datetime.now(UTC))


@pytest.mark.parametrize(
    ("hours", "hint"),
    [
        ({"timezone": "Europe/Londn"}, 'did you mean "Europe/London"'),
        ({"monday": "9-18"}, '"9-18" should be like "09:00-18:00"'),
        ({"monday": "18:00-09:00"}, "ends before it begins"),
        ({"monday": "09:00-12:00, 11:00-13:00"}, "before the one before it ends"),
        ({"mondy": "09:00-12:00"}, "mondy"),
    ],
)
def test_hours_that_cannot_be_meant_are_refused(hours: dict[str, str], hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        HoursSettings(**hours)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("desk", "hint"),
    [
        ({"keys": {"11": {"hand_over": True}}}, "is on no telephone"),
        ({"keys": {"1": {"hand_over": True, "ask": "hello"}}}, "does one thing"),
        ({"keys": {"1": {}}}, "does one thing"),
        ({"keys": {"1": {"hand_over": False}}}, "does one thing"),
        ({"keys": {"1": {"language": "zh"}}}, 'asks for the language "zh"'),
        ({"keys": {"1": {"stop_recording": True}}}, "there is none"),
        ({"limit": {"call_s": 30}}, "should be less than call_s"),
        ({"greting": "hello"}, "greting"),
        ({"languages": {"en": {"greeting": "Hi."}}}, 'languages.en: "en" is the first language'),
        ({"languages": {"sv": {"greeting": "Hej.", "hand_over": {"sya": "x"}}}}, "sya"),
        ({"languages": {"sv": {"greeting": "Hej.", "after_s": 3}}}, "after_s"),
        ({"languages": {"sv": {}}}, "greeting"),
        (
            {"silence": None, "languages": {"sv": {"greeting": "Hej.", "silence": {"goodbye": "Hej."}}}},
            "languages.sv.silence: the desk has no silence",
        ),
        (
            {
                "keys": {"1": {"ask": "where"}},
                "languages": {"sv": {"greeting": "Hej.", "asks": {"2": "var"}}},
            },
            'the key "2" asks nothing; these do: 1',
        ),
        ({"language": "de", "keys": {"1": {"language": "en"}}}, 'asks for the language "en"'),
    ],
)
def test_a_desk_that_cannot_be_meant_is_refused(desk: dict[str, object], hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        DeskSettings.model_validate(desk)


def test_a_desk_can_be_told_everything() -> None:
    desk = DeskSettings(
        keys={"9": KeySettings(stop_recording=True)}, recording=RecordingSettings(folder=Path("recordings"))
    )
    assert desk.recording is not None
    assert desk.recording.consent == "This call is recorded."


def test_a_desk_in_another_language_says_what_is_told_there_and_keeps_the_rest() -> None:
    desk = DeskSettings.model_validate(
        {
            "keys": {"1": {"ask": "where"}, "2": {"ask": "when"}, "0": {"hand_over": True}},
            "hand_over": {"to": "+15550100", "say": "One moment.", "failed": "Sorry."},
            "silence": {"after_s": 7, "prompts": ["Hello?", "Anybody?"]},
            "limit": None,
            "languages": {
                "sv": {
                    "greeting": "Hej.",
                    "hand_over": {"say": "Ett ögonblick."},
                    "silence": {"prompts": ["Hallå?"]},
                    "asks": {"1": "var"},
                }
            },
        }
    )
    swedish = desk.spoken_in("sv")
    assert desk.spoken_in("en") is desk
    assert swedish.silence
    assert (swedish.hand_over.say, swedish.hand_over.failed) == ("Ett ögonblick.", "Sorry.")
    assert (swedish.hand_over.to, swedish.goodbye, swedish.limit) == ("+15550100", desk.goodbye, None)
    assert (swedish.silence.after_s, swedish.silence.prompts) == (7, ("Hallå?",))
    assert [swedish.keys[key].ask for key in "120"] == ["var", "when", None]


# ---------------------------------------------------------------------------------- patience
SILENCE = SilenceSettings(after_s=10, prompts=("Hello?", "Anybody?"), goodbye="Bye.")


def listening(patience: Patience, now_s: float) -> None:
    patience.note(StateChanged("agent", "listening"), now_s)


def test_silence_is_prompted_and_then_ends_the_call() -> None:
    patience = Patience(SILENCE, None, 0.0)
    listening(patience, 1.0)
    assert patience.due(10.9) is None
    assert patience.due(11.0) == Say("Hello?")
    assert patience.due(11.1) is None
    assert patience.due(21.0) == Say("Anybody?")
    assert patience.due(31.0) == Say("Bye.", then_hang_up=True)
    assert patience.due(99.0) is None


def test_words_a_key_and_the_agents_own_voice_are_no_silence() -> None:
    patience = Patience(SILENCE, None, 0.0)
    listening(patience, 0.0)
    assert patience.due(10.0) == Say("Hello?")
    patience.note(UserSaid("well", final=False), 12.0)
    patience.note(StateChanged("agent", "speaking"), 13.0)
    assert patience.due(40.0) is None
    patience.note(AgentSaid(0, "all of it", final=True, interrupted=False), 41.0)
    listening(patience, 41.0)
    patience.alive(45.0)
    assert patience.due(54.9) is None
    assert patience.due(55.0) == Say("Hello?")  # from the first again: the caller was there


def test_a_caller_who_is_speaking_is_not_asked_whether_they_are_there() -> None:
    patience = Patience(SILENCE, None, 0.0)
    listening(patience, 0.0)
    patience.note(StateChanged("user", "speaking"), 5.0)
    assert patience.due(60.0) is None


def test_a_call_is_warned_of_its_end_once_and_then_ended() -> None:
    patience = Patience(
        None, LimitSettings(call_s=100, warning_s=20, warning="Soon.", goodbye="Bye."), 1000.0
    )
    assert patience.due(1079.0) is None
    assert patience.due(1080.0) == Say("Soon.")
    assert patience.due(1081.0) is None
    assert patience.due(1100.0) == Say("Bye.", then_hang_up=True)


def test_a_silence_goes_on_in_another_language() -> None:
    patience = Patience(SILENCE, None, 0.0)
    listening(patience, 0.0)
    assert patience.due(10.0) == Say("Hello?")
    patience.speak(SilenceSettings(after_s=10, prompts=("Hallå?", "Är du där?"), goodbye="Hej."), None)
    assert patience.due(20.0) == Say("Är du där?")
    assert patience.due(30.0) == Say("Hej.", then_hang_up=True)


# ---------------------------------------------------------------------------------- the log
async def test_a_logs_lines_are_in_the_order_of_the_conversation(tmp_path: Path) -> None:
    path, now = tmp_path / "call.jsonl", at("2026-01-05", "09:00:00")
    async with Scribe() as scribe:
        log = CallLog(path, scribe, lambda: now)
        log.began(CallInfo("CA0"))
        log.show(AgentSaid(0, "Once", final=False, interrupted=False))
        now += timedelta(seconds=2)
        log.show(AgentSaid(0, "Once upon", final=False, interrupted=False))
        log.note("key", does="HangUp")
        log.show(UserSaid("stop", final=True))
        await scribe.written()
        assert path.read_text().count("\n") == 1
        log.show(AgentSaid(0, "Once upon", final=True, interrupted=True))
        log.show(AgentSaid(1, "Bye", final=False, interrupted=False))
        log.note("recording_stopped")
        log.ended("the caller hung up", 3.0)
        log.show(AgentSaid(1, "Bye", final=True, interrupted=True))  # too late
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["at"][17:19]) for line in lines] == [
        ("began", "00"),
        ("agent", "00"),
        ("key", "02"),
        ("caller", "02"),
        ("recording_stopped", "02"),
        ("ended", "02"),
    ]


# ----------------------------------------------------------------------------------- masking
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("call me at +44 20 7946 0123 please", "call me at **********23 please"),
        ("0049-30-123456", "**********56"),
        ("(555) 014-2398", "(********98"),
        ("it was 1999 and 250 people", "it was 1999 and 250 people"),
        ("my number is five five five oh one four two", "my number is ***"),
        ("five, five, five, 0 1 4 2", "***"),
        ("five, five, five; oh, one, four, two.", "***."),
        ("at one two three o'clock, seats 1 2", "at one two three o'clock, seats 1 2"),
        ("", ""),
    ],
)
def test_telephone_numbers_are_not_written_down(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_caller_is_known_by_the_last_two_digits_and_an_address_by_its_end() -> None:
    assert masked_number("+442079460123") == "**********23"
    assert masked_number("alice@example.org") == "***rg"
    assert masked_number("12") == "***"
    assert masked_number(None) is None


# ----------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("said", "spelt"),
    [
        ("The number of our shop is 555-0142.", "5 5 5, 0 1 4 2."),
        ("Order AB4711 of 12 May", "A B, 4 7 1 1. 1 2."),
        ("Call 442079460123.", "4 4 2, 0 7 9, 4 6 0, 1 2 3."),
        (
            "It is five five five, oh one four two.",
            "five, five, five; oh, one, four, two.",
        ),
        ("one or two or three days", None),
        ("nothing to write down", None),
    ],
)
def test_numbers_are_read_out_in_groups(said: str, spelt: str | None) -> None:
    assert digit_by_digit(said) == spelt


# --------------------------------------------------------------------------------- recording
class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def stereo(path: Path) -> tuple[Pcm, Pcm]:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, RATE)
        both = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def block(value: int, seconds: float = 0.02) -> Pcm:
    return np.full(round(seconds * RATE), value, np.int16)


async def test_a_recording_has_the_caller_left_and_the_agent_right_where_they_were(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "deep" / "call.wav"
    async with Scribe() as scribe:
        recording = Recording(path, RATE, scribe, clock)
        for step in range(150):  # 3 s; the agent speaks from second 1 to 2, and its blocks stop in between
            clock.now_s += 0.02
            recording.caller(block(100))
            if 50 <= step < 100:
                recording.agent(block(2000))
        await scribe.written()
        assert not path.exists()
        recording.finish()
        recording.finish()
    caller, agent = stereo(path)
    assert len(caller) == 3 * RATE
    assert (caller == 100).all()
    assert (agent[: RATE - 200] == 0).all()
    assert (agent[RATE + 200 : 2 * RATE - 200] == 2000).all()
    assert (agent[2 * RATE + 200 :] == 0).all()
    assert list(path.parent.iterdir()) == [path]


async def test_what_there_is_of_a_recording_can_be_read_when_the_process_dies(tmp_path: Path) -> None:
    clock = Clock()
    async with Scribe() as scribe:
        recording = Recording(tmp_path / "call.wav", RATE, scribe, clock)
        for _ in range(200):
            clock.now_s += 0.02
            recording.caller(block(100))
            recording.agent(block(7))
        await scribe.written()
        caller, _ = stereo(tmp_path / "call.wav.part")
        assert len(caller) >= 3 * RATE
        recording.discard()
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_takes_nothing_ends_no_call_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    clock = Clock()
    async with Scribe() as scribe:
        recording = Recording(tmp_path / "taken" / "call.wav", RATE, scribe, clock)
        for _ in range(200):
            clock.now_s += 0.02
            recording.caller(block(100))
            recording.agent(block(7))
            await asyncio.sleep(0)
        recording.finish()
    assert len([record for record in caplog.records if "not written down" in record.message]) == 1
