"""A reference clip is judged by what is in it: every fault is told in words, and no file does harm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from tts_plugin.engines.spark.clip import RATE, digest_of, examine_clip
from tts_plugin.engines.spark.reference import Samples
from tts_plugin.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
SPEECH, _ = soundfile.read(DATA / "librivox_sense_0890.wav", dtype="float64")  # 5.3 s at RATE
OTHER, _ = soundfile.read(DATA / "goforward.wav", dtype="float64")


def saved(
    folder: Path,
    wave: Samples,
    name: str = "a.wav",
    rate: int = RATE,
    *,
    subtype: str | None = None,
    format: str | None = None,
) -> Path:
    path = folder / name
    soundfile.write(path, wave, rate, subtype=subtype, format=format)
    return path


def told(path: Path, *, transcribed: bool = False) -> list[tuple[str, str]]:
    """Level and words of each finding, the file's name taken off."""
    findings = examine_clip(path, transcribed=transcribed).findings
    assert all(finding.message.startswith(f"{path} ") for finding in findings)
    return [(finding.level, finding.message.removeprefix(f"{path} ")) for finding in findings]


def only(path: Path, level: str, words: str, *, transcribed: bool = False) -> None:
    """Exactly one finding, and it is this one."""
    found = told(path, transcribed=transcribed)
    assert len(found) == 1, found
    assert found[0][0] == level
    assert words in found[0][1]


def noise(samples: int, level: float, seed: int = 0) -> Samples:
    return np.random.default_rng(seed).standard_normal(samples) * level


def repeated(seconds: float) -> Samples:
    return np.resize(SPEECH, round(seconds * RATE))


@pytest.mark.parametrize("name", ["librivox_sense_0890", "sphinx_something", "goforward"])
def test_plain_recordings_are_free_of_findings(name: str) -> None:
    path = DATA / f"{name}.wav"
    clip = examine_clip(path)
    assert clip.findings == ()
    assert clip.seconds == len(clip.wave) / RATE
    assert clip.digest == digest_of(path)
    np.testing.assert_array_equal(clip.wave, soundfile.read(path)[0])
    clip.require()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.wav", {"subtype": "PCM_U8"}),
        ("a.wav", {"subtype": "PCM_24"}),
        ("a.wav", {"subtype": "FLOAT"}),
        ("a.flac", {}),
        ("a.ogg", {}),
        ("a.mp3", {}),
        ("flac.wav", {"format": "FLAC"}),
        ("mp3.flac", {"format": "MP3"}),
        ("wav.raw", {"format": "WAV"}),
        ("wav.txt", {"format": "WAV"}),
        ("wav", {"format": "WAV"}),
    ],
)
def test_the_content_decides_not_the_name(tmp_path: Path, name: str, how: Any) -> None:
    path = saved(tmp_path, SPEECH, name, **how)
    clip = examine_clip(path)
    assert clip.findings == ()
    assert clip.seconds == pytest.approx(len(SPEECH) / RATE, abs=0.1)


def test_96_khz_is_brought_to_the_codecs_rate(tmp_path: Path) -> None:
    path = saved(tmp_path, soxr.resample(SPEECH, RATE, 96_000), rate=96_000)
    clip = examine_clip(path)
    assert clip.findings == ()
    assert len(clip.wave) == pytest.approx(len(SPEECH), abs=2)


def test_eight_bits_and_96_khz_keep_the_wave(tmp_path: Path) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 / 96_000 * np.arange(3 * 96_000))
    clip = examine_clip(saved(tmp_path, tone, rate=96_000, subtype="PCM_U8"))
    wanted = 0.3 * np.sin(2 * np.pi * 440 / RATE * np.arange(3 * RATE))
    assert np.abs(clip.wave - wanted)[200:-200].max() < 0.02


def test_channels_are_mixed_down(tmp_path: Path) -> None:
    clip = examine_clip(saved(tmp_path, np.stack((SPEECH, 0.5 * SPEECH), 1), subtype="FLOAT"))
    np.testing.assert_allclose(clip.wave, 0.75 * SPEECH, atol=1e-6)


def test_too_short(tmp_path: Path) -> None:
    only(saved(tmp_path, SPEECH[8000:9600]), "error", "is too short: 0.10 s, a voice needs 2 s or more")
    assert told(saved(tmp_path, SPEECH[: 2 * RATE])) == []
    with pytest.raises(ConfigError, match="too short"):
        examine_clip(saved(tmp_path, SPEECH[: 2 * RATE - 1])).require()


def test_longer_than_used(tmp_path: Path) -> None:
    path = saved(tmp_path, repeated(9))
    only(path, "warning", "is longer than used: only the first 6 s of 9 s make the speaker")
    assert told(path, transcribed=True) == []
    path = saved(tmp_path, repeated(16))
    only(path, "error", "is too long for a transcript: 16 s, at most 15 s", transcribed=True)


def test_ten_minutes_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    path = saved(tmp_path, repeated(600), subtype="PCM_U8")
    only(path, "error", "lasts 10 min, a clip may last 2 min")
    assert len(examine_clip(path).wave) == 0


def test_a_file_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, SPEECH)
    os.truncate(path, 100_000_001)  # sparse
    only(path, "error", "has 100,000,001 bytes, a clip may have 100,000,000")


def test_silence(tmp_path: Path) -> None:
    only(saved(tmp_path, np.zeros(3 * RATE)), "error", "is silent: digital silence")
    only(saved(tmp_path, SPEECH * 10 ** (-40 / 20)), "error", "is silent: its speech is at -61 dBFS")
    late = np.concatenate((np.zeros(7 * RATE), SPEECH))
    assert [words[:9] for _, words in told(saved(tmp_path, late))] == ["is silent", "is longer"]
    assert told(saved(tmp_path, SPEECH * 10 ** (-20 / 20))) == []


def test_clipping(tmp_path: Path) -> None:
    only(saved(tmp_path, np.clip(SPEECH * 8, -1, 1)), "warning", "is clipped: ")
    assert told(saved(tmp_path, SPEECH / np.abs(SPEECH).max())) == []


def test_noise(tmp_path: Path) -> None:
    power = np.sqrt(np.square(SPEECH).mean())
    only(saved(tmp_path, SPEECH + noise(len(SPEECH), power / 10 ** (10 / 20))), "warning", "is noisy: its")
    assert told(saved(tmp_path, SPEECH + noise(len(SPEECH), power / 10 ** (20 / 20)))) == []
    only(saved(tmp_path, noise(3 * RATE, 0.1)), "warning", "only 1 dB below its speech (20 dB wanted)")


def test_channels(tmp_path: Path) -> None:
    other = np.resize(OTHER, len(SPEECH)) * 2
    two = "has channels of different content"
    only(saved(tmp_path, np.stack((SPEECH, other), 1)), "warning", two)
    only(saved(tmp_path, np.stack((np.zeros_like(SPEECH), SPEECH, other), 1)), "warning", two)
    only(
        saved(tmp_path, np.stack((SPEECH, -0.9 * SPEECH), 1)), "error", "has channels that cancel each other"
    )
    late = np.concatenate((np.zeros(40), 0.5 * SPEECH[:-40]))  # the farther of two microphones
    for fine in (SPEECH, SPEECH * 0.1, np.zeros_like(SPEECH), late + noise(len(SPEECH), 0.001)):
        assert told(saved(tmp_path, np.stack((SPEECH, fine), 1))) == []


def test_a_telephone_recording_lacks_the_upper_half(tmp_path: Path) -> None:
    path = saved(tmp_path, soxr.resample(SPEECH, RATE, 8000), rate=8000)
    only(path, "warning", "is at 8000 Hz: the voice will lack all above 4 kHz")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_is_no_number(tmp_path: Path, value: float) -> None:
    wave = SPEECH.copy()
    wave[1000] = value
    only(saved(tmp_path, wave, subtype="FLOAT"), "error", "holds a sample that is no number")


def test_files_that_are_no_sound(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    only(path, "error", "cannot be read: No such file or directory")
    path.write_bytes(b"")
    only(path, "error", "is empty")
    path.write_text("id: ava\n")
    only(path, "error", "cannot be read as sound (wav, flac, ogg, mp3): Format not recognised.")
    only(saved(tmp_path, np.zeros(0)), "error", "holds no samples")
    only(tmp_path, "error", "is not a file")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    only(pipe, "error", "is not a file")
    with pytest.raises(ConfigError, match="is not a file"):
        digest_of(pipe)
    cut = tmp_path / "cut.flac"
    cut.write_bytes(saved(tmp_path, SPEECH, "b.flac").read_bytes()[:60])
    assert [level for level, _ in told(cut)] == ["error"]
