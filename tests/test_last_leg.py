"""The transport's own rate: prompt, flat, and cut anywhere without a trace."""

import numpy as np
import pytest

from agent.last_leg import LastLeg
from tts_plugin.audio import Pcm, to_int16

PAIRS = [(24000, 48000), (16000, 48000), (24000, 8000), (16000, 8000)]


def tone(rate: int, hz: float, seconds: float = 0.5) -> Pcm:
    return to_int16(0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate))


def in_pieces(pcm: Pcm, rate_in: int, rate_out: int, samples: int) -> Pcm:
    leg = LastLeg(rate_in, rate_out)
    parts = [leg.push(pcm[at : at + samples]) for at in range(0, len(pcm), samples)]
    return np.concatenate([*parts, leg.flush()])


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
@pytest.mark.parametrize("samples", [160, 961, 5000])
def test_pieces_equal_the_whole_and_lengths_are_exact(rate_in: int, rate_out: int, samples: int) -> None:
    pcm = tone(rate_in, 1000)
    whole = in_pieces(pcm, rate_in, rate_out, len(pcm))
    assert len(whole) == round(len(pcm) * rate_out / rate_in)
    np.testing.assert_array_equal(in_pieces(pcm, rate_in, rate_out, samples), whole)


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_next_to_nothing_is_held_back(rate_in: int, rate_out: int) -> None:
    leg = LastLeg(rate_in, rate_out)
    first = leg.push(tone(rate_in, 1000, 0.02))
    assert 0.02 - len(first) / rate_out <= 0.0025


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_a_sine_comes_through_at_better_than_50_db(rate_in: int, rate_out: int) -> None:
    hz = 0.85 * min(rate_in, rate_out) / 2
    out = in_pieces(tone(rate_in, hz), rate_in, rate_out, rate_in // 50)[800:-800].astype(float)
    time = np.arange(len(out)) / rate_out
    basis = np.stack([np.sin(2 * np.pi * hz * time), np.cos(2 * np.pi * hz * time)], axis=1)
    fit = basis @ np.linalg.lstsq(basis, out, rcond=None)[0]
    assert 10 * np.log10((fit @ fit) / ((out - fit) @ (out - fit))) > 50


@pytest.mark.parametrize(
    ("rate_in", "hz"),
    [(24000, hz) for hz in (5000, 5500, 6000, 7000, 7900, 9000, 10000, 11000)]
    + [(16000, hz) for hz in (5000, 6000, 7000, 7900)],
)
def test_nothing_above_half_the_telephones_rate_comes_back_as_an_alias(rate_in: int, hz: float) -> None:
    out = in_pieces(tone(rate_in, hz), rate_in, 8000, rate_in // 50)[800:-800].astype(float)
    assert np.sqrt(np.mean(out**2)) < 32767 * 0.5 / np.sqrt(2) * 10 ** (-70 / 20)


def test_equal_rates_pass_through_untouched() -> None:
    pcm = tone(24000, 440)
    assert LastLeg(24000, 24000).push(pcm) is pcm
    assert LastLeg(24000, 24000).flush().size == 0
