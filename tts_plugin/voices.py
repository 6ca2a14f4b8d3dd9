"""Which voices there are: Voice, and the VoiceRegistry that reads them from folders of YAML files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AfterValidator, ConfigDict, Field

from tts_plugin.config import EngineSettings, bundled
from tts_plugin.errors import VoiceNotFound, did_you_mean
from tts_plugin.limits import SPEEDS
from tts_plugin.strict_yaml import BadYaml, Document, Problem, Source, read_yaml, shown, validated
from tts_plugin.timing import Clock

REFRESH_S = 1.0  # how soon `get` sees a changed file
FALLBACK_VOICE = "hibari"  # the default where nobody chose one

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*\Z")


def _checked_id(text: str) -> str:
    if not _ID.match(text):
        raise ValueError(f'"{text[:70]}" should be 1 to 64 of a-z, 0-9, "_" and "-", a letter or digit first')
    return text


def _checked_language(text: str) -> str:
    if not _LANGUAGE.match(text):
        raise ValueError(f'"{text[:70]}" should be a language tag such as en-US, zh or und')
    return text


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said of what a voice is made from. error: it cannot be used; warning: it can, but."""

    level: Literal["error", "warning"]
    message: str


@dataclass(frozen=True, slots=True)
class Voice:
    """One voice, as its YAML file says. An engine whose voices hold more subclasses it (VOICE_KINDS).

    language: BCP 47 tag, "und" for any. licence: of the voice, SPDX where there is one. name: for
    people, the id if not given. credit: who made it. speed: its pace, 1.0 as trained; engines follow it
    roughly. offered: whether a caller may choose it from a list; one that is not still speaks for whoever
    names it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: Annotated[str, AfterValidator(_checked_id)]
    engine: str
    language: Annotated[str, AfterValidator(_checked_language)]
    licence: Annotated[str, Field(min_length=1)]
    name: str = ""
    description: str = ""
    credit: str = ""
    speed: Annotated[float, Field(ge=SPEEDS[0], le=SPEEDS[1])] = 1.0
    offered: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.id)

    def examine(self) -> tuple[Finding, ...]:
        """What is to be said of the files that the voice is made from, if any; reads them, so it is slow."""
        return ()


_TOLD = ("id", "name", "engine", "language", "licence", "description", "credit", "speed", "offered")


def described(voice: Voice) -> dict[str, Any]:
    """What a list of voices tells of one, as JSON; what an engine's own kind adds is for the engine."""
    return {name: getattr(voice, name) for name in _TOLD}


Parser = Callable[[Document], Voice]

# engine -> "module:parser" of voices with more than Voice has, imported on use; a parser raises BadYaml
VOICE_KINDS: dict[str, str] = {"spark": "tts_plugin.engines.spark.voice:parse"}


def parse_voice(document: Document) -> Voice:
    """The document as a plain Voice, strictly; the parser of every engine not in VOICE_KINDS."""
    return validated(Voice, document)


@dataclass(frozen=True, slots=True)
class _File:
    """What is known of one file. voice: the last good one, kept while the file is broken."""

    signature: tuple[int, ...]
    voice: Voice | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """All voices at one moment; replaced as a whole, so a reader never sees half a refresh."""

    voices: Mapping[str, Voice]
    problems: tuple[Problem, ...]


class VoiceRegistry:
    """The voices of some folders of `*.yaml`; of two with one id the earlier folder's wins.

    A broken file is listed in `problems` and takes no other voice down, nor its own last good version.
    Files are reread when they change: `get`, `default` and `list` look at most every `REFRESH_S`.
    engines: the names a voice may give. bundled: a last folder whose voices any other may replace
    without that being a problem. default: id of the default voice. Safe to read from several threads.
    """

    def __init__(
        self,
        folders: Sequence[Path | Traversable],
        engines: Collection[str],
        *,
        bundled: Path | Traversable | None = None,
        default: str | None = None,
        kinds: Mapping[str, str] = VOICE_KINDS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._folders: list[Source] = _unique([*folders, *([] if bundled is None else [bundled])])
        self._bundled = None if bundled is None else _place(bundled)
        self._engines = frozenset(engines)
        self._default = default
        self._kinds = kinds
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._view = _View({}, ())
        self._looked_s = clock()
        self.refresh()

    def get(self, voice_id: str) -> Voice:
        """The voice called `voice_id`, or VoiceNotFound that names the nearest."""
        view = self._fresh()
        if voice_id not in view.voices:
            hint = "; some voice files are broken, see: sparkvoice voices check" if view.problems else ""
            raise VoiceNotFound(f'no voice "{voice_id[:70]}"{did_you_mean(voice_id[:70], view.voices)}{hint}')
        return view.voices[voice_id]

    @property
    def default(self) -> Voice:
        """The chosen default voice, else "hibari", else the first by id."""
        if self._default is not None:
            return self.get(self._default)
        voices = self._fresh().voices
        if not voices:
            raise VoiceNotFound("there is no voice at all: add a YAML file to a voices folder")
        return voices.get(FALLBACK_VOICE) or voices[min(voices)]

    def list(self) -> list[Voice]:
        """Every voice, by id."""
        voices = self._fresh().voices
        return [voices[voice_id] for voice_id in sorted(voices)]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong in the folders, as of the last look."""
        return self._view.problems

    def refresh(self) -> None:
        """Look at the folders now; rereads only what was added or changed."""
        self._looked_s = self._clock()
        problems: list[Problem] = []
        files: dict[str, _File] = {}
        voices: dict[str, Voice] = {}
        owners: dict[str, tuple[Source, Source]] = {}  # id -> folder, file
        for folder in self._folders:
            for path in _listed(folder, problems):
                file = files[str(path)] = self._looked_at(path)
                problems.extend(file.problems)
                if file.voice is None:
                    continue
                voice_id = file.voice.id
                if voice_id not in voices:
                    voices[voice_id] = file.voice
                    owners[voice_id] = (folder, path)
                elif _place(folder) != self._bundled or owners[voice_id][0] is folder:
                    first = owners[voice_id][1]
                    problems.append(
                        Problem(shown(path), None, f'id "{voice_id}" is already used by {shown(first)}')
                    )
        self._files = files
        self._view = _View(voices, tuple(problems))

    def _fresh(self) -> _View:
        if self._clock() - self._looked_s >= REFRESH_S:
            self.refresh()
        return self._view

    def _looked_at(self, path: Source) -> _File:
        known = self._files.get(str(path))
        kept = known.voice if known else None
        try:
            signature = _signature(path)
            if known is not None and known.signature == signature:
                return known
            read = self._read(path, signature, kept)
            if _signature(path) != signature:  # it is being written: the next look reads it
                return known or _File((), None, ())
            return read
        except OSError as error:
            problem = Problem(shown(path), None, f"cannot be read: {error.strerror or error}")
            return _File((), kept, (problem,))

    def _read(self, path: Source, signature: tuple[int, ...], kept: Voice | None) -> _File:
        try:
            return _File(signature, self._parsed(read_yaml(path)), ())
        except BadYaml as error:
            return _File(signature, kept, error.problems)

    def _parsed(self, document: Document) -> Voice:
        engine = document.data.get("engine")
        if isinstance(engine, str) and engine not in self._engines:
            message = f'unknown engine "{engine}"{did_you_mean(engine, self._engines)}'
            raise BadYaml([document.problem(("engine",), message)])
        if not isinstance(engine, str) or engine not in self._kinds:
            return parse_voice(document)
        module, _, name = self._kinds[engine].partition(":")
        try:
            parser = cast(Parser, getattr(import_module(module), name))
        except ModuleNotFoundError as missing:
            message = f'engine "{engine}" needs the module {missing.name}, not installed here'
            raise BadYaml([document.problem(("engine",), message)]) from missing
        return parser(document)


def open_registry(settings: EngineSettings, engines: Collection[str]) -> VoiceRegistry:
    """The registry of a deployment: the user's folders, then the bundled voices. Folders stay the ones they
    are now, wherever the process goes."""
    folders = [folder.absolute() for folder in settings.voices]
    return VoiceRegistry(folders, engines, bundled=bundled("voices"), default=settings.voice)


def _signature(path: Source) -> tuple[int, ...]:
    """What changes when the file does; constant for a file inside a zip."""
    if not isinstance(path, Path):
        return ()
    status = path.stat()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _listed(folder: Source, problems: list[Problem]) -> list[Source]:
    """The voice files of a folder by name."""
    try:
        entries: list[Any] = list(folder.iterdir())  # Any: Path or Traversable
    except OSError as error:
        problems.append(Problem(shown(folder), None, f"cannot be read: {error.strerror or error}"))
        return []
    seen = sorted(
        (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
    )
    problems.extend(
        Problem(shown(entry), None, "is not read: its name should end in .yaml")
        for entry in seen
        if entry.name.endswith(".yml")
    )
    return [entry for entry in seen if entry.name.endswith(".yaml")]


def _place(folder: Source) -> str:
    # unlike resolve() it takes a loop of links as it is; reading the folder then says what is wrong
    return os.path.realpath(folder) if isinstance(folder, Path) else str(folder)


def _unique(folders: Sequence[Source]) -> list[Source]:
    """Each folder once, in the place of its last mention: ./voices of a source tree is the bundled one."""
    return list({_place(folder): folder for folder in reversed(folders)}.values())[::-1]
