"""Telephone numbers hidden in what is written down."""

from __future__ import annotations

import re

_SHOWN = 2  # last digits: enough to find a call again, too few to place one
_LEAST = 5  # digits that may be a telephone number; four are a year or an hour
_NUMBER = re.compile(r"\+?\d(?:[\s().\-/]{0,2}\d)+")
_WORD = r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple|\d)"
_SPELT = re.compile(rf"\b{_WORD}(?:[\s,;.\-]+{_WORD}){{{_LEAST - 1},}}\b", re.IGNORECASE)


def masked(text: str) -> str:
    """`text` with every number of five digits or more hidden but for its last two; likewise those that are
    said digit by digit."""
    return _SPELT.sub("***", _NUMBER.sub(_hidden, text))


def masked_number(number: str | None) -> str | None:
    """A caller's number or address."""
    if number is None:
        return None
    shown = masked(number)
    return shown if shown != number else f"***{number[-_SHOWN:]}" if len(number) > _SHOWN else "***"


def _hidden(match: re.Match[str]) -> str:
    text = match[0]
    digits = re.sub(r"\D", "", text)
    if len(digits) < _LEAST:
        return text
    return "*" * (len(digits) - _SHOWN) + digits[-_SHOWN:]
