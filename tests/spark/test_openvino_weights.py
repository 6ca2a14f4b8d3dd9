"""Compressed weights: made once, kept apart by what they were made of, whole or not at all."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.spark import tiny_lm
from tts_plugin.cli import main
from tts_plugin.config import EngineSettings, SparkSettings
from tts_plugin.engines.spark.engine import build
from tts_plugin.engines.spark.lm.openvino_weights import Bar, Source, Weights, compressed
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.mapped import MappedTensors
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.errors import ConfigError, NotInstalled

ROOT = Path(__file__).parents[2]
Printed = pytest.CaptureFixture[str]


def silent(_: int, __: int) -> None:
    """Nobody looks on."""


def source(model_dir: Path, weights: Weights = "int8") -> Source:
    files = ModelFiles(model_dir)
    return Source(files, LmConfig.read(files.lm_config), tiny_lm.vocabulary(), weights)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tiny_lm.saved(tmp_path / "model")


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "openvino").iterdir())


@pytest.mark.parametrize(("weights", "steps"), [("int8", 127), ("int4", 7)])
def test_each_row_is_within_half_a_step_of_what_it_was(saved: Path, weights: Weights, steps: int) -> None:
    made = MappedTensors(compressed(source(saved, weights), tmp := saved / "cache", silent))
    was = tiny_lm.model().state_dict()["model.layers.1.mlp.down_proj.weight"].numpy()
    rows, scale = made.array("layers.1.down"), made.array("layers.1.down.scale")
    if weights == "int4":
        halves = np.stack((rows & 0x0F, rows >> 4), axis=-1).reshape(len(rows), -1, 2 * rows.shape[2])
        rows = np.where(halves > 7, halves.astype(np.int16) - 16, halves)
    found = (rows * scale).reshape(was.shape)
    assert np.abs(found - was).max() <= np.abs(was).max() / steps / 2 * 1.001
    assert files_in(tmp)


def test_bfloat16_weights_are_read_as_what_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "half" / "LLM"
    tiny_lm.saved(tmp_path / "half")
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in tiny_lm.model().state_dict().items()}
    tiny_lm.model().save_pretrained(folder, state_dict=dict(halved))  # it empties what it gets
    made = MappedTensors(compressed(source(tmp_path / "half"), tmp_path, silent))
    due = halved["model.norm.weight"].float().numpy()
    assert np.array_equal(made.floats("norm"), due)
    first = tiny_lm.vocabulary().global_first
    assert np.array_equal(
        made.floats("global"), halved["model.embed_tokens.weight"][first : first + tiny_lm.GLOBAL].float()
    )


def test_it_is_made_once_and_anew_for_other_weights_or_another_kind(saved: Path, tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []

    def look(done: int, whole: int) -> None:
        shown.append((done, whole))

    place = compressed(source(saved), tmp_path, look)
    done, whole = shown[-1]
    assert done == whole < place.stat().st_size
    shown.clear()
    assert compressed(source(saved), tmp_path, look) == place
    assert not shown
    others = {place, compressed(source(saved, "int4"), tmp_path, silent)}
    changed = {name: tensor * 1.01 for name, tensor in tiny_lm.model().state_dict().items()}
    tiny_lm.model().save_pretrained(saved / "LLM", state_dict=changed)
    others.add(compressed(source(saved), tmp_path, silent))
    assert len(others) == 3


def test_two_at_once_do_not_undo_each_other(saved: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        places = list(threads.map(lambda _: compressed(source(saved), tmp_path, silent), range(4)))
    assert len(set(places)) == 1
    assert files_in(tmp_path) == [places[0].name]
    assert MappedTensors(places[0]).shape("norm") == (32,)


_KILLED = """
import os, pickle, sys
from tts_plugin.engines.spark.lm.openvino_weights import compressed
source, cache = pickle.load(sys.stdin.buffer)
compressed(source, cache, lambda done, whole: done > whole // 2 and os._exit(9))
"""


def test_one_that_is_killed_half_way_leaves_nothing_that_is_used_or_stays(
    saved: Path, tmp_path: Path
) -> None:
    told = pickle.dumps((source(saved), tmp_path))
    ended = subprocess.run([sys.executable, "-c", _KILLED], input=told, check=False, cwd=ROOT)
    assert ended.returncode == 9
    (left,) = files_in(tmp_path)
    assert left.endswith(".part")
    place = compressed(source(saved), tmp_path, silent)
    assert files_in(tmp_path) == [place.name]


def test_what_another_living_process_writes_is_left_alone(saved: Path, tmp_path: Path) -> None:
    place = source(saved).place(tmp_path)
    place.parent.mkdir(parents=True)
    mine = place.with_name(f".{place.stem}.{os.getpid()}.0123abcd.part")
    mine.write_bytes(b"half")
    compressed(source(saved), tmp_path, silent)
    assert mine.exists()


def test_a_full_disk_is_told_and_leaves_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ConfigError, match="1,000 bytes left"):
        compressed(source(saved), tmp_path, silent)
    assert files_in(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_told(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "openvino").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        compressed(source(saved), tmp_path, silent)


def test_at_a_terminal_a_bar_moves_and_elsewhere_it_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    for done in (0, 5, 10):
        Bar().show(done, 10)
    assert capsys.readouterr().err == ""
    seen = io.StringIO()
    monkeypatch.setattr(seen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", seen)
    bar = Bar()
    for done in (0, 5_000_000, 10_000_000):
        bar.show(done, 10_000_000)
    assert f"[{'=' * 15:<30}] 5 MB" in seen.getvalue()
    assert seen.getvalue().endswith(f"[{'=' * 30}] 10 MB\n")


def test_the_command_makes_what_the_engine_finds(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["model", "convert", str(tiny_model)]) == 0
    first = capsys.readouterr().out
    assert first.endswith(" bytes, int8\n")
    made = files_in(tmp_path / "sparkvoice")
    assert main(["model", "convert", str(tiny_model)]) == 0
    assert capsys.readouterr().out == first
    assert files_in(tmp_path / "sparkvoice") == made
    assert main(["model", "convert", str(tiny_model), "--weights", "int4"]) == 0
    assert len(files_in(tmp_path / "sparkvoice")) == 2


def test_without_openvino_the_default_on_a_cpu_says_what_to_install(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def lacking(name: str) -> object:
        if name.endswith(".openvino"):
            raise ModuleNotFoundError("No module named 'openvino'", name="openvino")
        return import_module(name)

    monkeypatch.setattr("tts_plugin.engines.spark.engine.import_module", lacking)
    with pytest.raises(
        NotInstalled, match=r'openvino, .*pip install "sparkvoice\[openvino\]", or set .*lm: hf'
    ):
        build(EngineSettings(spark=SparkSettings(model=tiny_model)))
    assert build(EngineSettings(spark=SparkSettings(model=tiny_model, lm="hf")))
