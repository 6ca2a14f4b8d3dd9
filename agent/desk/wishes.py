"""Wishes: what a caller, a key or a language model can ask of a desk beside an answer."""

from __future__ import annotations

from dataclasses import dataclass

from agent.desk.settings import KeySettings


@dataclass(frozen=True, slots=True)
class Ask:
    """As if the caller had said it."""

    text: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Connect the caller with a person."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call, politely."""


@dataclass(frozen=True, slots=True)
class Speak:
    """Go on in this language."""

    language: str


@dataclass(frozen=True, slots=True)
class StopRecording:
    """And forget what there is of it."""


Wish = Ask | HandOver | HangUp | Speak | StopRecording


def wish_of(key: KeySettings) -> Wish:
    """What a key asks for."""
    if key.ask is not None:
        return Ask(key.ask)
    if key.language is not None:
        return Speak(key.language)
    if key.stop_recording:
        return StopRecording()
    return HandOver() if key.hand_over else HangUp()
