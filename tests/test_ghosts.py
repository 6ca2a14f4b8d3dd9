"""What a recogniser imagines is not what a caller said."""

import pytest

from agent.ghosts import heard_text
from agent.recogniser import Recognition


def recognised(
    text: str, no_speech: float = 0.01, logprob: float = -0.2, looped: bool = False
) -> Recognition:
    return Recognition(text, no_speech, logprob, looped, 0.05)


@pytest.mark.parametrize(
    ("recognition", "voiced_s"),
    [
        (recognised("Beep Beep Beep Beep Beep Beep Beep"), 2.0),
        (recognised("[BLANK_AUDIO]"), 1.0),
        (recognised("Hello there.", no_speech=0.9), 1.0),
        (recognised("Hello there.", no_speech=0.6, logprob=-1.5), 1.0),
        (recognised("and and and", looped=True), 1.0),
        (recognised("you"), 0.15),
        (recognised("..."), 1.0),
    ],
)
def test_a_ghost_is_dropped(recognition: Recognition, voiced_s: float) -> None:
    assert heard_text(recognition, voiced_s) == ""


@pytest.mark.parametrize("text", ["No, no, no.", "Yes.", "Thank you.", "Bye.", "Very very very good."])
def test_what_a_caller_says_is_kept(text: str) -> None:
    assert heard_text(recognised(text), 0.6) == text
