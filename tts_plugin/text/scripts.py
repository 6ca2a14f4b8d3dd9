"""Which writing systems a language is read in, and what is left of a text without the others."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import unicodedata
from functools import lru_cache

_LATIN = frozenset({"LATIN"})
_HAN = frozenset({"CJK", "IDEOGRAPHIC"})
_CYRILLIC = frozenset({"CYRILLIC"})
_ARABIC = frozenset({"ARABIC"})
_DEVANAGARI = frozenset({"DEVANAGARI"})

# A language that is missing here is not filtered: better to try than to lose text.
# Latin is read everywhere, for names.
SCRIPTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        "en de fr es it pt nl sv no nb nn da fi is pl cs sk sl hr hu ro tr vi id ms tl sw af ca eu gl et lv "
        "lt mt ga cy sq".split(),
        _LATIN,
    ),
    **dict.fromkeys("ru uk be bg mk kk ky".split(), _LATIN | _CYRILLIC),
    **dict.fromkeys("ar fa ur ps".split(), _LATIN | _ARABIC),
    **dict.fromkeys("hi mr ne".split(), _LATIN | _DEVANAGARI),
    "zh": _LATIN | _HAN | {"BOPOMOFO"},
    "yue": _LATIN | _HAN,
    "ja": _LATIN | _HAN | {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    "ko": _LATIN | _HAN | {"HANGUL"},
    "el": _LATIN | {"GREEK"},
    "he": _LATIN | {"HEBREW"},
    "th": _LATIN | {"THAI"},
    "ka": _LATIN | {"GEORGIAN"},
    "hy": _LATIN | {"ARMENIAN"},
    "bn": _LATIN | {"BENGALI"},
    "ta": _LATIN | {"TAMIL"},
    "te": _LATIN | {"TELUGU"},
}

# first words of the names of letters that belong to no script
_COMMON = frozenset({"FEMININE", "MASCULINE", "MODIFIER", "MICRO"})
SAMPLE_CHARS = 40


def readable(text: str, language: str) -> tuple[str, str]:
    """Return `text` without the letters that `language` (a primary tag) does not use, and a sample of those.

    Each dropped run of letters leaves a space. The sample is at most 40 characters.
    """
    scripts = SCRIPTS.get(language)
    if scripts is None or text.isascii():
        return text, ""
    kept: list[str] = []
    dropped: list[str] = []
    dropping = False
    for char in text:
        if char.isascii():
            foreign = False
        elif unicodedata.category(char)[0] == "M":
            foreign = dropping  # a mark goes with its letter
        else:
            script = script_of(char)
            foreign = script != "" and script not in scripts
        if not foreign:
            kept.append(char)
        elif dropping:
            dropped[-1] += char
        else:
            kept.append(" ")
            dropped.append(char)
        dropping = foreign
    return "".join(kept), " ".join(dropped)[:SAMPLE_CHARS].strip()


@lru_cache(maxsize=4096)
def script_of(char: str) -> str:
    """The script of a letter as the first word of its Unicode name ("LATIN", "CJK"); "" for anything else."""
    if not char.isalpha() and unicodedata.category(char) != "Nl":
        return ""
    word = unicodedata.name(char, "UNNAMED").partition(" ")[0]
    return "" if word in _COMMON else word


def is_han(char: str) -> bool:
    """True for Chinese characters and kana."""
    return script_of(char) in ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
