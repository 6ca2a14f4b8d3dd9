"""What a sample is, and the arithmetic on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_plugin.audio import (
    SILENT_DBFS,
    AudioFrame,
    Framer,
    bytes_of,
    faded_in,
    faded_out,
    level_dbfs,
    limited,
    samples_of,
    to_float32,
    to_int16,
)

RATE = 16000


def sine(hz: float, seconds: float, level: float = 1.0) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def test_every_int16_survives_the_way_to_float_and_back() -> None:
    every = np.arange(-32767, 32768, dtype=np.int16)
    np.testing.assert_array_equal(to_int16(to_float32(every)), every)


def test_too_loud_is_clipped_and_never_wraps() -> None:
    assert to_int16(np.array([1.0, 1.5, -1.5, 1e9])).tolist() == [32767, 32767, -32767, 32767]


def test_bytes_are_little_endian() -> None:
    assert bytes_of(np.array([1, -2], dtype=np.int16)) == b"\x01\x00\xfe\xff"
    assert samples_of(b"\x01\x00\xfe\xff").tolist() == [1, -2]


def test_level_of_a_full_scale_sine_is_minus_three_db() -> None:
    assert level_dbfs(to_int16(sine(440, 1.0))) == pytest.approx(-3.01, abs=0.02)
    assert level_dbfs(np.zeros(10, dtype=np.int16)) == SILENT_DBFS
    assert level_dbfs(np.zeros(0, dtype=np.int16)) == SILENT_DBFS


@given(st.lists(st.integers(0, 700), max_size=30), st.integers(1, 320))
def test_a_framer_loses_and_adds_nothing(lengths: list[int], size: int) -> None:
    framer = Framer(size)
    whole = np.arange(sum(lengths), dtype=np.int64).astype(np.int16)
    out, at = [], 0
    for length in lengths:
        out += framer.push(whole[at : at + length])
        at += length
    out += framer.flush()
    assert all(len(frame) == size for frame in out)
    joined = np.concatenate(out) if out else whole[:0]
    np.testing.assert_array_equal(joined[: len(whole)], whole)
    assert not joined[len(whole) :].any()
    assert len(joined) - len(whole) < size


def test_a_frame_cut_in_pieces_is_contiguous_and_only_the_last_ends_the_segment() -> None:
    frame = AudioFrame(np.arange(1000, dtype=np.int16), RATE, 500, 3, ends_segment=True)
    pieces = frame.pieces(300)
    assert [piece.start for piece in pieces] == [500, 800, 1100, 1400]
    assert [piece.ends_segment for piece in pieces] == [False, False, False, True]
    assert {piece.segment for piece in pieces} == {3}
    np.testing.assert_array_equal(np.concatenate([piece.pcm for piece in pieces]), frame.pcm)
    assert pieces[-1].stop == frame.stop


def test_fades_begin_and_end_near_zero_and_leave_the_rest_alone() -> None:
    loud = np.full(1000, 20000, dtype=np.int16)
    out, into = faded_out(loud, 100), faded_in(loud, 100)
    assert abs(int(out[-1])) < 250
    assert abs(int(into[0])) < 250
    assert (out[:900] == 20000).all()
    assert (into[100:] == 20000).all()
    assert faded_out(loud[:0], 100).size == 0
    assert (loud == 20000).all()


def test_the_limiter_raises_quiet_sound_exactly_and_holds_peaks_under_the_ceiling() -> None:
    quiet = sine(300, 0.5, 0.05)
    np.testing.assert_allclose(
        limited(quiet, gain_db=6.0, ceiling_dbfs=-1.5, rate=RATE), quiet * 10 ** (6 / 20), rtol=1e-6
    )
    burst = np.concatenate((quiet, sine(300, 0.1, 0.9), quiet))
    out = limited(burst, gain_db=7.0, ceiling_dbfs=-1.5, rate=RATE)
    assert np.abs(out).max() <= 10 ** (-1.5 / 20) + 1e-6
    # a gain, not a clipper: far from the burst nothing changed
    np.testing.assert_allclose(out[:4000], burst[:4000] * 10 ** (7 / 20), rtol=1e-5)


def test_the_limiter_takes_no_samples() -> None:
    assert limited(np.zeros(0, np.float32), gain_db=7.0, ceiling_dbfs=-1.5, rate=RATE).size == 0
