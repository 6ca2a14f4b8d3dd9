"""Numbers read out for somebody who writes them down: one digit at a time, in groups."""

from __future__ import annotations

import re

_CODE = re.compile(r"\b(?=[A-Za-z]*\d)[A-Za-z0-9]+(?:[ .\-/]?\d+)*\b")
_WORD = r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)"
_SAID = re.compile(rf"\b{_WORD}(?:[\s,.\-]+{_WORD}){{2,}}\b", re.IGNORECASE)
_GROUP = 3


def digit_by_digit(text: str) -> str | None:
    """The numbers and codes in `text`, each spelt; None if it has none. Three digits in words or more in a
    row are a number, too."""
    found = [_spelt(match[0]) for match in _CODE.finditer(text)]
    found += [_slowly(match[0]) for match in _SAID.finditer(text)]
    return ". ".join(found) + "." if found else None


def _spelt(code: str) -> str:
    """ "AB-4711" -> "A B 4, 7 1 1": the groups of the writer, long ones in threes."""
    groups = [group for part in re.findall(r"[A-Za-z]+|\d+", code) for group in _in_threes(part)]
    return ", ".join(" ".join(group) for group in groups)


def _slowly(words: str) -> str:
    """ "five five, oh one" -> "five, five; oh, one": a pause after each, a longer one between groups."""
    return "; ".join(", ".join(re.split(r"[\s\-]+", group)) for group in re.split(r"\s*[,.]\s*", words))


def _in_threes(part: str) -> list[str]:
    if len(part) <= _GROUP + 1:
        return [part.upper()]
    return [part[at : at + _GROUP].upper() for at in range(0, len(part), _GROUP)]
