"""Every key is heard once through a telephone line's noise, and speech is never a key."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from agent.dtmf import COLUMNS_HZ, KEYS, ROWS_HZ, Presses, ToneKeys
from tests.telephone import noisy, over_mulaw
from tts_plugin.audio import Pcm, samples_of, silence, to_int16
from tts_plugin.resample import StreamResampler

RATE = 8000
DATA = Path(__file__).parent / "data"
ALL = "".join(KEYS)
SPEECH = ("goforward.wav", "librivox_sense_0890.wav", "sphinx_something.wav")


def tone(key: str, seconds: float = 0.1, rate: int = RATE, *, twist_db: float = 0.0, off: float = 0.0) -> Pcm:
    """The key's two tones, -10 dBFS each; twist_db: the column's level over the row's. off: of the
    frequencies, as a fraction."""
    row = next(row for row, keys in enumerate(KEYS) if key in keys)
    at = np.arange(round(seconds * rate)) / rate * 2 * np.pi * (1 + off)
    low = np.sin(at * ROWS_HZ[row])
    high = np.sin(at * COLUMNS_HZ[KEYS[row].index(key)]) * 10 ** (twist_db / 20)
    return to_int16(0.25 * (low + high))


def dialled(keys: str, rate: int = RATE, *, on_s: float = 0.1, off_s: float = 0.1) -> Pcm:
    gap = silence(off_s, rate)
    return np.concatenate([gap, *(part for key in keys for part in (tone(key, on_s, rate), gap))])


def heard(pcm: Pcm, rate: int = RATE, step_s: float = 0.02) -> str:
    ear = ToneKeys(rate)
    step = round(step_s * rate)
    return "".join(key for at in range(0, len(pcm), step) for key in ear.push(pcm[at : at + step]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("snr_db", [30.0, 20.0, 10.0])
def test_all_sixteen_keys_are_heard_over_mulaw_and_noise(snr_db: float, seed: int) -> None:
    assert heard(over_mulaw(noisy(dialled(ALL), snr_db, seed=seed))) == ALL


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_any_rate_will_do(rate: int) -> None:
    assert heard(dialled(ALL, rate), rate) == ALL


@pytest.mark.parametrize("step_s", [0.001, 0.013, 0.5])
def test_the_pieces_do_not_matter(step_s: float) -> None:
    assert heard(dialled("159#"), step_s=step_s) == "159#"


def test_the_same_key_twice_is_two_presses_and_a_long_one_is_one() -> None:
    assert heard(dialled("1122", on_s=0.06, off_s=0.06)) == "1122"
    assert heard(dialled("7", on_s=3.0)) == "7"


def test_fifty_milliseconds_are_a_press_and_twenty_are_not() -> None:
    assert heard(dialled(ALL, on_s=0.052, off_s=0.05)) == ALL
    assert heard(dialled(ALL, on_s=0.02)) == ""


@pytest.mark.parametrize("twist_db", [-8.0, -4.0, 4.0, 8.0])
def test_a_line_that_favours_one_tone_is_no_hindrance(twist_db: float) -> None:
    pcm = np.concatenate([np.concatenate([silence(0.1, RATE), tone(key, twist_db=twist_db)]) for key in ALL])
    assert heard(over_mulaw(pcm)) == ALL


@pytest.mark.parametrize("off", [-0.01, 0.01])
def test_a_telephone_one_percent_off_pitch_is_understood(off: float) -> None:
    pcm = np.concatenate([np.concatenate([silence(0.1, RATE), tone(key, off=off)]) for key in ALL])
    assert heard(pcm) == ALL


def telephone_speech() -> Pcm:
    """Half a minute of men, a woman and the embedded voice, as an 8 kHz line carries them."""
    parts = []
    for name in SPEECH:
        with wave.open(str(DATA / name)) as file:
            down = StreamResampler(file.getframerate(), RATE)
            parts += [down.push(samples_of(file.readframes(file.getnframes()))), down.flush()]
    down = StreamResampler(24000, RATE)
    text = "Please press one for sales, two for service, or zero to speak with a person in our office. "
    for seed in range(3):
        parts.append(down.push(to_int16(np.asarray(Hibari()(text, seed=seed), dtype=np.float32))))
    return over_mulaw(np.concatenate([*parts, down.flush()]))


def test_speech_is_never_a_key() -> None:
    speech = telephone_speech()
    assert len(speech) / RATE > 25
    for gain in (0.3, 1.0, 2.0):
        assert heard(np.clip(speech * gain, -32767, 32767).astype(np.int16)) == ""


def test_noise_and_single_tones_are_never_keys() -> None:
    at = np.arange(RATE) / RATE * 2 * np.pi
    singles = [to_int16(0.4 * np.sin(at * hz)) for hz in (350, 440, 480, 620, *ROWS_HZ, *COLUMNS_HZ)]
    dial_tone = to_int16(0.2 * np.sin(at * 350) + 0.2 * np.sin(at * 440))
    noise = noisy(silence(10, RATE), 0.0)
    for pcm in (*singles, dial_tone, noise):
        assert heard(pcm) == ""


def test_a_key_pressed_while_the_agent_s_echo_comes_back_is_heard() -> None:
    speech = telephone_speech()[: 5 * RATE]
    pcm = np.tile(dialled("42#"), 2)[: len(speech)].astype(np.int32) + speech[: 2 * len(dialled("42#"))] // 8
    assert heard(over_mulaw(pcm.astype(np.int16))) == "42#42#"


def test_what_tone_and_event_both_report_is_one_press() -> None:
    presses = Presses()
    assert presses.tone("5", 1.0)
    assert not presses.event("5", 1.1)
    assert presses.tone("5", 1.3)  # pressed again
    assert not presses.event("5", 1.4)


def test_an_event_before_its_tone_counts_once_too() -> None:
    presses = Presses()
    assert presses.event("5", 1.0)
    assert not presses.tone("5", 1.1)


def test_one_way_only_reports_every_press() -> None:
    presses = Presses()
    assert [presses.event("1", at / 10) for at in range(5)] == [True] * 5
    assert [presses.tone("2", at / 10) for at in range(5)] == [True] * 5


def test_a_tone_held_down_is_still_the_press_that_the_event_at_its_end_reports() -> None:
    presses = Presses()
    assert presses.tone("9", 0.0)
    for turn in range(200):
        presses.sounds("9", turn * 0.02)
    assert not presses.event("9", 4.2)
    assert presses.event("9", 9.0)
