"""The paced buffer: every sample once, silence otherwise, and a cut that does not click."""

from __future__ import annotations

import numpy as np
import pytest

from agent.playout import Playout
from tts_plugin.audio import SILENT_DBFS, Pcm

RATE = 16000
BLOCK = 320  # 20 ms
FADE = 80  # 5 ms


class Log:
    """Notes what the playout reports, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.reads = 0

    def on_started(self) -> None:
        self.events.append("started")

    def on_finished(self, position_s: float, interrupted: bool) -> None:
        self.events.append((round(position_s * RATE), interrupted))

    def on_read(self) -> None:
        self.reads += 1


def ramp(samples: int, first: int = 1) -> Pcm:
    """Every sample tells its index, none is zero."""
    return np.arange(first, first + samples, dtype=np.int16)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def playout(log: Log) -> Playout:
    playout = Playout(RATE)
    playout.listen(log)
    return playout


def read(playout: Playout, blocks: int) -> Pcm:
    return np.concatenate([playout.read(BLOCK) for _ in range(blocks)])


def test_an_idle_playout_gives_silence_and_reports_nothing(playout: Playout, log: Log) -> None:
    assert not read(playout, 3).any()
    assert log.events == []
    assert (playout.heard_s, playout.buffered_s) == (0.0, 0.0)


def test_every_sample_is_handed_out_once_whatever_the_chunks(playout: Playout, log: Log) -> None:
    whole = ramp(2000)
    for cut in np.array_split(whole, 7):
        playout.put(cut)
    playout.end()
    out = read(playout, 8)
    assert np.array_equal(out[:2000], whole)
    assert not out[2000:].any()
    assert log.events == ["started", (2000, False)]
    assert log.reads == 8


def test_a_300_ms_utterance_arrives_whole(playout: Playout, log: Log) -> None:
    playout.put(ramp(4800))
    playout.end()
    assert np.array_equal(read(playout, 15), ramp(4800))
    assert log.events[-1] == (4800, False)


def test_heard_counts_only_what_was_handed_out(playout: Playout) -> None:
    playout.put(ramp(400))
    playout.read(BLOCK)
    assert playout.heard_s == BLOCK / RATE
    assert playout.buffered_s == 80 / RATE
    read(playout, 5)  # dry: the rest, then silence
    assert playout.heard_s == 400 / RATE
    assert playout.underruns == 5


def test_two_utterances_play_in_order_and_finish_once_each(playout: Playout, log: Log) -> None:
    playout.put(ramp(100))
    playout.end()
    playout.put(ramp(100, first=1000))
    playout.end()
    out = playout.read(BLOCK)
    assert np.array_equal(out[:200], np.concatenate([ramp(100), ramp(100, first=1000)]))
    assert log.events == ["started", (100, False), "started", (100, False)]


def test_an_utterance_without_samples_finishes_without_starting(playout: Playout, log: Log) -> None:
    playout.put(ramp(0))
    playout.end()
    playout.read(BLOCK)
    assert log.events == [(0, False)]


def test_clear_fades_to_silence_within_5_ms(playout: Playout, log: Log) -> None:
    playout.put(np.full(3200, 20000, dtype=np.int16))
    playout.read(BLOCK)
    playout.clear()
    assert log.events == ["started", (BLOCK, True)]
    out = playout.read(BLOCK)
    assert np.all(np.diff(out[:FADE].astype(int)) < 0)
    assert np.abs(np.diff(out.astype(int))).max() < 300
    assert not out[FADE:].any()
    assert not read(playout, 5).any()


def test_without_tails_a_cut_is_silent_with_the_next_sample_and_a_resume_fades_in() -> None:
    playout = Playout(RATE, tails=False)
    playout.put(np.full(RATE, 8000, np.int16))
    assert playout.read(BLOCK).all()
    playout.pause()
    assert not playout.read(BLOCK).any()
    playout.resume()
    again = playout.read(BLOCK)
    assert 0 <= again[0] < 200
    assert again[-1] == 8000
    assert playout.heard_s == pytest.approx(2 * BLOCK / RATE)
    playout.clear()
    assert not playout.read(BLOCK).any()


def test_clear_drops_every_utterance_and_finishes_each(playout: Playout, log: Log) -> None:
    playout.put(ramp(1000))
    playout.end()
    playout.put(ramp(500))
    playout.read(BLOCK)
    playout.clear()
    playout.clear()
    assert log.events == ["started", (BLOCK, True), (0, True)]
    assert playout.idle


def test_what_is_put_after_a_clear_is_a_new_utterance(playout: Playout, log: Log) -> None:
    playout.put(ramp(1000))
    playout.read(BLOCK)
    playout.clear()
    playout.put(ramp(200, first=5000))
    playout.end()
    out = playout.read(BLOCK)
    assert np.array_equal(out[FADE : FADE + 200], ramp(200, first=5000))
    assert log.events == ["started", (BLOCK, True), "started", (200, False)]


def test_clear_before_the_first_read_makes_no_sound(playout: Playout, log: Log) -> None:
    playout.put(ramp(1000))
    playout.clear()
    assert not read(playout, 2).any()
    assert log.events == [(0, True)]


def test_a_pause_mutes_from_the_next_block_on(playout: Playout) -> None:
    playout.put(np.full(3200, 20000, dtype=np.int16))
    playout.read(BLOCK)
    playout.pause()
    out = read(playout, 4)
    assert np.abs(np.diff(out.astype(int))).max() < 300
    assert not out[FADE:].any()


def test_resume_goes_on_without_a_lost_or_doubled_sample(playout: Playout, log: Log) -> None:
    whole = np.full(3200, 10000, dtype=np.int16) + ramp(3200)
    playout.put(whole)
    playout.end()
    first = read(playout, 3)
    playout.pause()
    muted = read(playout, 4)
    playout.resume()
    rest = read(playout, 8)
    sounded = np.concatenate([first, muted[:FADE], rest])[:3200]
    at = 3 * BLOCK  # only the two fades around the pause differ
    assert np.array_equal(sounded[:at], whole[:at])
    assert np.array_equal(sounded[at + 2 * FADE :], whole[at + 2 * FADE :])
    assert np.all(sounded[at : at + 2 * FADE] <= whole[at : at + 2 * FADE])
    assert log.events == ["started", (3200, False)]
    assert playout.underruns == 0


def test_pause_resume_pause_between_two_reads_loses_nothing(playout: Playout, log: Log) -> None:
    playout.put(ramp(3200))
    playout.end()
    playout.read(BLOCK)
    for _ in range(3):
        playout.pause()
        playout.resume()
    read(playout, 12)
    assert log.events == ["started", (3200, False)]


def test_a_pause_before_the_first_sample_holds_all_of_it(playout: Playout, log: Log) -> None:
    playout.pause()
    playout.put(ramp(500))
    playout.end()
    assert not read(playout, 3).any()
    assert log.events == []
    playout.resume()
    assert np.array_equal(read(playout, 2)[:500], ramp(500))


def test_clear_while_paused_makes_no_sound_and_stays_paused(playout: Playout, log: Log) -> None:
    playout.put(ramp(3200))
    playout.read(BLOCK)
    playout.pause()
    playout.read(BLOCK)
    playout.clear()
    assert log.events == ["started", (BLOCK + FADE, True)]
    playout.put(ramp(100))
    assert not read(playout, 2).any()
    playout.resume()
    assert playout.read(BLOCK).any()


def test_the_sent_level_is_the_loudest_of_the_last_half_second(playout: Playout) -> None:
    assert playout.sent_dbfs == SILENT_DBFS
    playout.put(np.full(BLOCK, 3277, dtype=np.int16))
    playout.end()
    playout.read(BLOCK)
    assert playout.sent_dbfs == pytest.approx(-20, abs=0.1)
    read(playout, 24)
    assert playout.sent_dbfs == pytest.approx(-20, abs=0.1)
    playout.read(BLOCK)
    assert playout.sent_dbfs == SILENT_DBFS
