"""Patience, without a clock: when silence is the engine's fault."""

from __future__ import annotations

import numpy as np
import pytest

from tts_plugin.adapters.patience import Patience
from tts_plugin.audio import AudioFrame
from tts_plugin.spoken import Span, SpokenText

RATE = 16000


class Turn:
    """A turn under test: its text and its patience of 10 s, with a lead of 3 s."""

    def __init__(self, lead_s: float | None = 3.0) -> None:
        self.text = SpokenText(RATE)
        self.patience = Patience(self.text, 10.0, lead_s)
        self._samples = 0

    def push(self, delta: str, now_s: float) -> None:
        self.patience.push(delta, now_s)
        self.text.add_text(delta)

    def frame(self, seconds: float, now_s: float) -> None:
        pcm = np.zeros(round(seconds * RATE), dtype=np.int16)
        self.patience.frame(AudioFrame(pcm, RATE, self._samples, 0), now_s)
        self._samples += len(pcm)

    def span(self, text_to: int, start_s: float, end_s: float | None) -> None:
        stop = None if end_s is None else round(end_s * RATE)
        self.text.add_span(Span(0, text_to, round(start_s * RATE), stop))


def test_nothing_is_owed_before_text_comes() -> None:
    assert Turn().patience.left_s(1000.0) == 10.0


def test_a_sentence_is_owed_from_when_it_was_pushed() -> None:
    turn = Turn()
    turn.push("Hello there. How", 5.0)
    assert turn.patience.left_s(9.0) == 6.0
    turn.push(" are you? I", 9.0)
    assert turn.patience.left_s(9.0) == 6.0, "more text does not excuse the silence"
    assert turn.patience.left_s(15.0) <= 0


def test_a_word_that_the_splitter_holds_back_is_not_owed() -> None:
    turn = Turn()
    turn.push("Hello", 5.0)
    assert turn.patience.left_s(100.0) == 10.0
    assert not turn.patience.released


def test_words_that_a_stall_releases_are_owed_from_the_release() -> None:
    turn = Turn()
    turn.push("It is not far ", 5.0)
    assert turn.patience.left_s(5.2) == 10.0
    assert turn.patience.left_s(6.0) == pytest.approx(9.35)


def test_unspeakable_text_is_not_owed() -> None:
    turn = Turn()
    turn.push("... ** \n\n - ", 5.0)
    turn.patience.flush(6.0)
    assert turn.patience.left_s(100.0) == 10.0


def test_a_frame_starts_the_wait_anew() -> None:
    turn = Turn(lead_s=None)
    turn.push("Hello there. How", 5.0)
    turn.span(12, 0.0, None)
    turn.frame(0.1, 7.0)
    assert turn.patience.left_s(8.0) == 9.0


def test_after_a_finished_segment_nothing_is_owed_until_more_text_comes() -> None:
    turn = Turn()
    turn.push("Hello there. How", 5.0)
    turn.span(12, 0.0, 1.0)
    turn.frame(0.97, 6.0)  # a resampler sits on the rest
    assert turn.patience.left_s(50.0) == 10.0
    turn.push(" are you? I", 60.0)
    assert turn.patience.left_s(61.0) == 9.0


def test_the_rest_of_a_segment_whose_length_is_known_is_owed() -> None:
    turn = Turn()
    turn.push("Hello there. How", 5.0)
    turn.span(12, 0.0, 2.0)
    turn.frame(1.0, 6.0)
    assert turn.patience.left_s(17.0) <= 0


def test_the_wait_of_an_engine_that_is_ahead_does_not_count() -> None:
    turn = Turn()
    turn.push("Hello there. How", 0.0)
    turn.span(12, 0.0, None)
    turn.frame(8.0, 1.0)  # heard until 9.0, so it may be silent until 6.0
    assert turn.patience.left_s(6.0) == 10.0
    assert turn.patience.left_s(16.0) == 0.0


def test_without_a_lead_it_does() -> None:
    turn = Turn(lead_s=None)
    turn.push("Hello there. How", 0.0)
    turn.span(12, 0.0, None)
    turn.frame(8.0, 1.0)
    assert turn.patience.left_s(11.0) == 0.0


def test_after_the_end_the_end_is_owed() -> None:
    turn = Turn()
    turn.push("...", 0.0)
    turn.patience.end(3.0)
    assert turn.patience.left_s(4.0) == 9.0
    turn.patience.end(9.0)
    assert turn.patience.left_s(13.0) == 0.0
