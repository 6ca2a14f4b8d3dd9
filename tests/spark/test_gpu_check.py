"""deploy/gpu_check.sh runs where there is no GPU, on networks that are tiny."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tts_plugin.bench import gpu

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **(env or {})}
    command = [str(ROOT / "deploy" / "gpu_check.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_it_checks_and_times_everything_on_a_cpu(tmp_path: Path) -> None:
    ran = run("--device", "cpu", "--tiny", "--json", str(tmp_path / "f.json"))
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "f.json").read_text())["rows"]
    verdicts = [row["verdict"] for row in rows]
    assert verdicts.count("ok") == 7, rows
    assert set(verdicts) == {"ok", ""}
    assert any("static cache" in row["what"] for row in rows)
    assert any("fixed shapes" in row["what"] for row in rows)
    assert all(row["what"] in ran.stdout for row in rows), "one table"
    assert "no figures" in ran.stdout


def test_a_budget_that_is_spent_ends_it_and_the_table_says_what_was_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, *[float(at) for at in range(1, 10_000)]])

    class Clock:
        perf_counter = staticmethod(time.perf_counter)

        @staticmethod
        def monotonic() -> float:
            return next(clock) * 15  # a quarter of a minute a look

    monkeypatch.setattr(gpu, "time", Clock)
    assert gpu.main(["--device", "cpu", "--tiny", "--budget", "1"]) == 0
    table = capsys.readouterr().out
    assert table.count("not run: the budget was spent") == 5


def test_a_check_that_fails_fails_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_LEAST_COSINE", 1.1)
    parts = (gpu.codec_checks, gpu.codec_speed, gpu.lm_speed, gpu.first_sound)
    for part in parts:
        monkeypatch.setattr(gpu, part.__name__, lambda bench: iter(()))
    for name in ("codec_checks", "codec_speed", "lm_speed", "first_sound"):
        getattr(gpu, name).__name__ = name
    assert gpu.main(["--device", "cpu", "--tiny"]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "--device cpu --tiny" in capsys.readouterr().err


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    ran = run(env={"PYTHON": str(bare), "PYTHONPATH": ""})
    assert ran.returncode == 2
    assert "lacks: torch transformers" in ran.stderr
