"""How long a text can take to say: at least, likely, at most; from its characters, in any script."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from tts_plugin.text.gauge import is_unspaced

TOKENS_PER_S = 50  # semantic codes of a second of speech

# Seconds a character takes: least, likely, most. Ordinary English is 150 words a minute, 4.7 letters each:
# 0.085 s a letter; Chinese is 4 to 5 characters a second. Least is about 3.5 times as fast, most 3 times as
# slow, so only what has gone wrong is outside.
_LETTER = (0.025, 0.085, 0.25)
_SYLLABLE = (0.07, 0.22, 0.7)  # Chinese, kana, hangul, Thai
_NAMED = (0.025, 0.2, 0.8)  # digits, capitals and signs may be read by name: "7", "W", "%"
_PAUSE = (0.0, 0.25, 1.0)  # marks
_NOTHING = (0.0, 0.0, 0.0)  # spaces, combining marks
_AROUND = (0.0, 0.3, 1.5)  # the breath before and after


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds. least is 0 for a text with nothing to read."""

    least_s: float
    likely_s: float
    most_s: float


def duration_of(text: str) -> Duration:
    """How long `text` takes to say at any pace that people speak at."""
    spans = [_AROUND, *(_span(char) for char in text)]
    least_s, likely_s, most_s = (sum(column) for column in zip(*spans, strict=True))
    return Duration(least_s, likely_s, most_s)


def _span(char: str) -> tuple[float, float, float]:
    if is_unspaced(char) or "\uac00" <= char <= "\ud7a3":
        return _SYLLABLE
    kind = unicodedata.category(char)
    if kind == "Lu" or kind[0] in "NS":
        return _NAMED if kind[0] != "S" else (0.0, *_NAMED[1:])
    if kind[0] == "L":
        return _LETTER
    return _PAUSE if kind[0] == "P" else _NOTHING
