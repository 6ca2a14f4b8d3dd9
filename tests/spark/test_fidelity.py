"""The fidelity bench measures what it says, on the tiny codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tts_plugin.bench.fidelity import Row, cuts_of, measured, plot, policies, snr_db
from tts_plugin.cli import main
from tts_plugin.engines.spark.bicodec import TINY, random_bicodec


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.policy: row for row in measured(random_bicodec(TINY, seed=3), tokens=160, utterances=1)}


def test_look_ahead_buys_fidelity_up_to_the_offline_decode_itself(rows: dict[str, Row]) -> None:
    by_right = sorted((row for name, row in rows.items() if name.startswith("right")), key=lambda r: r.right)
    seams = [row.seam_db for row in by_right]
    assert seams == sorted(seams)
    assert by_right[-1].seam_db > 100
    assert by_right[0].seam_db < 30


def test_balanced_beats_the_cross_faded_chunks_at_the_seams_and_starts_earlier(rows: dict[str, Row]) -> None:
    baseline = rows["50-token chunks, cross-fade"]
    assert rows["balanced"].seam_db > baseline.seam_db + 20
    assert (rows["balanced"].tokens_before_sound, baseline.tokens_before_sound) == (14, 50)


def test_every_policy_emits_every_token_once() -> None:
    for policy in policies(67):
        cuts = list(cuts_of(policy, 160))
        assert [cut.emit_from for cut in cuts] == [0, *[cut.emit_to for cut in cuts[:-1]]]
        assert cuts[-1].emit_to == 160


def test_decibels_are_of_the_noise_in_the_place_asked_for() -> None:
    clean = np.sin(np.arange(1000) / 5)
    noisy = clean.copy()
    noisy[:500] *= 1.1
    first, second = np.arange(1000) < 500, np.arange(1000) >= 500
    assert snr_db(clean, noisy, first) == pytest.approx(20.0, abs=0.01)
    assert snr_db(clean, noisy, second) == 140.0


def test_the_plot_is_a_picture(rows: dict[str, Row], tmp_path: Path) -> None:
    plot(list(rows.values()), tmp_path / "fidelity.png")
    assert (tmp_path / "fidelity.png").read_bytes()[:4] == b"\x89PNG"


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fidelity", "--model", "/nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
