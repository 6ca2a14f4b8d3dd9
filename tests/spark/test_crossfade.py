"""The other servers' policy speaks with the same model, and the bench sets them side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from tts_plugin.audio import AudioFrame
from tts_plugin.bench.crossfade import CHUNKS, WHOLE, CrossFadeEngine
from tts_plugin.bench.speakers import cast
from tts_plugin.cli import main
from tts_plugin.config import Settings, load_settings
from tts_plugin.engine import Segment, Turn, load_engine
from tts_plugin.engines.spark.engine import SparkEngine

ROOT = Path(__file__).parents[2]
TEXT = "Please bring a coat, since it can be windy out there by the old lighthouse."


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The bundled settings, where a voice's tokens can be kept beside it without being shipped."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    ignored = shutil.ignore_patterns("*.json")
    shutil.copytree(ROOT / "voices" / "spark", tmp_path / "voices" / "spark", ignore=ignored)
    monkeypatch.setenv("SPARK_TTS_MODEL", str(tiny_model))
    monkeypatch.chdir(tmp_path)
    return load_settings(Path("configs/spark-cpu.yaml"))


async def one(text: str) -> AsyncGenerator[Segment]:
    yield Segment(0, text, 0, len(text))


async def test_the_policies_say_the_same_in_other_pieces(settings: Settings) -> None:
    engine = load_engine("spark", settings.engine)
    assert isinstance(engine, SparkEngine)
    turn = Turn(cast(settings, None), seed=3)
    spoken: dict[str, list[AudioFrame]] = {}
    try:
        for name, policy in (("chunks", CHUNKS), ("whole", WHOLE)):
            async with aclosing(CrossFadeEngine(engine, policy).speak(turn, one(TEXT))) as frames:
                spoken[name] = [frame async for frame in frames]
        async with aclosing(engine.speak(turn, one(TEXT))) as frames:
            spoken["ours"] = [frame async for frame in frames]
    finally:
        await engine.aclose()
    token = engine.rate // 50
    assert len(spoken["whole"]) == 1
    assert len(spoken["chunks"][0].pcm) == (CHUNKS.first - CHUNKS.overlap) * token
    assert len(spoken["ours"][0].pcm) < 16 * token
    for frames_ in spoken.values():
        assert [frame.start for frame in frames_[1:]] == [frame.stop for frame in frames_[:-1]]
        assert frames_[-1].stop == spoken["whole"][-1].stop
    whole, chunks = spoken["whole"][0].pcm, np.concatenate([frame.pcm for frame in spoken["chunks"]])
    assert np.corrcoef(whole, chunks)[0, 1] > 0.9


@pytest.mark.usefixtures("settings")
def test_the_bench_prints_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "concurrency", "--config", "configs/spark-cpu.yaml", "--baseline", "--streams", "1"]
    assert main([*argv, "--seconds", "3", "--text-rate", "0", "--json", "out.json"]) == 0
    names = [row["name"] for row in json.loads(Path("out.json").read_text())["rows"]]
    assert names == ["spark", "spark, 50-token chunks", "spark, whole segments"]
    assert "times sooner than spark, 50-token chunks" in capsys.readouterr().out
