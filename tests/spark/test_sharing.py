"""What the bench of the two halves counts as a gap, and what it is told."""

from __future__ import annotations

import pytest

from tts_plugin.bench.sharing import Heard, main, row_of
from tts_plugin.errors import BadRequest

STEADY = Heard(((0.2, 0.16), (0.3, 0.32), (0.6, 0.5)))
LATE = Heard(((0.2, 0.16), (0.5, 0.32), (0.9, 0.5)))  # dry from 0.36 to 0.5, and from 0.82 to 0.9


def test_speech_that_comes_in_time_has_no_gap() -> None:
    assert STEADY.gap_s() == 0
    assert STEADY.first_s == 0.2
    assert STEADY.speed == pytest.approx(0.6 / 0.98)


def test_a_gap_is_the_silence_between_what_was_heard_and_what_came() -> None:
    assert LATE.gap_s() == pytest.approx(0.14 + 0.08)


def test_a_listener_with_a_buffer_begins_later_and_waits_less() -> None:
    assert LATE.gap_s(0.3) == 0  # begins at 0.5 with 0.48 s
    assert LATE.gap_s(10.0) == 0  # shorter than the buffer: heard when it is whole


def test_a_row_has_medians_and_counts_those_with_gaps() -> None:
    row = row_of([STEADY, LATE, LATE])
    assert (row["first_ms"], row["gaps_ms"], row["gaps_buffered_ms"], row["with_gaps"], row["n"]) == (
        200,
        220,
        0,
        0,
        3,
    )


def test_threads_are_two_numbers() -> None:
    with pytest.raises(BadRequest, match="such as 2/1"):
        main(["--threads", "two", "--rounds", "1"])
