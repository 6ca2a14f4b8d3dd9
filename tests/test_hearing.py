"""What a listener notices, by a clock that the test moves: the first sound, and gaps that were no pauses."""

from __future__ import annotations

import numpy as np
import pytest

from tts_plugin.audio import AudioFrame, Pcm, first_audible, silence, to_int16
from tts_plugin.hearing import Hearing
from tts_plugin.timing import Timeline

RATE = 16_000


class Hand:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def timeline(hand: Hand) -> Timeline:
    return Timeline(hand)


@pytest.fixture
def hearing(timeline: Timeline, hand: Hand) -> Hearing:
    hearing = Hearing(timeline, hand)
    hearing.asked()
    return hearing


def tone(seconds: float, level: float = 0.1) -> Pcm:
    return to_int16(level * np.sin(np.arange(round(seconds * RATE)) * 0.3))


def frame(pcm: Pcm, segment: int = 0) -> AudioFrame:
    return AudioFrame(pcm, RATE, 0, segment)


def test_the_first_audible_sample_is_found_to_ten_milliseconds() -> None:
    assert first_audible(silence(1.0, RATE), RATE) is None
    assert first_audible(silence(0.0, RATE), RATE) is None
    assert first_audible(tone(0.5, level=0.001), RATE) is None, "60 dB down"
    assert first_audible(np.concatenate((silence(0.25, RATE), tone(0.1))), RATE) == 0.25 * RATE
    assert first_audible(tone(0.003), RATE) == 0


def test_the_onset_is_when_it_is_heard_not_when_it_was_made(
    hearing: Hearing, timeline: Timeline, hand: Hand
) -> None:
    hearing.frame(frame(silence(0.3, RATE)))
    hand.now_s += 0.01  # the next is made at once, and heard when its turn comes
    hearing.frame(frame(np.concatenate((silence(0.1, RATE), tone(0.1)))))
    assert timeline.onset_s == pytest.approx(100.0 + 0.3 + 0.1)
    hearing.frame(frame(tone(0.1)))
    assert timeline.onset_s == pytest.approx(100.4)


def test_audio_that_comes_too_late_within_a_segment_is_an_underrun_of_that_length(
    hearing: Hearing, timeline: Timeline, hand: Hand
) -> None:
    hearing.frame(frame(tone(0.2)))
    hand.now_s += 0.2
    hearing.frame(frame(tone(0.2)))
    assert timeline.underruns == 0
    hand.now_s += 0.25
    hearing.frame(frame(tone(0.2)))
    assert timeline.underruns == 1
    assert timeline.dry_s == pytest.approx(0.05)


def test_a_text_that_pauses_is_no_underrun_and_one_that_was_there_is(
    hearing: Hearing, timeline: Timeline, hand: Hand
) -> None:
    hearing.frame(frame(tone(0.2)))
    hand.now_s += 1.0
    hearing.asked()  # the language model went on when all had been heard
    hand.now_s += 0.1
    hearing.frame(frame(tone(0.2), segment=1))
    assert timeline.underruns == 0
    hand.now_s += 0.1
    hearing.asked()  # in time
    hand.now_s += 0.2
    hearing.frame(frame(tone(0.2), segment=2))
    assert timeline.underruns == 1


def test_a_reader_that_does_not_read_is_no_underrun(hearing: Hearing, timeline: Timeline, hand: Hand) -> None:
    hearing.frame(frame(tone(0.2)))
    hand.now_s += 5.0
    hearing.held_up(4.9)
    hearing.frame(frame(tone(0.2)))
    assert timeline.underruns == 0


def test_nobody_looked_is_not_none_heard(timeline: Timeline, hand: Hand) -> None:
    assert timeline.report()["underruns"] is None
    Hearing(timeline, hand)
    assert timeline.report()["underruns"] == 0
