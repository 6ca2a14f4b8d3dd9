"""What a far end with a buffer is sent, and what counts as heard there."""

from __future__ import annotations

import numpy as np
import pytest

from agent.transports.far_buffer import BLOCK, BLOCK_S, LEAD_S, MAX_LAG_S, RATE, Block, FarBuffer
from tts_plugin.audio import Pcm


def ramp(seconds: float, first: int = 1) -> Pcm:
    """Every sample tells its index, none is zero."""
    return np.arange(first, first + round(seconds * RATE), dtype=np.int16)


class Line:
    """A far buffer, its clock, and a far end that gives marks back `lag_s` after it has played them."""

    def __init__(self, lag_s: float | None = 0.0) -> None:
        self.now_s = 100.0
        self.clears = 0
        self.sent: list[Block] = []
        self.finished: list[tuple[float, bool]] = []
        self.started = 0
        self.far = FarBuffer(self._cleared, clock=lambda: self.now_s)
        self.far.playout.listen(self)
        self._lag_s = lag_s
        self._echoes: list[tuple[float, str]] = []
        self._dry_s = 0.0

    def on_started(self) -> None:
        self.started += 1

    def on_finished(self, position_s: float, interrupted: bool) -> None:
        self.finished.append((round(position_s, 4), interrupted))

    def on_read(self) -> None:
        pass

    def _cleared(self) -> None:
        self.clears += 1

    def run(self, seconds: float) -> list[Block]:
        """What is sent in that time."""
        sent: list[Block] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            for at_s, mark in [echo for echo in self._echoes if echo[0] <= self.now_s + 1e-9]:
                self._echoes.remove((at_s, mark))
                self.far.played(mark)
            for block in self.far.tick():
                sent.append(block)
                self._dry_s = max(self._dry_s, self.now_s) + BLOCK_S
                if block.mark is not None and self._lag_s is not None:
                    self._echoes.append((self._dry_s + self._lag_s, block.mark))
            self.now_s += BLOCK_S
        self.sent += sent
        return sent


def samples(blocks: list[Block]) -> Pcm:
    return np.concatenate([block.pcm for block in blocks]) if blocks else np.zeros(0, dtype=np.int16)


def test_never_more_than_the_lead_is_at_the_far_end_and_all_of_it_arrives_in_whole_blocks() -> None:
    line = Line()
    line.far.playout.put(ramp(1.0))
    line.far.playout.end()
    assert len(line.run(BLOCK_S)) == round(LEAD_S / BLOCK_S)
    for tick in range(60):
        line.run(BLOCK_S)
        ahead_s = len(line.sent) * BLOCK_S - (tick + 1) * BLOCK_S
        assert ahead_s <= LEAD_S + 1e-9
    assert {len(block.pcm) for block in line.sent} == {BLOCK}
    assert np.array_equal(samples(line.sent), ramp(1.0))
    assert line.finished == [(1.0, False)]


def test_late_ticks_send_a_block_each_and_the_first_s_lateness_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    line = Line()
    line.far.playout.put(ramp(4.0))
    began_s = line.now_s
    counts = []
    for tick in range(180):
        due_s = began_s + tick * BLOCK_S
        line.now_s = due_s + (0.018 if tick == 0 else rng.uniform(0, 0.018))
        counts.append(len(line.far.tick(due_s)))
    assert counts[0] == round(LEAD_S / BLOCK_S)
    assert set(counts[1:]) == {1}


def test_heard_follows_the_marks_and_not_what_was_sent() -> None:
    line = Line(lag_s=0.1)
    line.far.playout.put(ramp(2.0))
    line.run(0.5)
    assert len(line.sent) * BLOCK_S == pytest.approx(0.68)
    assert 0.3 <= line.far.playout.heard_s <= 0.46  # of 0.45: the way there takes 50 ms, the way back as long
    line.run(0.5)
    assert 0.8 <= line.far.playout.heard_s <= 0.96


def test_an_utterance_is_over_when_its_last_mark_is_back() -> None:
    line = Line(lag_s=0.2)
    line.far.playout.put(ramp(0.3))
    line.far.playout.end()
    line.run(0.46)
    assert line.finished == []
    line.run(0.1)
    assert line.finished == [(0.3, False)]
    assert line.started == 1


def test_an_utterance_has_started_when_its_first_block_is_there() -> None:
    line = Line(lag_s=0.1)  # 50 ms each way
    for _ in range(2):  # the second utterance knows the way
        line.far.playout.put(ramp(0.3))
        line.far.playout.end()
        line.run(0.6)
    begun_s: list[float] = []
    line.on_started = lambda: begun_s.append(line.now_s)  # type: ignore[method-assign]
    put_s = line.now_s
    line.far.playout.put(ramp(0.3))
    line.run(0.2)
    assert begun_s == [pytest.approx(put_s + 0.05, abs=0.021)]


def test_marks_that_never_come_delay_the_end_and_do_not_prevent_it() -> None:
    line = Line(lag_s=None)
    line.far.playout.put(ramp(1.0))
    line.far.playout.end()
    line.run(1.0 + 2 * MAX_LAG_S)
    assert line.finished == [(1.0, False)]
    line.far.playout.put(ramp(1.0))  # from now on the time counts
    line.run(0.5)
    assert line.far.playout.heard_s == pytest.approx(0.5, abs=0.03)


def test_a_clear_tells_the_far_end_once_and_keeps_nothing() -> None:
    line = Line()
    line.far.playout.put(ramp(2.0))
    line.far.playout.end()  # synthesis is done long before the far end has played it
    line.run(0.4)
    line.far.playout.clear()
    assert line.clears == 1
    ((heard_s, interrupted),) = line.finished
    assert interrupted
    assert heard_s == pytest.approx(0.4, abs=0.021)
    assert line.run(0.1) == []
    line.far.playout.clear()
    assert line.clears == 1
    line.far.playout.put(ramp(0.1, first=20_000))
    assert samples(line.run(0.1))[0] == 20_000


def test_a_clear_counts_as_heard_what_is_played_until_the_far_end_has_it() -> None:
    line = Line(lag_s=0.1)  # 50 ms each way: at 0.5 s it has played 0.45, and 0.5 when the clear arrives
    line.far.playout.put(ramp(2.0))
    line.run(0.5)
    assert line.far.playout.heard_s <= 0.46
    line.far.playout.clear()
    ((heard_s, interrupted),) = line.finished
    assert interrupted
    assert heard_s == pytest.approx(0.5, abs=0.021)


def test_a_far_end_that_stands_still_has_heard_no_more_than_its_marks_say() -> None:
    line = Line(lag_s=0.02)
    line.far.playout.put(ramp(2.0))
    line.run(0.42)
    line._lag_s = None  # the marks of what is there by now still come back, up to 0.6 s
    line.run(0.9)
    line.far.playout.clear()
    ((heard_s, interrupted),) = line.finished
    assert interrupted
    assert heard_s == pytest.approx(0.65, abs=0.06)


def test_marks_from_before_a_clear_say_nothing_of_what_comes_after() -> None:
    line = Line(lag_s=0.3)
    line.far.playout.put(ramp(0.2))
    line.run(0.1)
    marks = [block.mark for block in line.sent if block.mark]
    line.far.playout.clear()
    line.far.playout.put(ramp(0.2))
    line.run(0.02)
    for mark in marks:
        line.far.played(mark)
    assert line.far.playout.heard_s <= 0.02


def test_a_pause_clears_the_far_end_and_a_resume_sends_what_it_has_not_played() -> None:
    line = Line()
    said = ramp(1.0)
    line.far.playout.put(said)
    line.far.playout.end()
    line.run(0.3)
    line.far.playout.pause()
    heard_s = line.far.playout.heard_s
    assert line.clears == 1
    assert heard_s == pytest.approx(0.28, abs=0.03)
    assert line.run(0.5) == []
    line.far.playout.resume()
    rest = samples(line.run(1.0))
    at = round(heard_s * RATE)
    fade = 40
    assert np.array_equal(rest[fade : len(said) - at], said[at + fade :])
    assert (np.abs(rest[:fade]) < np.abs(said[at : at + fade])).all()
    assert line.finished == [(1.0, False)]
    assert line.started == 1


def test_half_a_block_waits_for_its_rest_and_the_last_one_is_filled_with_silence() -> None:
    line = Line()
    line.far.playout.put(ramp(0.03))
    assert len(line.run(0.1)) == 1
    line.far.playout.put(ramp(0.03, first=241))
    (block, *rest) = line.run(0.02)
    assert np.array_equal(block.pcm, ramp(0.02, first=161))
    assert len(rest) == 1
    line.far.playout.put(ramp(0.01, first=481))
    line.far.playout.end()
    (last,) = line.run(0.1)
    assert np.array_equal(last.pcm[:80], ramp(0.01, first=481))
    assert not last.pcm[80:].any()
    assert last.mark is not None
    line.run(0.1)
    assert line.finished == [(0.07, False)]


def test_two_utterances_are_one_stream_and_end_one_after_the_other() -> None:
    line = Line()
    line.far.playout.put(ramp(0.05))
    line.far.playout.end()
    line.far.playout.put(ramp(0.05, first=401))
    line.far.playout.end()
    line.run(0.3)
    assert np.array_equal(samples(line.sent)[:800], ramp(0.1))
    assert line.finished == [(0.05, False), (0.05, False)]


def test_an_utterance_of_nothing_ends_at_once() -> None:
    line = Line()
    line.far.playout.put(np.zeros(0, dtype=np.int16))
    line.far.playout.end()
    assert line.run(0.04) == []
    assert line.finished == [(0.0, False)]


def test_the_level_sent_is_forgotten_in_silence() -> None:
    line = Line()
    line.far.playout.put(ramp(0.5, first=9000))
    line.far.playout.end()
    line.run(0.6)
    assert line.far.playout.sent_dbfs > -20
    line.run(0.6)
    assert line.far.playout.sent_dbfs < -100


def test_the_playouts_position_keeps_the_far_ends_time_whatever_is_played() -> None:
    line = Line(lag_s=0.1)
    line.run(0.2)
    for _ in range(5):
        line.far.playout.put(ramp(0.33))
        line.far.playout.end()
        line.run(0.2)
        line.far.playout.pause()
        line.run(0.3)
        line.far.playout.resume()
        line.run(0.6)
    assert line.far.playout.idle
    assert line.far.playout.position == round((line.now_s - 100.0) * RATE)
