"""Voice files are read strictly, a broken one takes no other down, and edits are seen while running."""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tts_plugin.config import EngineSettings, bundled
from tts_plugin.engine import ENGINES
from tts_plugin.errors import VoiceNotFound
from tts_plugin.strict_yaml import Document, validated
from tts_plugin.voices import REFRESH_S, Voice, VoiceRegistry, open_registry

GOOD = "id: {id}\nengine: tone\nlanguage: en\nlicence: CC0-1.0\n"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def write(folder: Path, name: str, text: str | None = None) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(GOOD.format(id=name) if text is None else text)
    return path


def registry(*folders: Path, clock: Clock | None = None, default: str | None = None) -> VoiceRegistry:
    return VoiceRegistry(folders, ENGINES, clock=clock or Clock(), default=default)


def ids(voices: VoiceRegistry) -> list[str]:
    return [voice.id for voice in voices.list()]


def said(voices: VoiceRegistry) -> list[str]:
    return [str(problem) for problem in voices.problems]


def test_the_bundled_voices_are_free_of_problems_and_default_to_hibari() -> None:
    voices = VoiceRegistry([bundled("voices")], ENGINES)
    assert voices.problems == ()
    assert ids(voices) == ["hibari", "tone"]
    assert voices.default == voices.get("hibari")
    assert (voices.get("hibari").language, voices.get("hibari").licence) == ("en-US", "Apache-2.0")
    assert voices.get("hibari").credit


def test_a_voice_holds_what_its_file_says_and_cannot_be_changed(tmp_path: Path) -> None:
    more = "name: Ava\ndescription: d\ncredit: c\nspeed: 1.1\noffered: false\n"
    write(tmp_path, "ava", GOOD.format(id="ava") + more)
    voice = registry(tmp_path).get("ava")
    assert voice == Voice("ava", "tone", "en", "CC0-1.0", "Ava", "d", "c", 1.1, offered=False)
    with pytest.raises(FrozenInstanceError):
        voice.id = "x"  # type: ignore[misc]


def test_a_voice_without_a_name_is_called_by_its_id(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    assert registry(tmp_path).get("ava").name == "ava"


def test_an_unknown_voice_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    write(tmp_path, "ben")
    with pytest.raises(VoiceNotFound, match=r'no voice "avva"; did you mean "ava"\? \(known: ava, ben\)$'):
        registry(tmp_path).get("avva")


def test_an_unknown_voice_points_to_broken_files_when_there_are_any(tmp_path: Path) -> None:
    write(tmp_path, "ava", "id: ava\n")
    with pytest.raises(VoiceNotFound, match="sparkvoice voices check"):
        registry(tmp_path).get("ava")


def test_the_default_is_the_chosen_one_else_hibari_else_the_first(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    write(tmp_path, "ben")
    assert registry(tmp_path).default.id == "ava"
    assert registry(tmp_path, default="ben").default.id == "ben"
    with pytest.raises(VoiceNotFound, match="bne"):
        _ = registry(tmp_path, default="bne").default
    write(tmp_path, "hibari")
    assert registry(tmp_path).default.id == "hibari"


def test_no_voice_at_all_is_said_plainly(tmp_path: Path) -> None:
    voices = registry(tmp_path)
    assert voices.list() == []
    with pytest.raises(VoiceNotFound, match="no voice at all"):
        _ = voices.default
    with pytest.raises(VoiceNotFound, match="known: none"):
        voices.get("ava")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "id: bad\nengine: tone\nlanguage: en\nlicense: MIT\n",
            ':4: unknown key "license"; did you mean "licence"?',
        ),
        ("id: bad\nengine: tone\nlicence: MIT\n", ':1: missing key "language"'),
        (
            "id: bad\nengine: tome\nlanguage: en\nlicence: MIT\n",
            ':2: unknown engine "tome"; did you mean "tone"?',
        ),
        ("id: bad\nengine: 3\nlanguage: en\nlicence: MIT\n", ":2: engine should be a valid string, not 3"),
        (
            "id: bad\nengine: tone\nlanguage: english\nlicence: MIT\n",
            ':3: language: "english" should be a language tag',
        ),
        (
            "id: bad\nengine: tone\nlanguage: en\nlicence: MIT\nspeed: fast\n",
            ":5: speed should be a valid number",
        ),
        (
            "id: bad\nengine: tone\nlanguage: en\nlicence: MIT\nspeed: 9\n",
            ":5: speed should be less than or equal to 2",
        ),
        (
            "id: bad\nengine: tone\nlanguage: en\nlicence: ''\n",
            ":4: licence: should have at least 1 character",
        ),
        (
            "id: ../bad\nengine: tone\nlanguage: en\nlicence: MIT\n",
            ':1: id: "../bad" should be 1 to 64 of a-z',
        ),
        ("id: Bad\nengine: tone\nlanguage: en\nlicence: MIT\n", ':1: id: "Bad" should be 1 to 64 of a-z'),
        ("id: 7\nengine: tone\nlanguage: en\nlicence: MIT\n", ":1: id should be a valid string, not 7"),
        (
            "id: bad\nid: worse\nengine: tone\nlanguage: en\nlicence: MIT\n",
            ':2: key "id" is already given in line 1',
        ),
        ("id: [unclosed\n", ":2: not YAML: "),
        ("", ": is empty"),
    ],
)
def test_a_broken_file_is_reported_with_its_line_and_takes_no_other_voice_down(
    tmp_path: Path, text: str, complaint: str
) -> None:
    write(tmp_path, "ava")
    write(tmp_path, "bad", text)
    write(tmp_path, "zoe")
    voices = registry(tmp_path)
    assert ids(voices) == ["ava", "zoe"]
    assert said(voices)[0].startswith(f"{tmp_path / 'bad.yaml'}{complaint}")


def test_every_problem_of_a_file_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "bad", "id: Bad\nengine: tone\nlangage: en\nlicence: MIT\n")
    lines = sorted(problem.line or 0 for problem in registry(tmp_path).problems)
    assert lines == [1, 1, 3]  # bad id, missing language, unknown key


@pytest.mark.parametrize("voice_id", ["a" * 64, "0", "a-b_c"])
def test_ids_may_be_long_and_hold_dashes(tmp_path: Path, voice_id: str) -> None:
    write(tmp_path, "v", GOOD.format(id=f"'{voice_id}'"))
    assert ids(registry(tmp_path)) == [voice_id]


@pytest.mark.parametrize("voice_id", ["a" * 65, "-a", "a/b", "a\\nb", "..", "", "é", "a "])
def test_ids_that_could_be_paths_or_are_too_long_are_refused(tmp_path: Path, voice_id: str) -> None:
    write(tmp_path, "v", GOOD.format(id=f'"{voice_id}"'))
    voices = registry(tmp_path)
    assert ids(voices) == []
    assert said(voices)


def test_files_that_cannot_be_read_are_reported_and_others_serve(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"id: andr\xe9\n")
    (tmp_path / "huge.yaml").write_text("#" * 70_000)
    voices = registry(tmp_path)
    assert ids(voices) == ["ava"]
    assert [Path(problem.file).stem for problem in voices.problems] == [
        "folder", "gone", "huge", "latin", "loop", "pipe",
    ]  # fmt: skip


def test_a_symlink_to_a_voice_is_a_voice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "ava.yaml").symlink_to(write(tmp_path / "real", "ava"))
    assert ids(registry(tmp_path / "seen")) == ["ava"]


def test_a_missing_folder_is_reported_and_the_others_serve(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    voices = registry(tmp_path / "none", tmp_path)
    assert ids(voices) == ["ava"]
    assert said(voices) == [f"{tmp_path / 'none'}: cannot be read: No such file or directory"]


def test_a_folder_that_links_to_itself_is_reported_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    write(tmp_path / "good", "ava")
    (tmp_path / "loop").symlink_to("loop")
    voices = registry(tmp_path / "loop", tmp_path / "good")
    assert ids(voices) == ["ava"]
    assert said(voices) == [f"{tmp_path / 'loop'}: cannot be read: Too many levels of symbolic links"]


def test_a_file_called_yml_is_pointed_out_and_hidden_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "ava.yml").write_text(GOOD.format(id="ava"))
    (tmp_path / ".ava.yaml").write_text("half")
    (tmp_path / "README.md").write_text("voices")
    assert said(registry(tmp_path)) == [f"{tmp_path / 'ava.yml'}: is not read: its name should end in .yaml"]


def test_an_id_used_twice_in_one_folder_is_reported_and_the_first_file_keeps_it(tmp_path: Path) -> None:
    write(tmp_path, "a", GOOD.format(id="ava") + "name: first\n")
    write(tmp_path, "b", GOOD.format(id="ava") + "name: second\n")
    voices = registry(tmp_path)
    assert voices.get("ava").name == "first"
    assert said(voices) == [f'{tmp_path / "b.yaml"}: id "ava" is already used by {tmp_path / "a.yaml"}']


@pytest.fixture
def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "ava", GOOD.format(id="ava") + f"name: {name}\n")
    return tmp_path / "mine", tmp_path / "theirs"


def test_of_two_users_folders_the_earlier_wins_and_the_clash_is_reported(
    two_folders: tuple[Path, Path],
) -> None:
    voices = registry(*two_folders)
    assert voices.get("ava").name == "mine"
    assert len(voices.problems) == 1


def test_a_users_voice_replaces_a_bundled_one_without_a_word(two_folders: tuple[Path, Path]) -> None:
    mine, shipped = two_folders
    voices = VoiceRegistry([mine], ENGINES, bundled=shipped)
    assert voices.get("ava").name == "mine"
    assert voices.problems == ()


def test_a_folder_that_is_the_bundled_one_is_read_once_and_still_counts_as_bundled(
    two_folders: tuple[Path, Path],
) -> None:
    mine, shipped = two_folders
    voices = VoiceRegistry([shipped / ".." / "theirs", mine], ENGINES, bundled=shipped)
    assert voices.get("ava").name == "mine"
    assert voices.problems == ()


def test_a_deployments_registry_is_its_folders_then_the_bundled_voices(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    write(tmp_path, "tone", GOOD.format(id="tone") + "name: mine\n")
    voices = open_registry(EngineSettings(voices=(tmp_path,), voice="ava"), ENGINES)
    assert ids(voices) == ["ava", "hibari", "tone"]
    assert voices.get("tone").name == "mine"
    assert voices.default.id == "ava"
    assert voices.problems == ()


def test_a_registrys_folders_stay_where_they_were_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine", "ava")
    monkeypatch.chdir(tmp_path)
    voices = open_registry(EngineSettings(voices=(Path("mine"),)), ENGINES)
    monkeypatch.chdir("/")
    voices.refresh()
    assert "ava" in ids(voices)
    assert "hibari" in ids(voices)
    assert voices.problems == ()


def test_voices_can_be_read_out_of_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("voices/ava.yaml", GOOD.format(id="ava"))
        archive.writestr("voices/bad.yaml", "id: bad\n")
    folder = zipfile.Path(tmp_path / "v.zip", "voices/")
    voices = VoiceRegistry([folder], ENGINES)
    assert ids(voices) == ["ava"]
    assert len(voices.problems) == 3


# --- while running


def test_get_sees_a_changed_file_after_the_refresh_time_and_not_before(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, "ava")
    voices = registry(tmp_path, clock=clock)
    write(tmp_path, "ava", GOOD.format(id="ava") + "name: Ava Two\n")
    clock.now_s += REFRESH_S * 0.9
    assert voices.get("ava").name == "ava"
    clock.now_s += REFRESH_S * 0.2
    assert voices.get("ava").name == "Ava Two"


def test_refresh_sees_files_added_and_removed_at_once(tmp_path: Path) -> None:
    ava = write(tmp_path, "ava")
    voices = registry(tmp_path)
    write(tmp_path, "ben")
    voices.refresh()
    assert ids(voices) == ["ava", "ben"]
    ava.unlink()
    voices.refresh()
    assert ids(voices) == ["ben"]


def test_refresh_rereads_only_what_changed(tmp_path: Path) -> None:
    ava = write(tmp_path, "ava")
    write(tmp_path, "ben")
    voices = registry(tmp_path)
    before = {voice.id: voice for voice in voices.list()}
    os.utime(ava, ns=(1, 1))
    voices.refresh()
    assert voices.get("ben") is before["ben"]
    assert voices.get("ava") is not before["ava"]
    assert voices.get("ava") == before["ava"]


def test_a_file_replaced_by_another_of_the_same_time_and_size_is_seen(tmp_path: Path) -> None:
    ava = write(tmp_path, "ava", GOOD.format(id="ava") + "name: one\n")
    os.utime(ava, ns=(5, 5))
    voices = registry(tmp_path)
    other = tmp_path / "new"
    other.write_text(GOOD.format(id="ava") + "name: two\n")
    os.utime(other, ns=(5, 5))
    other.replace(ava)
    voices.refresh()
    assert voices.get("ava").name == "two"


def test_a_voice_whose_file_breaks_stays_as_it_was_and_the_problem_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "ava")
    voices = registry(tmp_path)
    for text in ("", "id: ava\nengine: tone\nlang", "id: ava\nengine: nobody\n"):
        write(tmp_path, "ava", text)
        voices.refresh()
        assert voices.get("ava").engine == "tone"
        assert len(voices.problems) >= 1
        voices.refresh()  # not reread, still reported
        assert len(voices.problems) >= 1
    write(tmp_path, "ava", GOOD.format(id="ava") + "name: mended\n")
    voices.refresh()
    assert voices.get("ava").name == "mended"
    assert voices.problems == ()


def test_readers_never_see_half_a_refresh(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path, f"v{number}")
    voices = VoiceRegistry([tmp_path], ENGINES)
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(len(voices.list()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(20):
            voices.refresh()
    finally:
        stop.set()
        reader.join(timeout=10)
    assert seen == {20}


# --- voices with more to them


@dataclass(frozen=True, slots=True)
class Cloned(Voice):
    codes: tuple[int, ...] = ()


def parse_cloned(document: Document) -> Voice:
    return validated(Cloned, document)


@pytest.fixture
def cloned_kind(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    module = ModuleType("a_cloning_engine")
    module.parse = parse_cloned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return {"cloner": "a_cloning_engine:parse", "absent": "no_such_module_here:parse"}


def test_an_engine_can_bring_its_own_kind_of_voice_and_its_keys_belong_to_it(
    tmp_path: Path, cloned_kind: dict[str, str]
) -> None:
    text = "id: {id}\nengine: {engine}\nlanguage: zh\nlicence: MIT\n{more}"
    write(tmp_path, "ava", text.format(id="ava", engine="cloner", more="codes: [1, 2]\n"))
    write(tmp_path, "ben", text.format(id="ben", engine="tone", more="codes: [1, 2]\n"))
    write(tmp_path, "cat", text.format(id="cat", engine="cloner", more="code: [1, 2]\n"))
    write(tmp_path, "dan", text.format(id="dan", engine="absent", more=""))
    voices = VoiceRegistry([tmp_path], ["tone", "cloner", "absent"], kinds=cloned_kind)
    assert voices.list() == [Cloned("ava", "cloner", "zh", "MIT", codes=(1, 2))]
    assert [problem.message.partition(" (")[0] for problem in voices.problems] == [
        'unknown key "codes"',
        'unknown key "code"; did you mean "codes"?',
        'engine "absent" needs the module no_such_module_here, not installed here',
    ]
