"""The tokens of a voice on disk: ID.tokens.json beside its YAML, or in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tts_plugin.strict_yaml import shown

MAX_FILE_BYTES = 65_536  # 15 s of transcribed clip are 750 codes, 4 kB

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tokens:
    """global_tokens: the speaker. semantic_tokens: what is spoken in the clip; () without a transcript."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    global_tokens: tuple[int, ...]
    semantic_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """What tokens were made from; of anything else they are stale.

    source: sha256 of the clip's file, or a style. codec: its revision. ref_s: how much of the clip made
    the speaker. transcribed: there was a transcript, so there are semantic tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    source: str
    codec: str
    ref_s: float = 0.0
    transcribed: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a codec can use: how many global tokens a voice has, how many codes there are of each kind."""

    globals_: int
    global_codes: int
    semantic_codes: int

    def admit(self, tokens: Tokens, *, transcribed: bool) -> bool:
        """Whether the tokens are whole and every code is one of the codec's."""
        return (
            len(tokens.global_tokens) == self.globals_
            and all(0 <= code < self.global_codes for code in tokens.global_tokens)
            and bool(tokens.semantic_tokens) == transcribed
            and all(0 <= code < self.semantic_codes for code in tokens.semantic_tokens)
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    origin: Origin
    tokens: Tokens


class TokenFile:
    """The kept tokens of one voice.

    folder: of the voice's YAML (None: it comes from no file). cache: where they go if nothing can be
    written there. Blocks on the disk.
    """

    def __init__(self, voice_id: str, folder: Path | None, cache: Path) -> None:
        name = f"{voice_id}.tokens.json"
        home = "" if folder is None else str(folder.resolve())
        elsewhere = cache / "voices" / hashlib.sha256(home.encode()).hexdigest()[:16] / name
        self._places = [elsewhere] if folder is None else [folder / name, elsewhere]

    def read(self, origin: Origin, bounds: Bounds) -> Tokens | None:
        """The tokens that were made from `origin`; None if there are none that can be trusted."""
        for stored in self._stored():
            if stored.origin == origin and bounds.admit(stored.tokens, transcribed=origin.transcribed):
                return stored.tokens
        return None

    def write(self, origin: Origin, tokens: Tokens) -> Path | None:
        """Keep the tokens; where, or None if nowhere can be written (which is logged: the voice works, but
        its tokens are made anew in every process)."""
        failed = []
        for place in self._places:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, stored_text(origin, tokens).encode())
                return place
            except OSError as error:
                failed.append(f"{shown(place)}: {error.strerror or error}")
        log.warning("the tokens of a voice cannot be kept: %s", "; ".join(failed))
        return None

    def _stored(self) -> Iterator[_Stored]:
        for place in self._places:
            with suppress(OSError, ValidationError):
                if not place.is_file():
                    continue
                with place.open("rb") as file:
                    yield TypeAdapter(_Stored).validate_json(file.read(MAX_FILE_BYTES), strict=True)


def stored_text(origin: Origin, tokens: Tokens) -> str:
    """What a token file holds."""
    return json.dumps(asdict(_Stored(origin, tokens)), indent=1) + "\n"


def write_whole(path: Path, data: bytes) -> None:
    """The file is there whole or as it was; OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
