"""What a YAML file here may hold, read strictly, each complaint with file, line and the nearest known key."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from tts_plugin.errors import ConfigError, did_you_mean

MAX_FILE_BYTES = 65_536
MAX_NODES = 20_000  # after aliases are expanded; a 64 KiB file without them has fewer
MAX_DEPTH = 32

Source = Path | Traversable
Json = Any  # str, int, float, bool, None, list and dict of these: what JSON can hold
Place = tuple[str | int, ...]  # keys and list indexes from the root down to a value
T = TypeVar("T")

_UNKNOWN_KEY = (
    "extra_forbidden",
    "unexpected_keyword_argument",
)  # pydantic's words, of models, of dataclasses
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")  # YAML can escape them, no path or JSON can hold them

# YAML 1.2's core schema: 1.1, PyYAML's own, reads the language "no" as false and 22:30 as 1350
_CORE = "tag:yaml.org,2002:"
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")  # what PyYAML guesses
_NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_EXPONENT = re.compile(r"[-+]?[0-9.]+[eE]")  # 1e3 is a number in YAML 1.2, text in 1.1
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in one place of one file. line: from 1, or None for the file as a whole."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


class BadYaml(ConfigError):
    """A YAML file cannot be used; `problems` lists everything found, the message tells the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - 1
        super().__init__(f"{self.problems[0]}{f' (and {more} more)' if more else ''}")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its data and where each value stands. source: None if it was not read from a file."""

    file: str
    data: Json
    lines: Mapping[Place, int] = field(default_factory=dict, repr=False)
    source: Source | None = None

    def line_of(self, place: Place) -> int | None:
        """Line of the value at `place`, or of the nearest thing around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)

    def problem(self, place: Place, message: str) -> Problem:
        return Problem(self.file, self.line_of(place), message)

    def part(self, key: str) -> Document:
        """The section `key` of the top level as a document; an absent or empty one is an empty mapping."""
        data = self.data.get(key)
        lines = {place[1:]: line for place, line in self.lines.items() if place[:1] == (key,)}
        return Document(self.file, {} if data is None else data, lines, self.source)


def read_yaml(source: Source) -> Document:
    """Read and parse one file; every way it can fail is a BadYaml."""
    file = shown(source)
    try:
        raw = _read(source)
    except OSError as error:
        raise BadYaml([Problem(file, None, f"cannot be read: {error.strerror or error}")]) from error
    if len(raw) > MAX_FILE_BYTES:
        raise BadYaml([Problem(file, None, f"is larger than {MAX_FILE_BYTES // 1024} KiB")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadYaml([Problem(file, line, "is not UTF-8 text")]) from error
    return parse_yaml(text, file, source)


def shown(source: Source) -> str:
    """The file's name as a user would type it: relative when it lies under the current folder."""
    text = str(source)
    return os.path.relpath(text) if text.startswith(f"{Path.cwd()}{os.sep}") else text


def parse_yaml(text: str, file: str, source: Source | None = None) -> Document:
    """Parse YAML text whose top level is a mapping. file: the name used in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise BadYaml([Problem(file, mark.line + 1 if mark else None, f"not YAML: {what}")]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadYaml([Problem(file, line, f"not YAML: {error.reason}")]) from error
    except RecursionError as error:
        raise BadYaml([Problem(file, None, "is nested too deeply")]) from error
    if root is None:
        raise BadYaml([Problem(file, None, "is empty")])
    if not isinstance(root, yaml.MappingNode):
        raise BadYaml([Problem(file, root.start_mark.line + 1, 'should hold "key: value" lines')])
    walk = _Walk(file)
    data = walk.value(root, ())
    if walk.problems:
        raise BadYaml(walk.problems)
    return Document(file, data, walk.lines, source)


def validated(kind: type[T], document: Document, section: str = "") -> T:
    """The document as a pydantic model or dataclass `kind`, or BadYaml with every problem in it.

    Types are JSON's and strict: "1" is no number and 1 is no text. section: prefix of keys in messages.
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_json(json.dumps(document.data, default=os.fspath), strict=True)
    except ValidationError as error:
        # an unknown key comes first: it usually explains a missing one
        details = sorted(error.errors(), key=lambda detail: detail["type"] not in _UNKNOWN_KEY)
        raise BadYaml(_problem(detail, kind, document, section) for detail in details) from error


def _problem(detail: ErrorDetails, kind: type[Any], document: Document, section: str) -> Problem:
    place = detail["loc"]
    name = ".".join((*filter(None, [section]), *map(str, place)))
    match detail["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            known = _keys(kind, place[:-1])
            message = f'unknown key "{name}"{did_you_mean(str(place[-1]), known)}'
        case "missing":
            message = f'missing key "{name}"'
        case "value_error":
            message = f"{name}: {detail['ctx']['error']}" if name else str(detail["ctx"]["error"])
        case _:
            subject, _, said = detail["msg"].partition(
                " "
            )  # "Input should be ..." or "String should have ..."
            message = f"{name}{'' if subject == 'Input' else ':'} {said}, not {_brief(detail['input'])}"
    return document.problem(place, message)


def _keys(kind: Any, place: Place) -> list[str]:  # Any: a class or what an annotation holds
    """Keys that the mapping at `place` inside `kind` may have."""
    fields = TypeAdapter(kind).json_schema()
    schema = fields
    for step in place:
        inner = _followed(schema, fields)
        if isinstance(step, int):
            schema = inner.get("items", {})
            continue
        # of a mapping whose keys are the user's, all values are alike
        named = inner.get("properties", {}).get(step, inner.get("additionalProperties"))
        schema = named if isinstance(named, dict) else {}
    return list(_followed(schema, fields).get("properties", {}))


def _followed(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    for wrapped in (schema, *schema.get("allOf", ()), *schema.get("anyOf", ())):
        if reference := wrapped.get("$ref"):
            found: dict[str, Any] = root["$defs"][reference.rpartition("/")[2]]
            return found
    return schema


def _brief(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _read(source: Source) -> bytes:
    if not isinstance(source, Path):
        return source.read_bytes()[: MAX_FILE_BYTES + 1]
    if not stat.S_ISREG(source.stat().st_mode):  # opening a FIFO would wait for a writer
        raise OSError("not a regular file")
    with source.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


class _Walk:
    """Turns composed nodes into plain data and notes lines and problems on the way."""

    def __init__(self, file: str) -> None:
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._nodes = 0

    def value(self, node: yaml.Node, place: Place) -> Json:
        self._nodes += 1
        self.lines.setdefault(place, node.start_mark.line + 1)
        if self._nodes > MAX_NODES or len(place) > MAX_DEPTH:
            raise BadYaml([self._complain(node, "is nested too deeply or its aliases grow too large")])
        match node:
            case yaml.MappingNode():
                return self._mapping(node, place)
            case yaml.SequenceNode():
                return [self.value(item, (*place, at)) for at, item in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node)
            case _:
                raise AssertionError(f"YAML has no node of kind {type(node).__name__}")

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, "a key should be plain text")
                continue
            key = self._text(key_node)
            if key in found:
                first = self.lines[(*place, key)]
                self._complain(key_node, f'key "{key}" is already given in line {first}')
                continue
            self.lines[(*place, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*place, key))
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Json:
        text = self._text(node)
        if node.tag.removeprefix(_CORE) not in _PLAIN_TAGS:
            self._complain(node, f"the tag {node.tag} is not used here")
            return None
        if node.style is not None:  # quoted or a block
            return text
        if node.tag == f"{_CORE}str" and not _EXPONENT.match(text):
            return text
        if _NULL.match(text):
            return None
        if _BOOL.match(text):
            return text.lower() == "true"
        return self._number(node, text) if _FLOAT.match(text) else text

    def _text(self, node: yaml.ScalarNode) -> str:
        text: str = node.value
        if _UNUSABLE.search(text):
            self._complain(node, "a character here is none that a text can hold")
        return text

    def _number(self, node: yaml.Node, text: str) -> int | float | None:
        if _INT.match(text) and len(text) <= 18:
            return int(text)
        number = float(text)
        if not math.isfinite(number):
            self._complain(node, f"{text} is too large a number")
            return None
        return number

    def _complain(self, node: yaml.Node, message: str) -> Problem:
        problem = Problem(self._file, node.start_mark.line + 1, message)
        self.problems.append(problem)
        return problem
