"""Resampling in pieces is resampling whole."""

import numpy as np
import pytest

from tts_plugin.audio import AudioFrame, to_int16
from tts_plugin.resample import FrameResampler, Quality, StreamResampler

PAIRS = [(16000, 24000), (24000, 48000), (24000, 8000), (24000, 16000), (8000, 16000), (48000, 16000)]


def tone(rate: int, hz: float, seconds: float = 1.0) -> np.ndarray:
    return to_int16(0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate))


def in_pieces(
    pcm: np.ndarray, rate_in: int, rate_out: int, samples: int, quality: Quality = "HQ"
) -> np.ndarray:
    stream = StreamResampler(rate_in, rate_out, quality)
    parts = [stream.push(pcm[at : at + samples]) for at in range(0, len(pcm), samples)]
    return np.concatenate([*parts, stream.flush()])


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
@pytest.mark.parametrize("samples", [1, 160, 961, 5000])
def test_pieces_equal_the_whole_and_lengths_are_exact(rate_in: int, rate_out: int, samples: int) -> None:
    pcm = tone(rate_in, 1000, 0.3)
    whole = in_pieces(pcm, rate_in, rate_out, len(pcm))
    pieces = in_pieces(pcm, rate_in, rate_out, samples)
    assert len(whole) == round(len(pcm) * rate_out / rate_in)
    np.testing.assert_array_equal(pieces, whole)


@pytest.mark.parametrize("quality", ["HQ", "LQ"])
def test_nothing_above_half_the_new_rate_comes_back_as_an_alias(quality: Quality) -> None:
    out = in_pieces(tone(24000, 5500), 24000, 8000, 480, quality)[800:-800].astype(float)
    rms_db = 20 * np.log10(np.sqrt(np.mean(out**2)) / (32767 * 0.5 / np.sqrt(2)) + 1e-12)
    assert rms_db < -70


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_a_sine_comes_through_at_better_than_70_db(rate_in: int, rate_out: int) -> None:
    out = in_pieces(tone(rate_in, 1000), rate_in, rate_out, rate_in // 50)
    middle = out[rate_out // 5 : -rate_out // 5].astype(float)
    time = np.arange(len(middle)) / rate_out
    basis = np.stack([np.sin(2000 * np.pi * time), np.cos(2000 * np.pi * time)], axis=1)
    fit = basis @ np.linalg.lstsq(basis, middle, rcond=None)[0]
    assert 10 * np.log10((fit @ fit) / ((middle - fit) @ (middle - fit))) > 70


def test_equal_rates_pass_through_untouched() -> None:
    pcm = tone(24000, 440)
    stream = StreamResampler(24000, 24000)
    assert stream.push(pcm) is pcm
    assert stream.flush().size == 0


def test_a_new_stream_after_a_cancel_holds_nothing_of_the_old_one() -> None:
    cancelled = StreamResampler(24000, 48000)
    cancelled.push(tone(24000, 440))
    fresh = StreamResampler(24000, 48000)
    out = np.concatenate([fresh.push(np.zeros(4800, np.int16)), fresh.flush()])
    assert not out.any()


def test_frames_stay_contiguous_and_keep_their_segment() -> None:
    pcm = tone(16000, 300, 0.5)
    edge = FrameResampler(16000, 24000)
    out = []
    for index, at in enumerate(range(0, len(pcm), 320)):
        segment, last = divmod(index, 5)
        out += edge.push(AudioFrame(pcm[at : at + 320], 16000, at, segment, ends_segment=last == 4))
    out += edge.flush()
    stops = [0, *[frame.stop for frame in out]]
    assert [frame.start for frame in out] == stops[:-1]
    assert stops[-1] == 12000
    assert [f.segment for f in out] == sorted(f.segment for f in out)
    ends = [frame.stop for frame in out if frame.ends_segment]
    assert ends == [2400, 4800, 7200, 9600, 12000]  # where the engine's own 1600-sample segments end
    assert {frame.rate for frame in out} == {24000}
