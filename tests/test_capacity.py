"""A measured capacity is found again only where it holds: same engine, settings and machine."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tts_plugin.capacity import Capacity, Machine, load, save
from tts_plugin.config import EngineSettings, HibariSettings, SparkSettings
from tts_plugin.errors import BadRequest

HERE = Machine(2, "Some CPU @ 2 GHz")
SETTINGS = EngineSettings()


def kept(
    folder: Path, engine: str, settings: EngineSettings = SETTINGS, machine: Machine = HERE
) -> int | None:
    found = load(engine, settings, folder=folder, machine=machine)
    return None if found is None else found.streams


def test_what_was_saved_is_loaded_again_whole(tmp_path: Path) -> None:
    measured = Capacity(30, {"first_frame_p95_ms": 61.5})
    path = save("hibari", SETTINGS, measured, folder=tmp_path / "new", machine=HERE)
    assert path.parent == tmp_path / "new"
    assert load("hibari", SETTINGS, folder=tmp_path / "new", machine=HERE) == measured
    save("hibari", SETTINGS, Capacity(31), folder=tmp_path / "new", machine=HERE)
    assert kept(tmp_path / "new", "hibari") == 31
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing is left beside it"


def test_it_holds_for_its_engine_machine_and_settings_only(tmp_path: Path) -> None:
    save("hibari", SETTINGS, Capacity(30), folder=tmp_path, machine=HERE)
    assert kept(tmp_path, "spark") is None
    assert kept(tmp_path, "hibari", machine=Machine(4, HERE.cpu)) is None
    assert kept(tmp_path, "hibari", machine=Machine(2, "Another CPU")) is None
    assert kept(tmp_path, "hibari", machine=Machine(2, HERE.cpu, ("Some GPU",))) is None
    assert kept(tmp_path, "hibari", EngineSettings(hibari=HibariSettings(threads=2))) is None
    # the settings of another engine, and what costs nothing
    assert kept(tmp_path, "hibari", EngineSettings(spark=SparkSettings(model=tmp_path))) == 30
    assert kept(tmp_path, "hibari", EngineSettings(hibari=HibariSettings(gain_db=3.0))) == 30


@pytest.mark.parametrize("text", ["", "{}", '{"streams": 0}', "[1]"])
def test_a_file_that_cannot_be_used_is_logged_and_counts_as_none(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save("tone", SETTINGS, Capacity(9), folder=tmp_path, machine=HERE)
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert kept(tmp_path, "tone") is None
    assert path.name in caplog.text


def test_no_stream_at_all_is_no_capacity() -> None:
    with pytest.raises(BadRequest, match="at least 1"):
        Capacity(0)


def test_without_a_folder_named_it_goes_to_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = save("tone", SETTINGS, Capacity(9))
    assert path.parent == tmp_path / "sparkvoice" / "capacity"
    found = load("tone", SETTINGS)
    assert found is not None
    assert found.streams == 9
    assert Machine.this().cpus >= 1
    assert Machine.this().cpu
