"""What may come after which token in vLLM, and what is told where there is no vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark import tiny_lm
from tts_plugin.config import SparkSettings
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm import vllm_engine
from tts_plugin.engines.spark.lm.vllm import build
from tts_plugin.engines.spark.lm.vllm_phases import Phases
from tts_plugin.errors import NotInstalled

IDS = tiny_lm.vocabulary()
PHASES = Phases.of(IDS)


def open_after(token: int) -> set[int]:
    closed = PHASES.closed[PHASES.after(IDS.id_count)[token]]
    return {row for row, shut in zip(PHASES.rows, closed, strict=True) if not shut}


def family(first: int, count: int) -> set[int]:
    return set(range(first, first + count))


def test_speech_follows_its_beginning_and_itself_and_may_end() -> None:
    speech = family(IDS.semantic_first, IDS.semantic_count) | {IDS.eos}
    for token in (IDS.start_semantic, IDS.semantic_first, IDS.semantic_first + IDS.semantic_count - 1):
        assert open_after(token) == speech


def test_a_new_voice_is_a_pitch_then_a_speed_then_global_codes() -> None:
    speeds = family(IDS.speed_value_first, IDS.speed_value_count)
    codes = family(IDS.global_first, IDS.global_count)
    assert open_after(IDS.start_acoustic) == family(IDS.pitch_value_first, IDS.pitch_value_count)
    assert open_after(IDS.pitch_value_first + IDS.pitch_value_count - 1) == speeds
    assert open_after(IDS.start_global) == open_after(IDS.global_first) == codes


def test_each_row_is_there_once() -> None:
    assert len(set(PHASES.rows)) == len(PHASES.rows)
    counts = (IDS.semantic_count, 1, IDS.pitch_value_count, IDS.speed_value_count, IDS.global_count)
    assert len(PHASES.rows) == sum(counts)


def test_without_vllm_the_error_says_where_to_read_how_it_is_installed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"docs/vllm\.md"):
        build(Checkpoint.open(tiny_model), SparkSettings(lm="vllm"))
