"""A reference clip is read, levelled and cut as the published model's references were."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.spark.codecs import DATA
from tts_plugin.engines.spark.reference import read_clip, ref_clip, volume_normalise
from tts_plugin.errors import ConfigError

AUDIO = np.load(DATA / "audio.npz")
CASES = json.loads((DATA / "ref_clip.json").read_text(encoding="utf-8"))["cases"]
VOLUMES = sorted(key.split("/")[1] for key in AUDIO.files if key.startswith("vol/") and key.endswith("/in"))
STEREO = DATA / "stereo24k.wav"
SIX_SECONDS = 96000


@pytest.mark.parametrize("case", VOLUMES)
def test_volumes_are_the_references(case: str) -> None:
    before = AUDIO[f"vol/{case}/in"]
    untouched = before.copy()
    assert np.allclose(volume_normalise(before), AUDIO[f"vol/{case}/out"], atol=1e-12, rtol=0)
    assert np.array_equal(before, untouched)


def test_all_volume_cases_are_there() -> None:
    assert len(VOLUMES) == 9


@pytest.mark.parametrize("count", CASES)
def test_cuts_are_the_references(count: str) -> None:
    wanted = CASES[count]
    found = ref_clip(np.arange(float(count)), SIX_SECONDS)
    assert (len(found), found[0], found[-1], found.sum()) == (
        wanted["len"],
        wanted["first"],
        wanted["last"],
        wanted["sum"],
    )


def test_the_first_channel_loads_as_the_references() -> None:
    clip = read_clip(STEREO, 16000, channel=0)
    assert np.allclose(clip, AUDIO["load_stereo24k_novol"], atol=1e-4, rtol=0)
    assert np.allclose(volume_normalise(clip), AUDIO["load_stereo24k"], atol=1e-4, rtol=0)


def test_channels_are_mixed_down() -> None:
    left, right = (read_clip(STEREO, 16000, channel=at) for at in (0, 1))
    assert not np.allclose(left, right, atol=1e-3)
    assert np.allclose(read_clip(STEREO, 16000), (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_the_usual_formats_are_read(tmp_path: Path, ending: str) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 / 16000 * np.arange(16000))
    path = tmp_path / f"clip.{ending}"
    soundfile.write(path, tone, 16000)
    clip = read_clip(path, 16000)
    assert abs(len(clip) - 16000) < 2400  # mp3 pads
    assert 0.15 < np.sqrt(np.mean(clip**2)) < 0.25


def test_eight_bits_and_96_khz_are_read(tmp_path: Path) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 / 96000 * np.arange(96000))
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone, 96000, subtype="PCM_U8")
    clip = read_clip(path, 16000)
    assert len(clip) == 16000
    wanted = 0.3 * np.sin(2 * np.pi * 440 / 16000 * np.arange(16000))
    assert np.abs(clip - wanted)[200:-200].max() < 0.02


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "clip.wav"
    text.write_text("not a sound")
    with pytest.raises(ConfigError, match="cannot be read as sound"):
        read_clip(text, 16000)
    with pytest.raises(ConfigError, match="cannot be read as sound"):
        read_clip(tmp_path / "absent.wav", 16000)


def test_an_empty_clip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.zeros(0), 16000)
    with pytest.raises(ConfigError, match="holds no samples"):
        read_clip(path, 16000)
    with pytest.raises(ConfigError, match="at least one sample"):
        ref_clip(np.zeros(0), SIX_SECONDS)


def test_a_clip_with_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.array([0.1, np.nan, 0.2]), 16000, subtype="FLOAT")
    with pytest.raises(ConfigError, match="no number"):
        read_clip(path, 16000)


def test_a_channel_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 2 channels, so no channel 2"):
        read_clip(STEREO, 16000, channel=2)
