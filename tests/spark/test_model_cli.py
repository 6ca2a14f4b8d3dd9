"""The model commands: a random model is written whole, a wrong one is told, the published one is fetched."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.hub import Hub, hub
from tts_plugin.cli import main
from tts_plugin.engines.spark import download, fetch
from tts_plugin.engines.spark.download import DownloadFailed, bring, matching
from tts_plugin.engines.spark.random_model import write_model

CODEC = "BiCodec/model.safetensors"
Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARK_TTS_MODEL", raising=False)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- random


def test_random_writes_a_model_that_check_finds_nothing_wrong_with(capsys: Printed) -> None:
    assert main(["model", "random", "deep/m"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.endswith(f"deep/m: use it: export SPARK_TTS_MODEL={Path('deep/m').resolve()}\n")
    assert "LLM/tokenizer.json" in out
    assert [path.name for path in Path("deep").iterdir()] == ["m"]
    assert main(["model", "check", "deep/m"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("deep/m: nothing wrong\n")
    assert "16000 Hz, 50 tokens a second" in out


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tiny_model: Path) -> None:
    write_model(Path("same"))
    write_model(Path("other"), seed=1)
    whole, same, other = bytes_of(tiny_model), bytes_of(Path("same")), bytes_of(Path("other"))
    assert whole == same
    assert {name for name in whole if whole[name] != other[name]} == {
        "README.md",
        "LLM/model.safetensors",
        CODEC,
    }


def test_random_takes_an_empty_folder_and_leaves_a_used_one_alone(capsys: Printed) -> None:
    Path("empty").mkdir()
    assert main(["model", "random", "empty"]) == 0
    before = bytes_of(Path())
    capsys.readouterr()
    for place in ("empty", "empty/README.md"):
        assert main(["model", "random", place]) == 2
        assert "is there already" in capsys.readouterr().err
    assert main(["model", "random", "empty/README.md/m"]) == 2
    assert capsys.readouterr().err.startswith("sparkvoice: cannot write empty/README.md/m: ")
    assert bytes_of(Path()) == before


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))


@pytest.mark.usefixtures("full_disk")
def test_random_on_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, capsys: Printed) -> None:
    assert main(["model", "random", "m"]) == 2
    assert "m: the disk has 1,000 bytes left, the model takes 16,000,000" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_written_to_its_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tts_plugin.engines.spark.random_model._write_lm", full)
    assert main(["model", "random", "m"]) == 2
    assert capsys.readouterr().err == "sparkvoice: cannot write m: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


# --- check


def test_check_prints_every_problem_and_exits_with_1(model: Path, capsys: Printed) -> None:
    (model / CODEC).write_bytes(b"")
    (model / "LLM" / "tokenizer.json").write_text("{}")
    assert main(["model", "check", str(model)]) == 1
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (2, "")
    assert f"{CODEC} is not a safetensors file (it is empty)" in out
    assert main(["model", "check", str(model), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (len(report["problems"]), report["model"]) == (2, {})


def test_check_of_what_is_no_model_says_what_is_missing(capsys: Printed) -> None:
    Path("here").mkdir()
    assert main(["model", "check", "here"]) == 1
    assert capsys.readouterr().out.startswith("here is not a model directory: it lacks config.yaml, ")


def test_check_takes_the_model_that_the_environment_names(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    assert main(["model", "check"]) == 2
    assert "set SPARK_TTS_MODEL" in capsys.readouterr().err
    monkeypatch.setenv("SPARK_TTS_MODEL", str(tiny_model))
    assert main(["model", "check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["path"], report["problems"]) == (str(tiny_model), [])
    assert report["model"]["semantic tokens"].startswith("4688 to 12879")


# --- fetch


@pytest.fixture
def published(tiny_model: Path) -> Iterator[Hub]:
    with hub(tiny_model, wav2vec2_large_xlsr_53__weights=b"w" * 1000, src__picture=b"p") as served:
        yield served


def fetched(served: Hub, *argv: str) -> int:
    return main(["model", "fetch", "m", "--accept-licence", "--endpoint", served.endpoint, *argv])


def test_fetch_says_the_licence_brings_the_model_and_checks_it(
    published: Hub, tiny_model: Path, capsys: Printed
) -> None:
    assert fetched(published) == 0
    out, err = capsys.readouterr()
    assert "CC BY-NC-SA 4.0" in err
    assert out == f"m: whole and checked; use it: export SPARK_TTS_MODEL={Path('m').resolve()}\n"
    assert published.fetched == bytes_of(tiny_model).keys()
    assert bytes_of(Path("m")) == bytes_of(tiny_model)
    published.ranges.clear()
    assert fetched(published) == 0
    assert not published.fetched  # all there


def test_only_transcripts_need_wav2vec2(published: Hub) -> None:
    assert fetched(published, "--transcripts") == 0
    assert Path("m/wav2vec2-large-xlsr-53/weights").stat().st_size == 1000
    assert not Path("m/src").exists()


def test_nothing_is_fetched_before_the_licence_is_accepted(published: Hub) -> None:
    assert main(["model", "fetch", "m", "--endpoint", published.endpoint]) == 2
    assert not Path("m").exists()
    assert not published.ranges


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("yes\n", 0), ("Yes \n", 0), ("no\n", 2), ("\n", 2), ("", 2)])
def test_at_a_terminal_the_licence_is_accepted_by_typing_yes(
    answer: str, code: int, published: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["model", "fetch", "m", "--endpoint", published.endpoint]) == code
    assert bool(published.ranges) == (code == 0)


def test_at_a_terminal_a_bar_moves(published: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    assert fetched(published) == 0
    lines = seen.getvalue().split("\r")
    size = len(published.files[CODEC]) / 1e6
    assert any(f"{CODEC} [{'=' * 30}] {size:.1f} of {size:.1f} MB, " in line for line in lines)


def test_dropped_connections_are_taken_up_again(published: Hub, tiny_model: Path) -> None:
    published.cut[CODEC] = 700_000
    assert fetched(published) == 0
    assert [first for name, first in published.ranges if name == CODEC] == [0, 700_000, 1_400_000]
    assert bytes_of(Path("m")) == bytes_of(tiny_model)


def bring_codec(served: Hub) -> None:
    files = matching(download.Hub(served.endpoint, fetch.REPOSITORY, fetch.REVISION).list(), [CODEC])
    bring(files, Path("m"), lambda *_: None, waits_s=())


def test_what_came_before_a_failure_need_not_come_again(published: Hub, tiny_model: Path) -> None:
    published.cut[CODEC] = 700_000
    published.once = True
    with pytest.raises(DownloadFailed, match=r"stopped at 700,000 of 1,590,864 bytes: the hub answers 503"):
        bring_codec(published)
    assert not Path("m", CODEC).exists()
    published.once, published.down = False, False
    published.cut.clear()
    published.ranges.clear()
    assert fetched(published) == 0
    assert [first for name, first in published.ranges if name == CODEC] == [700_000]
    assert bytes_of(Path("m")) == bytes_of(tiny_model)  # and no part is left


def test_a_hub_that_knows_no_ranges_sends_the_file_again(published: Hub, tiny_model: Path) -> None:
    published.cut[CODEC] = 700_000
    published.once = True
    with pytest.raises(DownloadFailed):
        bring_codec(published)
    published.cut.clear()
    published.once, published.down, published.deaf = False, False, True
    bring_codec(published)
    assert Path("m", CODEC).read_bytes() == (tiny_model / CODEC).read_bytes()


def test_a_file_that_arrives_changed_is_thrown_away(published: Hub, capsys: Printed) -> None:
    published.lies.add(CODEC)
    assert fetched(published) == 1
    assert f"{CODEC} arrived damaged and was thrown away; the same command" in capsys.readouterr().err
    assert not list(Path("m/BiCodec").glob("*model*"))


def test_a_file_that_was_spoilt_on_this_side_is_fetched_again(published: Hub, tiny_model: Path) -> None:
    assert fetched(published) == 0
    Path("m", CODEC).write_bytes(bytes(len(published.files[CODEC])))
    published.ranges.clear()
    assert fetched(published) == 0
    assert published.fetched == {CODEC}
    assert bytes_of(Path("m")) == bytes_of(tiny_model)


@pytest.mark.usefixtures("full_disk")
def test_fetch_on_a_full_disk_says_so_before_it_begins(published: Hub, capsys: Printed) -> None:
    assert fetched(published) == 1
    assert "m: the disk has 1,000 bytes left, " in capsys.readouterr().err
    assert not published.ranges


def test_a_fetched_model_that_does_not_fit_is_told(published: Hub, capsys: Printed) -> None:
    published.files["LLM/tokenizer.json"] = b"{}"
    assert fetched(published) == 1
    assert "tokenizer.json is not a tokenizer" in capsys.readouterr().err


def test_a_file_outside_of_the_model_is_refused(published: Hub, tmp_path: Path, capsys: Printed) -> None:
    published.files["LLM/../../evil"] = b"e"
    assert fetched(published) == 1
    assert 'the hub names a file outside of the model: "LLM/../../evil"' in capsys.readouterr().err
    assert not (tmp_path / "evil").exists()


def test_an_unknown_revision_names_the_tested_one(published: Hub, capsys: Printed) -> None:
    assert fetched(published, "--revision", "refs/pr/7") == 1
    said = capsys.readouterr().err
    assert 'no revision "refs/pr/7" there' in said
    assert f"tested is {fetch.REVISION}" in said


def test_a_hub_that_is_not_there_or_is_none_is_said_in_one_line(published: Hub, capsys: Printed) -> None:
    assert fetched(Hub({}, endpoint="http://127.0.0.1:9")) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sparkvoice: http://127.0.0.1:9 cannot be reached: Connection refused; the same")
    published.files.clear()
    published.tree = b"<html>"
    assert fetched(published) == 1
    assert "answers what no model hub does" in capsys.readouterr().err
    assert fetched(Hub({}, endpoint="file:///etc")) == 2
    assert "should start with https://" in capsys.readouterr().err


def test_fetch_refuses_a_file_as_folder(capsys: Printed) -> None:
    shutil.copy(__file__, "m")
    assert main(["model", "fetch", "m", "--accept-licence"]) == 2
    assert "m is a file, not a folder" in capsys.readouterr().err
