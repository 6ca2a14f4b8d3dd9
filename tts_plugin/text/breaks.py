"""Where to cut a sentence that is too long to say in one breath."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from itertools import pairwise

from tts_plugin.text.gauge import is_unspaced
from tts_plugin.text.stops import CLOSERS, Ending, ending, settled

_VISIBLE = re.compile(r"\S+")
_WIDE_PAUSE = re.compile(r"[，、；：､…—][」』”’）】》〉]*")
_CONJUNCTIONS = frozenset(
    "and but or nor so yet because although though while when whenever where which who whom whose that if "
    "unless until since before after whereas than".split()
)
_PREPOSITIONS = frozenset(
    "in on at by for with from into onto over under between through during about against without within "
    "among across behind near toward towards".split()
)
_NUMBER = re.compile(r"[+(]?\d")
_PARTICLES = frozenset("的了吗呢吧着过")  # a Chinese phrase may end after one of these
_WIDE_CONJUNCTIONS = frozenset("和但而并或且所因如与及")  # and begin before one of these

# (rank, how far into the text a break of that rank must lie)
_SENTENCE, _CLAUSE, _CONJUNCTION, _PREPOSITION, _PLAIN, _POOR = range(6)
_REACH = (0.0, 1 / 3, 0.4, 0.5, 0.3, 0.0)


def best_break(text: str) -> int:
    """Where to cut a text that is as long as a piece may be: the index at which the rest begins.

    After a sentence, else a clause, else before a conjunction, a preposition, else at the last word;
    never so early that it makes crumbs. A single word of absurd length is cut at its end.
    """
    found: list[int] = [0] * len(_REACH)
    for at, rank in _breaks(text):
        if at < _REACH[rank] * len(text):
            rank = _POOR
        found[rank] = max(found[rank], at)
    return next((at for at in found if at), len(text))


def _breaks(text: str) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    words = list(_VISIBLE.finditer(text))
    for one, two in pairwise(words):
        out.append((two.start(), _rank(one.group(), two.group())))
    if words and words[-1].end() < len(text):
        out.append((len(text), _PLAIN))
    out.extend((wide.end(), _CLAUSE) for wide in _WIDE_PAUSE.finditer(text))
    for at in range(1, len(text)):
        if is_unspaced(text[at - 1]) and is_unspaced(text[at]):
            particle = text[at - 1] in _PARTICLES or text[at] in _WIDE_CONJUNCTIONS
            out.append((at, _PREPOSITION if particle else _PLAIN))
    return out


def _rank(one: str, two: str) -> int:
    what = settled(ending(one), two[0])
    if what is Ending.SENTENCE:
        return _SENTENCE
    if what is Ending.CLAUSE:
        return _CLAUSE
    word = two.strip("".join(CLOSERS) + "([{“‘.,;:!?").lower()
    if word in _CONJUNCTIONS:
        return _CONJUNCTION
    if word in _PREPOSITIONS:
        return _PREPOSITION
    return _POOR if _NUMBER.match(one) and _NUMBER.match(two) else _PLAIN
