"""What the end of a word says about the sentence: goes on, pauses, ends, or wait for the next character."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import re
from enum import Enum, auto


class Ending(Enum):
    """How a word ends. The names after SENTENCE are open questions; `settled` answers them."""

    NONE = auto()
    CLAUSE = auto()
    SENTENCE = auto()
    # a sentence end unless a small letter follows, then a pause:  "Really?" she asked / Well... maybe
    PAUSE_IF_LOWER = auto()
    # nothing if a small letter follows, else a sentence end:  the 3. of May / etc. and
    NONE_IF_LOWER = auto()
    # nothing if a digit follows, else a sentence end:  No. 5 / No. I will not
    NONE_IF_DIGIT = auto()
    # a pause if a capital follows, else nothing; where reading on is never wrong:  9 a.m. We / 9 a.m. Monday
    PAUSE_IF_UPPER = auto()
    # a line that was only wrapped:  goes on if a small letter follows, else a sentence end
    WRAP = auto()


OPENERS = frozenset("\"'“‘«([{¿¡「『（【《〈*_~`")
CLOSERS = frozenset("\"'”’»)]}」』）】》〉*_~`")
_QUOTES = frozenset("\"'”’»)]}」』）】》〉")
WIDE_STOPS = frozenset("。！？｡")
WIDE_PAUSES = frozenset("，、；：､")

_DASHES = re.compile(r"[-‐‑‒–—―]+")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")

# followed by a name or a noun, so never the end
_NEVER = frozenset(
    "mr mrs ms mx dr prof st mt messrs mme mlle vs e.g eg i.e ie cf viz ca approx dept est assn "
    "str bzw usw z.b d.h sra srta dra".split()
)
# the same when written with a capital; small, they are words: "our sales rep."
_NEVER_CAPITAL = frozenset("Sen Rep Gov Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Rev Hon Fr Ft Al Bros".split())
_BEFORE_NUMBER = frozenset(
    "no nos nr fig figs vol vols pp p ch sec sect art eq ver op pt ext tel "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun".split()
)
_OFTEN_LAST = frozenset("etc hr hrs min mins secs lb lbs oz ft kg km cm mm al".split())
_MAYBE_LAST = frozenset("a.m p.m b.c a.d ph.d inc ltd co corp llc jr sr ave blvd rd hwy".split())


def ending(word: str, *, opens_line: bool = False) -> Ending:
    """What `word` (no whitespace in it) says, once whitespace has followed it."""
    at, quoted = len(word), False
    while at and (word[at - 1] in CLOSERS or _is_picture(word[at - 1])):
        at -= 1
        quoted = quoted or word[at] in _QUOTES
    body = word[:at]
    last = body[-1:]
    if not last:
        return Ending.NONE
    if last in ".…" and (body.endswith("..") or last == "…"):
        return Ending.PAUSE_IF_LOWER
    if last in "!?‽" or last in WIDE_STOPS:
        return Ending.PAUSE_IF_LOWER if quoted else Ending.SENTENCE
    if last == ".":
        return _after_period(body[:-1], quoted=quoted, opens_line=opens_line)
    if last in ",;:" or last in WIDE_PAUSES:
        return Ending.CLAUSE
    if last in "—―" or _DASHES.fullmatch(body):
        return Ending.NONE if opens_line else Ending.CLAUSE
    return Ending.NONE


def _after_period(stem: str, *, quoted: bool, opens_line: bool) -> Ending:
    name = stem.lstrip("".join(OPENERS))
    low = name.lower()
    if low in _NEVER or name in _NEVER_CAPITAL:
        return Ending.NONE
    if low in _BEFORE_NUMBER:
        return Ending.NONE_IF_DIGIT
    if low in _OFTEN_LAST:
        return Ending.NONE_IF_LOWER
    if low in _MAYBE_LAST:
        return Ending.PAUSE_IF_UPPER
    if name != "I" and _INITIALS.fullmatch(name):
        return Ending.NONE
    if name.isdecimal() and len(name) <= 3 and opens_line:
        return Ending.NONE  # the number of a list item
    if name.isdecimal() and len(name) <= 2:
        return Ending.NONE_IF_LOWER
    return Ending.PAUSE_IF_LOWER if quoted else Ending.SENTENCE


def _is_picture(char: str) -> bool:
    """True for emoji and their joiners; they may stand between a stop and the space: "Sure!😊 Then"."""
    return (
        "\u2190" <= char <= "\u2bff" or "\U0001f000" <= char <= "\U0001faff" or char in "\u200d\ufe0e\ufe0f"
    )


def settled(what: Ending, following: str) -> Ending:
    """Answer an open question with the first character that follows the whitespace ("" if none does)."""
    match what:
        case Ending.PAUSE_IF_LOWER:
            return Ending.CLAUSE if following.islower() else Ending.SENTENCE
        case Ending.NONE_IF_LOWER | Ending.WRAP:
            return Ending.NONE if following.islower() else Ending.SENTENCE
        case Ending.NONE_IF_DIGIT:
            return Ending.NONE if following.isdigit() else Ending.SENTENCE
        case Ending.PAUSE_IF_UPPER:
            return Ending.CLAUSE if following.isupper() else Ending.NONE
    return what


def is_open(what: Ending) -> bool:
    """True if only the next character can tell."""
    return what not in (Ending.NONE, Ending.CLAUSE, Ending.SENTENCE)
