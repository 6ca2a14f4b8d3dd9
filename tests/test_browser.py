"""What the page is told of a session, and what it may ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.browser import MAX_WISHES, Captions, Chosen, Typed, Wish, control_message, take_wish
from agent.media_io import Control
from agent.role_log import (
    AgentSaid,
    Ended,
    Event,
    Failed,
    FalseInterruption,
    StateChanged,
    TurnMeasured,
    UserSaid,
)
from tts_plugin.errors import BadRequest


def told(*events: Event) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    captions = Captions(messages.append)
    for event in events:
        captions.show(event)
    return messages


def caption(id: str, role: str, text: str, final: bool, cut: bool = False) -> dict[str, Any]:
    return {"type": "caption", "id": id, "role": role, "text": text, "final": final, "cut": cut}


def test_captions_replace_each_other_until_one_is_final() -> None:
    assert told(
        UserSaid("Tell", False),
        UserSaid("Tell me.", True),
        AgentSaid(1, "It", False, False),
        AgentSaid(1, "It began", True, True),
        UserSaid("Stop.", True),
    ) == [
        caption("u0", "user", "Tell", False),
        caption("u0", "user", "Tell me.", True),
        caption("a1", "agent", "It", False),
        caption("a1", "agent", "It began", True, cut=True),
        caption("u1", "user", "Stop.", True),
    ]


def test_a_caption_of_the_agent_has_no_markup_while_it_grows_nor_at_the_end() -> None:
    said = "I answer **in bold**,\n- see [our page](https://x.example/a_b)"
    growing = [AgentSaid(0, said[:end], False, False) for end in (11, 14, 21, len(said))]
    texts = [message["text"] for message in told(*growing, UserSaid("2 **", True))]
    assert texts == ["I answer", "I answer in", "I answer in bold,", "I answer in bold, see our page", "2 **"]


def test_states_latencies_and_failures_are_told() -> None:
    assert told(
        StateChanged("agent", "thinking"),
        StateChanged("user", "speaking"),
        FalseInterruption(True),
        TurnMeasured(1.0, 2.0, 3.0, 4.0, None),
        Failed("ears", "no model", True),
        Ended("error", "no voice"),
        Ended("user_initiated", None),
    ) == [
        {"type": "state", "state": "thinking"},
        {"type": "caller", "state": "speaking"},
        {"type": "false_interruption", "resumed": True},
        {
            "type": "latency",
            "recognition_ms": 1.0,
            "endpointing_ms": 2.0,
            "answer_ms": 3.0,
            "speech_ms": 4.0,
            "total_ms": None,
        },
        {"type": "error", "code": "ears", "message": "no model", "fatal": False},
        {"type": "error", "code": "ended", "message": "no voice", "fatal": True},
    ]


@pytest.mark.parametrize(
    ("control", "kind", "why"),
    [
        (Control.START, "unmute", "start"),
        (Control.RESUME, "unmute", "resume"),
        (Control.PAUSE, "mute", "pause"),
        (Control.CLEAR, "mute", "clear"),
    ],
)
def test_every_control_cuts_or_opens_the_pages_gain(control: Control, kind: str, why: str) -> None:
    assert control_message(control, 5.0) == {"type": kind, "why": why, "at": 5.0}


async def test_typed_text_and_a_chosen_voice_wait_for_their_turn() -> None:
    wishes: asyncio.Queue[Wish] = asyncio.Queue(MAX_WISHES)
    take_wish({"type": "text", "text": "  When are you open? "}, wishes)
    take_wish({"type": "voice", "id": "tone"}, wishes)
    assert [wishes.get_nowait(), wishes.get_nowait()] == [Typed("When are you open?"), Chosen("tone")]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"type": "text", "text": "   "}, "1 to 2000"),
        ({"type": "text", "text": "x" * 2001}, "1 to 2000"),
        ({"type": "text"}, "1 to 2000"),
        ({"type": "text", "text": 5}, "1 to 2000"),
        ({"type": "voice", "id": None}, '"voice" is not a message'),
        ({"type": "reboot"}, '"reboot" is not a message'),
    ],
)
async def test_anything_else_is_refused_with_the_reason(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        take_wish(message, asyncio.Queue(1))


async def test_typing_faster_than_the_agent_answers_is_bounded() -> None:
    wishes: asyncio.Queue[Wish] = asyncio.Queue(1)
    take_wish({"type": "text", "text": "one"}, wishes)
    with pytest.raises(BadRequest, match="too many"):
        take_wish({"type": "text", "text": "two"}, wishes)
