"""A reference clip is read, levelled and cut as the published model's references were."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from tests.spark.codecs import DATA
from tts_plugin.engines.spark.reference import at_rate, ref_clip, volume_normalise
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


def test_the_first_channel_at_the_codecs_rate_is_the_references() -> None:
    samples, rate = soundfile.read(STEREO, dtype="float64")
    clip = at_rate(samples[:, 0], rate, 16000)
    assert np.allclose(clip, AUDIO["load_stereo24k_novol"], atol=1e-4, rtol=0)
    assert np.allclose(volume_normalise(clip), AUDIO["load_stereo24k"], atol=1e-4, rtol=0)


def test_no_samples_are_no_clip() -> None:
    with pytest.raises(ConfigError, match="at least one sample"):
        ref_clip(np.zeros(0), SIX_SECONDS)
