"""An install carries the voices and settings, as a wheel and in place, and finds them from anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ("tts_plugin", "agent", "demo", "voices", "configs", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env=_clean())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _clean() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARKVOICE", "PYTHON"))
    }
    return kept | {"PIP_NO_INPUT": "1"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, because a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCE:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, copy / name)
        else:
            (copy / name).touch()
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    build = ("--no-deps", "--no-build-isolation", "--no-index", "--log", dist / "log", "-w", dist)
    run(*PIP, "wheel", *build, source, cwd=dist)
    (made,) = dist.glob("sparkvoice-*.whl")
    return made


def installed(folder: Path, *what: str | Path) -> Path:
    """A fresh environment with `what` installed, and this one's packages (not this project) beside it."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    run(
        *(*PIP, "--python", folder / "bin" / "python", "install"),
        *("--no-deps", "--no-build-isolation", "--no-index", *what),
        cwd=folder.parent,
    )
    return folder / "bin"


def voices_seen(binaries: Path, cwd: Path) -> dict[str, str]:
    listed = json.loads(run(binaries / "sparkvoice", "voices", "list", "--json", cwd=cwd))
    return {voice["id"]: voice["name"] for voice in listed}


def settings_file(binaries: Path, cwd: Path) -> Path:
    code = "from tts_plugin.config import load_settings; print(load_settings().document.source)"
    return Path(run(binaries / "python", "-c", code, cwd=cwd).strip())


def test_the_build_has_nothing_to_warn_of(wheel: Path) -> None:
    log = (wheel.parent / "log").read_text()
    assert "copying demo/__init__.py" in log, "the log tells what the build did"
    assert "Warning" not in log, log[log.index("Warning") - 200 :][:1000]


def test_the_wheel_holds_every_voice_every_settings_file_and_the_type_marks(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("voices", "configs"):
        for path in (ROOT / folder).glob("*.yaml"):
            assert f"tts_plugin/bundled/{folder}/{path.name}" in names
    for path in ROOT.glob("demo/static/**/*"):
        assert path.is_dir() or path.relative_to(ROOT).as_posix() in names
    assert {"tts_plugin/py.typed", "agent/py.typed"} <= names


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    packages = ("tts_plugin", "agent", "demo")
    modules = {path.relative_to(ROOT).as_posix() for name in packages for path in (ROOT / name).rglob("*.py")}
    assert names == modules
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(packages)


def test_an_installed_wheel_finds_its_voices_and_settings(wheel: Path, tmp_path: Path) -> None:
    binaries = installed(tmp_path / "env", wheel)
    assert voices_seen(binaries, tmp_path).keys() >= {"hibari", "tone"}
    assert settings_file(binaries, tmp_path).is_relative_to(tmp_path / "env")


def test_an_installed_wheel_lets_the_voices_of_this_folder_replace_its_own(
    wheel: Path, tmp_path: Path
) -> None:
    binaries = installed(tmp_path / "env", wheel)
    (tmp_path / "voices").mkdir()
    mine = "id: hibari\nname: Mine\nengine: tone\nlanguage: en\nlicence: MIT\n"
    (tmp_path / "voices" / "x.yaml").write_text(mine)
    assert voices_seen(binaries, tmp_path)["hibari"] == "Mine"
    assert voices_seen(binaries, tmp_path)["tone"] == "Tone"


def test_an_editable_install_reads_the_source_tree_as_it_is_now(source: Path, tmp_path: Path) -> None:
    binaries = installed(tmp_path / "env", "--editable", source)
    assert voices_seen(binaries, tmp_path).keys() >= {"hibari", "tone"}
    assert settings_file(binaries, tmp_path) == source / "configs" / "default.yaml"
    new = source / "voices" / "new.yaml"
    new.write_text("id: new\nengine: tone\nlanguage: en\nlicence: MIT\n")
    try:
        assert "new" in voices_seen(binaries, tmp_path)
        assert "new" in voices_seen(binaries, source)  # where ./voices is the bundled folder itself
    finally:
        new.unlink()
