"""Speech at another pace: as much shorter or longer, of the same pitch and level, however it is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tts_plugin.audio import Pcm, level_dbfs, to_int16
from tts_plugin.engines.spark.pace import Pace

RATE = 16_000
SPEECH: Pcm
SPEECH, _ = soundfile.read(Path(__file__).parents[1] / "data" / "librivox_sense_0890.wav", dtype="int16")


def sine(hz: float, seconds: float) -> Pcm:
    return to_int16(0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * RATE)) / RATE))


def paced(pcm: Pcm, pace: float, cut: int = 1600) -> Pcm:
    made = Pace(pace, RATE)
    pieces = [made.push(pcm[at : at + cut]) for at in range(0, len(pcm), cut)]
    return np.concatenate([*pieces, made.flush()])


@pytest.mark.parametrize("pace", [0.5, 0.8, 0.99, 1.1, 1.5, 2.0])
@pytest.mark.parametrize("samples", [1, 320, 479, 480, 1600, 20_001])
def test_its_length_is_exact(samples: int, pace: float) -> None:
    assert len(paced(SPEECH[:samples], pace)) == round(samples / pace)


@pytest.mark.parametrize("pace", [0.5, 0.8, 1.5, 2.0])
@pytest.mark.parametrize("hz", [95.0, 220.0, 777.0])
def test_pitch_and_level_stay(hz: float, pace: float) -> None:
    made = paced(sine(hz, 2.0), pace)[800:-800]
    spectrum = np.abs(np.fft.rfft(made * np.hanning(len(made)), 4 * len(made)))
    assert np.argmax(spectrum) * RATE / (4 * len(made)) == pytest.approx(hz, abs=2)
    assert level_dbfs(made) == pytest.approx(level_dbfs(sine(hz, 2.0)), abs=0.5)
    # and there is nothing else: grains that did not fit would be heard as their rhythm
    near = abs(np.arange(len(spectrum)) * RATE / (4 * len(made)) - hz) < 15
    assert np.square(spectrum[~near]).sum() < 0.01 * np.square(spectrum[near]).sum()


@pytest.mark.parametrize("pace", [0.7, 1.4])
def test_speech_keeps_its_level_over_time(pace: float) -> None:
    made = paced(SPEECH, pace)
    for part in range(8):
        there, here = (wave[part * len(wave) // 8 : (part + 1) * len(wave) // 8] for wave in (SPEECH, made))
        assert level_dbfs(here) == pytest.approx(level_dbfs(there), abs=3)


@pytest.mark.parametrize("cut", [37, 320, 2560])
def test_it_does_not_matter_how_it_is_cut(cut: int) -> None:
    whole = paced(SPEECH[:30_000], 1.3, 30_000)
    np.testing.assert_array_equal(paced(SPEECH[:30_000], 1.3, cut), whole)


@pytest.mark.parametrize("pace", [0.5, 1.5, 2.0])
def test_little_is_held_back(pace: float) -> None:
    made = Pace(pace, RATE)
    out = 0
    for at in range(0, 32_000, 320):
        out += len(made.push(SPEECH[at : at + 320]))
        assert out / RATE * pace > (at + 320) / RATE - 0.07


def test_pace_1_passes_through_untouched() -> None:
    made = Pace(1, RATE)
    assert made.push(SPEECH) is SPEECH
    assert len(made.flush()) == 0


def test_silence_and_nothing_stay_so() -> None:
    assert not paced(np.zeros(5000, np.int16), 1.5).any()
    assert len(paced(np.zeros(0, np.int16), 1.5)) == 0
