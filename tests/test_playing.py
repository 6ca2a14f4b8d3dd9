"""What a listener still has, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tts_plugin.playing import Playing


class Hand:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def playing(hand: Hand) -> Playing:
    return Playing(hand)


def test_before_the_first_sound_there_is_no_buffer_at_all(playing: Playing, hand: Hand) -> None:
    hand.now_s += 5
    assert playing.buffered_s is None
    assert playing.dry_at_s is None


def test_what_is_handed_out_is_heard_in_real_time(playing: Playing, hand: Hand) -> None:
    playing.add(0.5)
    playing.add(1.0)
    assert playing.buffered_s == pytest.approx(1.5)
    hand.now_s += 0.4
    assert playing.buffered_s == pytest.approx(1.1)
    assert playing.dry_at_s == pytest.approx(101.5)
    playing.add(0.2)
    assert playing.buffered_s == pytest.approx(1.3)
    assert playing.underruns == 0


def test_a_listener_who_has_run_dry_waits_and_owes_nothing(playing: Playing, hand: Hand) -> None:
    playing.add(0.5)
    hand.now_s += 3
    assert playing.buffered_s == 0.0
    playing.add(0.5)
    assert playing.buffered_s == pytest.approx(0.5)
    assert playing.underruns == 1


def test_sound_that_comes_just_in_time_is_no_underrun(playing: Playing, hand: Hand) -> None:
    playing.add(0.5)
    hand.now_s += 0.5
    playing.add(0.5)
    assert playing.underruns == 0


def test_who_did_not_ask_has_not_waited(playing: Playing, hand: Hand) -> None:
    playing.asked()
    assert playing.dry_at_s is None, "before the first sound there is nothing to run out of"
    playing.add(0.5)
    hand.now_s += 0.2
    playing.asked()
    assert playing.dry_at_s == pytest.approx(100.5), "it has audio yet"
    hand.now_s += 10
    playing.asked()
    hand.now_s += 0.1
    assert playing.dry_at_s == pytest.approx(110.2)
    assert playing.buffered_s == 0.0
