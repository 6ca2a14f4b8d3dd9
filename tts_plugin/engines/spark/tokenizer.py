"""Reads a tokenizer.json apart: the text tokens that may encode what a caller wrote, and the added tokens."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

# between them, every byte that UTF-8 uses: 1, 2, 3 and 4 at a time
_TRIAL = "".join(map(chr, range(1, 0xC0))) + " ".join(
    map(
        chr,
        (
            *range(0x80, 0x800, 0x40),
            0x800,
            *range(0x1000, 0x10000, 0x1000),
            *range(0x10000, 0x110000, 0x30000),
        ),
    )
)


def read_tokenizer(path: Path) -> tuple[Tokenizer, dict[str, int]]:
    """The tokenizer without its added tokens, so that no text can become one, and those, name -> id.

    It neither cuts nor pads. ConfigError if the file is broken or the tokenizer loses text.
    """
    name = shown(path)
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        added = {token["content"]: int(token["id"]) for token in data["added_tokens"]}
        words: dict[str, int] = data["model"]["vocab"]
        first = min(added.values(), default=len(words))
        # some writers list the added tokens among the words as well, where a word of that name finds them
        data["model"]["vocab"] = {word: word_id for word, word_id in words.items() if word_id < first}
        plain: dict[str, Any] = {
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        tokenizer = Tokenizer.from_str(json.dumps(data | plain))
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{name} is not a tokenizer: {error}") from error
    if (read_back := tokenizer.decode(encoded(tokenizer, _TRIAL))) != _normal(_TRIAL):
        lost = sorted(set(_normal(_TRIAL)) - set(read_back))
        raise ConfigError(f"{name} loses text: {len(lost)} of its trial characters, as {lost[:3]}")
    return tokenizer, added


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text`; half of a surrogate pair becomes U+FFFD, as it is no character."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    ids: list[int] = tokenizer.encode(whole, add_special_tokens=False).ids
    return ids


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text)
