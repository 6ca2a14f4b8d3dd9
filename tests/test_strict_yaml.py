"""YAML is read strictly: what is wrong is said with its line, and nothing in a file can hang or hurt."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from tts_plugin.strict_yaml import MAX_FILE_BYTES, BadYaml, parse_yaml, read_yaml, validated


def complaint(text: str) -> str:
    with pytest.raises(BadYaml) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


def test_scalars_are_read_as_yaml_1_2_reads_them() -> None:
    text = (
        "a: no\nb: 22:30\nc: 1e3\nd: 2026-12-01\ne: 007\nf: true\n"
        "g: ~\nh: '5'\ni: -1.5\nj:\nk: 0x1F\nl: !!str 5\n"
    )
    assert parse_yaml(text, "f").data == {
        "a": "no",
        "b": "22:30",
        "c": 1000.0,
        "d": "2026-12-01",
        "e": 7,
        "f": True,
        "g": None,
        "h": "5",
        "i": -1.5,
        "j": None,
        "k": "0x1F",
        "l": "5",
    }


def test_a_key_given_twice_is_an_error_that_names_both_lines() -> None:
    assert complaint("a: 1\nb: 2\na: 3\n") == 'f.yaml:3: key "a" is already given in line 1'
    assert complaint("x:\n  a: 1\n  a: 2\n") == 'f.yaml:3: key "a" is already given in line 2'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.yaml: is empty"),
        ("# only a remark\n", "f.yaml: is empty"),
        ("- a\n", 'f.yaml:1: should hold "key: value" lines'),
        ("just text\n", 'f.yaml:1: should hold "key: value" lines'),
        ("a: 1\nb: [1,\n", "f.yaml:3: not YAML: "),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not YAML: "),
        ("a: \x07\n", "f.yaml:1: not YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not YAML: "),
        ("a: *nobody\n", "f.yaml:1: not YAML: "),
        ("a: !!python/object:os.system x\n", "f.yaml:1: the tag"),
        ("a: !secret x\n", "f.yaml:1: the tag !secret is not used here"),
        ("[1]: 2\n", "f.yaml:1: a key should be plain text"),
        ("a: 1e999\n", "f.yaml:1: 1e999 is too large a number"),
        ('a: "\\0"\n', "f.yaml:1: a character here is none that a text can hold"),
        ('a: "\\ud800"\n', "f.yaml:1: a character here is none that a text can hold"),
        ("a: &a [*a]\n", "f.yaml:1: is nested too deeply"),
        ("a: " + "[" * 5000, "f.yaml"),
    ],
)
def test_what_is_not_a_usable_mapping_is_refused_with_its_line(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_aliases_that_multiply_are_refused_quickly() -> None:
    layers = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "its aliases grow too large" in complaint("\n".join(layers))


def test_an_alias_may_be_used() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_every_problem_of_a_file_is_kept_and_the_message_counts_them() -> None:
    with pytest.raises(BadYaml) as caught:
        parse_yaml("a: 1\na: 2\na: 3\n", "f.yaml")
    assert [problem.line for problem in caught.value.problems] == [2, 3]
    assert str(caught.value).endswith("(and 1 more)")


def test_a_file_that_is_not_utf8_says_where(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"a: 1\nname: Andr\xe9\n")
    with pytest.raises(BadYaml, match=r"f\.yaml:2: is not UTF-8 text"):
        read_yaml(path)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("\ufeffa: é\n".encode())
    assert read_yaml(path).data == {"a": "é"}


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: " + "x" * MAX_FILE_BYTES)
    with pytest.raises(BadYaml, match="is larger than 64 KiB"):
        read_yaml(path)


def test_a_pipe_a_folder_and_a_missing_file_are_refused_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name, said in (("pipe", "not a regular file"), ("folder", "not a regular"), ("none", "No such file")):
        with pytest.raises(BadYaml, match=said):
            read_yaml(tmp_path / f"{name}.yaml")


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    gain_db: float = 0.0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner = Inner()
    many: tuple[int, ...] = ()
    by_key: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ninner:\n  gian_db: 3\n", '3: unknown key "inner.gian_db"; did you mean "gain_db"?'),
        ("name: x\ninner:\n  gain_db: loud\n", "3: inner.gain_db should be a valid number, not "),
        ("name: 7\n", "1: name should be a valid string, not 7"),
        ("inner: {}\n", '1: missing key "name"'),
        ("name: x\nmany:\n- 1\n- two\n", "4: many.1 should be a valid integer, not "),
        ("name: x\ninner: 3\n", "2: inner should be an object, not 3"),
        (
            "name: x\nby_key:\n  '1': {gian_db: 3}\n",
            '3: unknown key "by_key.1.gian_db"; did you mean "gain_db"?',
        ),
        ("nmae: x\n", '1: unknown key "nmae"; did you mean "name"?'),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadYaml) as caught:
        validated(Outer, parse_yaml(text, "f.yaml"))
    assert str(caught.value).startswith(f"f.yaml:{said}")


def test_numbers_are_not_read_out_of_text_nor_text_out_of_numbers() -> None:
    for text in ("name: x\nmany: ['1']\n", "name: x\nmany: [true]\n", "name: x\nmany: [1.5]\n"):
        with pytest.raises(BadYaml, match=r"many\.0"):
            validated(Outer, parse_yaml(text, "f.yaml"))


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@ \n\t,?\\01.~<=\x00é"), max_size=60))
def test_no_text_whatever_raises_anything_but_bad_yaml(text: str) -> None:
    with suppress(BadYaml):
        assert isinstance(validated(Outer, parse_yaml(text, "f.yaml")).name, str)
