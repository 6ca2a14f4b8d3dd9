"""`sparkvoice say` with the bundled Spark settings and voices, on a model of random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import soundfile

from tts_plugin.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bundled settings where a voice's tokens can be kept beside it without being shipped."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(
        ROOT / "voices" / "spark", tmp_path / "voices" / "spark", ignore=shutil.ignore_patterns("*.json")
    )
    monkeypatch.setenv("SPARK_TTS_MODEL", str(tiny_model))
    monkeypatch.chdir(tmp_path)
    return "configs/spark-cpu.yaml"


def test_the_bundled_settings_speak(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello. It is 7:45.", "--seed", "1", "--json", "--config", config]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["voice"], report["engine"], report["rate"]) == ("spark-female", "spark", 16_000)
    assert report["audio_s"] > 1
    assert list(report["stages_ms"])[:4] == ["queue", "prefill", "tokens", "vocoder"]
    assert soundfile.info("out.wav").duration == pytest.approx(report["audio_s"], abs=1e-3)
    assert Path("voices/spark/spark-female.tokens.json").exists(), "the speaker is kept"


def test_markup_alone_is_nothing_to_speak(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "<|end_content|>", "--config", config]) == 2
    assert "nothing to speak" in capsys.readouterr().err
    assert not Path("out.wav").exists()
