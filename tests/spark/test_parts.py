"""What a killed writer left in a cache goes; what is being written stays."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tts_plugin.engines.spark.parts import part_of, sweep

ROOT = Path(__file__).parents[2]
_KILLED = """
import os, pickle, sys
from tts_plugin.engines.spark.parts import part_of
place = pickle.load(sys.stdin.buffer)
part_of(place).mkdir()
part_of(place).write_text("half")
os._exit(9)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def aged(path: Path, seconds: float) -> None:
    at_s = time.time() - seconds
    os.utime(path, (at_s, at_s))


def test_what_a_dead_process_left_goes_files_and_folders_whatever_they_were_to_be(tmp_path: Path) -> None:
    told = pickle.dumps(tmp_path / "0123-codec")
    assert subprocess.run([sys.executable, "-c", _KILLED], input=told, check=False, cwd=ROOT).returncode == 9
    folder, file = sorted(tmp_path.iterdir(), key=Path.is_file)
    (folder / "prenet.xml").write_text("half")
    assert (folder.is_dir(), file.is_file()) == (True, True)
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_what_this_process_writes_and_what_is_whole_stay(tmp_path: Path) -> None:
    part, whole = part_of(tmp_path / "0123-codec"), tmp_path / "0123-codec"
    part.mkdir()
    whole.mkdir()
    aged(whole, 10**6)
    sweep(tmp_path)
    assert names(tmp_path) == sorted((part.name, whole.name))


def test_two_parts_of_one_place_do_not_meet(tmp_path: Path) -> None:
    assert part_of(tmp_path / "0123-codec") != part_of(tmp_path / "0123-codec")


@pytest.mark.parametrize("name", [".0123-int8.89abcdef.1.0123abcd.part", ".0123-int8.99999999.0123abcd.part"])
def test_of_a_process_that_cannot_be_seen_only_what_is_old_goes(tmp_path: Path, name: str) -> None:
    """In another container the same number is another process; an older release gave no place at all."""
    part = tmp_path / name
    part.mkdir()
    inner = part / "prenet.xml"
    inner.write_text("half")
    aged(part, 7200)
    sweep(tmp_path)
    assert part.exists(), "it was written to just now"
    aged(inner, 7200)
    aged(part, 7200)
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_number_that_another_process_has_by_now_keeps_nothing_for_ever(tmp_path: Path) -> None:
    part = part_of(tmp_path / "0123-int8")  # ours, who live
    part.write_text("half")
    aged(part, 7200)
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    cache.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    link = cache / ".0123-codec.99999999.0123abcd.part"
    link.symlink_to(elsewhere)
    os.utime(link, (0, 0), follow_symlinks=False)
    aged(elsewhere / "kept", 7200)
    sweep(cache)
    assert names(cache) == []
    assert names(elsewhere) == ["kept"]


def test_where_there_is_no_cache_yet_nothing_happens(tmp_path: Path) -> None:
    sweep(tmp_path / "not-there")
