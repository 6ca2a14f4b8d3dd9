"""SparkVoice: what the YAML file of a Spark voice says beyond what every voice has."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.prompt import Gender, Level
from tts_plugin.engines.spark.sampling import checked
from tts_plugin.errors import BadRequest, ConfigError
from tts_plugin.strict_yaml import BadYaml, Document, Problem, validated
from tts_plugin.voices import Finding, Voice

GLOBAL_TOKENS, GLOBAL_CODES, SEMANTIC_CODES = 32, 4096, 8192  # of a voice; of the published codec
USED_S = 6.0  # of a clip, for the speaker: as much as in training
# With a transcript all of the clip stands before each text: 50 tokens a second of the 1500 that the model
# was trained on.
TRANSCRIBED_S = 15.0

_SOURCES = ("global_tokens", "clip", "create")  # one of them makes the voice


def _as_many(codes: tuple[int, ...]) -> tuple[int, ...]:
    if len(codes) != GLOBAL_TOKENS:
        raise ValueError(f"a voice has {GLOBAL_TOKENS} of them, not {len(codes)}")
    return codes


def _drawable(sampling: Sampling) -> Sampling:
    try:
        return checked(sampling)
    except BadRequest as error:
        raise ValueError(str(error).removeprefix("sampling.")) from error


@dataclass(frozen=True, slots=True)
class Consent:
    """That the speaker agreed to be cloned. by: who. date: when."""

    by: Annotated[str, Field(min_length=1)]
    date: datetime.date


@dataclass(frozen=True, slots=True)
class Style:
    """What a voice should be like that the model makes up."""

    gender: Gender
    pitch: Level = "moderate"
    speed: Level = "moderate"


@dataclass(frozen=True, slots=True)
class SparkVoice(Voice):
    """A voice of 32 global tokens, however one comes by them: exactly one of these three is given.

    global_tokens: the codes themselves; with `semantic_tokens` (of the clip they are from) `transcript`
    says what is spoken there. clip: a recording of the speaker, absolute here, in the file relative to it
    and inside its folder; `transcript`, if any, says word for word what is spoken in it. create: a speaker
    that the model makes up on first use and keeps. consent: the speaker's. sampling: the voice's own.
    folder: of the YAML file, None for a voice that comes from no file.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    global_tokens: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=GLOBAL_CODES)], ...], AfterValidator(_as_many)
    ] = ()
    semantic_tokens: tuple[Annotated[int, Field(ge=0, lt=SEMANTIC_CODES)], ...] = ()
    clip: Path | None = None
    transcript: str = ""
    consent: Consent | None = None
    create: Style | None = None
    sampling: Annotated[Sampling, AfterValidator(_drawable)] = field(default_factory=Sampling)
    folder: SkipJsonSchema[Path | None] = field(default=None, init=False)  # so no message offers it as a key

    def examine(self) -> tuple[Finding, ...]:
        """What is to be said of the reference clip, if there is one."""
        if self.clip is None:
            return ()
        # decoding sound is no business of those who only list voices
        from tts_plugin.engines.spark.clip import examine_clip

        return examine_clip(self.clip, transcribed=bool(self.transcript.strip())).findings


def parse(document: Document) -> Voice:
    """The document as a SparkVoice, or BadYaml with file and line; looks at no clip."""
    voice = validated(SparkVoice, document)
    if mistakes := list(_mistakes(document)):
        raise BadYaml(mistakes)
    if isinstance(document.source, Path):
        object.__setattr__(voice, "folder", document.source.parent.resolve())
    if voice.clip is not None:
        try:
            object.__setattr__(voice, "clip", inside(voice.folder, voice.clip))
        except ConfigError as error:
            raise BadYaml([document.problem(("clip",), f"clip: {error}")]) from error
    return voice


def inside(folder: Path | None, clip: Path) -> Path:
    """The clip as an absolute path; ConfigError if it leads out of `folder`, links followed."""
    if folder is None:
        raise ConfigError("a voice that comes from no folder cannot name one; give global_tokens")
    try:
        home = folder.resolve()
        leads_to = (home / clip).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in circles
        raise ConfigError(f"{clip} cannot be followed: {error}") from error
    if not leads_to.is_relative_to(home):
        raise ConfigError(f"{clip} leads out of the voices folder; put the clip beside the YAML file")
    return home / clip


def _mistakes(document: Document) -> Sequence[Problem]:
    """What is wrong between keys."""
    data = document.data
    given = [key for key in _SOURCES if data.get(key) is not None]
    if not given:
        return [document.problem((), 'give one of "global_tokens", "clip" and "create"')]
    if len(given) > 1:
        return [document.problem((given[1],), f'"{given[1]}" cannot stand beside "{given[0]}": give one')]
    if data.get("semantic_tokens"):
        if given != ["global_tokens"]:
            message = f'"semantic_tokens" belongs to "global_tokens", not to "{given[0]}"'
            return [document.problem(("semantic_tokens",), message)]
        if not data.get("transcript", "").strip():
            return [document.problem(("semantic_tokens",), '"semantic_tokens" needs "transcript"')]
    elif data.get("transcript", "").strip() and given != ["clip"]:
        return [document.problem(("transcript",), '"transcript" needs "clip" or "semantic_tokens"')]
    return []
