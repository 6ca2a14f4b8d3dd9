"""The caller's audio keeps real time through loss, reordering, jitter and standstill."""

from __future__ import annotations

import numpy as np
import pytest

from agent.inbound import MOST_GAP_S, STALL_S, WINDOW_S, Inbound
from tts_plugin.audio import Pcm

RATE = 8000
CHUNK = 160


def chunk(number: int) -> Pcm:
    """The number-th 20 ms of a stream whose every chunk can be told from the others."""
    return np.full(CHUNK, number + 1, dtype=np.int16)


def numbers(parts: list[Pcm]) -> list[int]:
    """Which chunks these are, 20 ms each; -1 is silence."""
    pcm = np.concatenate([np.zeros(0, np.int16), *parts])
    assert len(pcm) % CHUNK == 0
    return [int(pcm[at]) - 1 for at in range(0, len(pcm), CHUNK)]


def received(order: list[int], first_sample: int = 0) -> tuple[list[int], Inbound]:
    """What comes out when these chunks arrive 20 ms apart, and then nothing for the length of the window."""
    inbound = Inbound(RATE)
    out: list[Pcm] = []
    for turn, number in enumerate(order):
        out += inbound.tick(turn * 0.02)
        out += inbound.push(chunk(number), turn * 0.02, first_sample + number * CHUNK)
    out += inbound.tick(len(order) * 0.02 + WINDOW_S)
    return numbers(out), inbound


def test_a_stream_in_order_comes_through_at_once() -> None:
    inbound = Inbound(RATE)
    for number in range(50):
        assert numbers(inbound.push(chunk(number), number * 0.02, number * CHUNK)) == [number]
        assert inbound.tick(number * 0.02 + 0.01) == []
    assert (inbound.lost_s, inbound.late, inbound.bridged_s) == (0, 0, 0)


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4], [0, 3, 1, 2, 4], [0, 3, 2, 1, 4], [0, 1, 4, 3, 2]])
def test_swapped_chunks_are_put_in_order(order: list[int]) -> None:
    out, inbound = received(order)
    assert out == [0, 1, 2, 3, 4]
    assert inbound.lost_s == 0


def test_a_lost_chunk_becomes_silence_of_its_length() -> None:
    out, inbound = received([0, 1, 3, 4, 5, 6, 7])
    assert out == [0, 1, -1, 3, 4, 5, 6, 7]
    assert inbound.lost_s == pytest.approx(0.02)


def test_two_holes_at_once_are_both_filled() -> None:
    out, _ = received([0, 2, 4, 6, 8, 9, 10, 11])
    assert out == [0, -1, 2, -1, 4, -1, 6, -1, 8, 9, 10, 11]


def test_what_comes_after_its_place_was_given_away_or_twice_is_dropped() -> None:
    out, inbound = received([0, 2, 3, 4, 5, 6, 1, 6, 7])
    assert out == [0, -1, 2, 3, 4, 5, 6, 7]
    assert inbound.late == 2


def test_a_hole_is_waited_for_no_longer_than_the_window() -> None:
    inbound = Inbound(RATE)
    inbound.push(chunk(0), 0.0, 0)
    assert inbound.push(chunk(2), 0.04, 2 * CHUNK) == []
    assert inbound.tick(0.04 + WINDOW_S - 0.01) == []
    assert numbers(inbound.tick(0.04 + WINDOW_S)) == [-1, 2]


def test_stamps_that_wander_by_milliseconds_are_neither_holes_nor_late() -> None:
    inbound = Inbound(RATE)
    rng = np.random.default_rng(0)
    out: list[Pcm] = []
    for number in range(200):
        wander = int(rng.integers(-5, 6)) * RATE // 1000
        out += inbound.push(chunk(number), number * 0.02, max(0, number * CHUNK + wander))
    assert numbers(out) == list(range(200))


def test_a_standstill_is_bridged_in_real_time_and_nothing_after_it_is_dropped() -> None:
    inbound = Inbound(RATE)
    inbound.push(chunk(0), 0.0, 0)
    silence: list[Pcm] = []
    for turn in range(1, 50):  # 0.98 s of nothing
        silence += inbound.tick(turn * 0.02)
    assert set(numbers(silence)) == {-1}
    assert len(silence) * 0.02 == pytest.approx(0.98 - STALL_S, abs=0.03)
    burst = [numbers(inbound.push(chunk(number), 1.0, number * CHUNK)) for number in range(1, 50)]
    assert burst == [[number] for number in range(1, 50)]
    assert inbound.lost_s == 0


def test_a_standstill_after_which_the_stamps_jump_is_filled_once() -> None:
    inbound = Inbound(RATE)
    inbound.push(chunk(0), 0.0, 0)
    silence: list[Pcm] = []
    for turn in range(1, 50):
        silence += inbound.tick(turn * 0.02)
    out = silence + inbound.push(chunk(50), 1.0, 50 * CHUNK) + inbound.tick(1.0 + WINDOW_S)
    assert numbers(out) == [-1] * 49 + [50]


def test_without_stamps_the_order_of_arrival_counts_and_standstills_are_bridged() -> None:
    inbound = Inbound(RATE)
    assert numbers(inbound.push(chunk(0), 0.0) + inbound.push(chunk(1), 0.0)) == [0, 1]
    assert numbers(inbound.tick(STALL_S)) == [-1]
    assert inbound.tick(STALL_S + 0.01) == []
    assert numbers(inbound.push(chunk(2), 1.0)) == [2]


def test_a_sender_that_counts_anew_is_followed() -> None:
    far = round((MOST_GAP_S + 1) * RATE)
    inbound = Inbound(RATE)
    assert numbers(inbound.push(chunk(0), 0.0, far)) == [0]
    assert numbers(inbound.push(chunk(1), 0.02, 0)) == [1]
    assert numbers(inbound.push(chunk(2), 0.04, CHUNK)) == [2]


def test_before_the_first_chunk_there_is_nothing_to_bridge() -> None:
    assert Inbound(RATE).tick(100.0) == []


def test_jitter_loss_and_reordering_together_keep_real_time() -> None:
    rng = np.random.default_rng(1)
    arrivals = sorted((number * 0.02 + rng.exponential(0.015), number) for number in range(1000))
    inbound = Inbound(RATE)
    out: list[Pcm] = []
    due_s = 0.0
    for now_s, number in arrivals:
        while due_s < now_s:
            out += inbound.tick(due_s)
            due_s += 0.02
        if rng.random() > 0.05:
            out += inbound.push(chunk(number), now_s, number * CHUNK)
    got = numbers(out)
    heard = [number for number in got if number >= 0]
    assert len(got) == pytest.approx(1000, abs=5)
    assert heard == sorted(set(heard))
    assert len(heard) > 0.92 * 1000
