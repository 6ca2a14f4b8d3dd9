"""SpokenText: which part of a turn's text has been heard by when, from the spans of its segments.

Inside a segment the words are placed in proportion to their letters: no engine here reports word times,
so they are estimates, right to about a word; at a segment's ends they are exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# speaking rate until a segment of the turn has ended and shown its own
_TYPICAL_S_PER_CHAR = 1 / 15
# a pause at a comma or a stop takes about as long as this many letters
_PAUSE_CHARS = {",": 3.0, ";": 4.0, ":": 4.0, ".": 5.0, "!": 5.0, "?": 5.0, "…": 5.0}
_WORD = re.compile(r"\S+\s*")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def without_half_pairs(text: str) -> str:
    """`text` with U+FFFD for half an emoji: a language model's deltas may cut one in two, and no JSON or
    UTF-8 can carry the halves. Offsets stay as they are."""
    return _HALF_PAIR.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class Span:
    """One segment: text offsets, and samples at `rate` Hz of the utterance. sample_to None: not known yet."""

    text_from: int
    text_to: int
    sample_from: int
    sample_to: int | None


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the whitespace after it, and when it is spoken, in seconds of the utterance."""

    text: str
    start_s: float
    end_s: float


class SpokenText:
    """Follows one turn: text goes in as pushed, spans as segments begin and end."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._deltas: list[str] = []
        self._text = ""
        self.spans: list[Span] = []
        self._words: list[_Placed] = []  # of every segment that has ended
        self._s_per_char = _TYPICAL_S_PER_CHAR
        self._taken = 0  # text offset up to which take() has handed out words
        self._next = 0  # index in _words of the first one that take() may still hand out

    @property
    def text(self) -> str:
        """The turn's text as pushed so far."""
        if self._deltas:  # joined when asked for: a text pushed letter by letter would cost its square
            self._text += "".join(self._deltas)
            self._deltas.clear()
        return self._text

    def add_text(self, delta: str) -> None:
        self._deltas.append(delta)

    def add_span(self, span: Span) -> None:
        """Note a segment; the same `sample_from` again replaces it, now that its end is known."""
        if self.spans and self.spans[-1].sample_from == span.sample_from:
            self.spans[-1] = span
        else:
            self.spans.append(span)
        if span.sample_to is not None:
            self._words += self._place(span)

    def heard(self, heard_s: float) -> str:
        """The turn's text up to the last word begun by `heard_s` seconds into the utterance."""
        begun = [word.text_to for word in self._words + self._open() if word.start_s < heard_s]
        return self.text[: begun[-1]].rstrip() if begun else ""

    def take(self, until_s: float) -> list[Word]:
        """Words that begin before `until_s` and were not taken yet; their texts join to the turn's text."""
        taken = []
        while self._next < len(self._words) and self._words[self._next].start_s < until_s:
            taken += self._hand_out(self._words[self._next])
            self._next += 1
        if self._next == len(self._words):
            for word in self._open():
                if word.start_s < until_s:
                    taken += self._hand_out(word)
        return taken

    def take_rest(self, end_s: float) -> list[Word]:
        """Everything not taken yet, as one word at the utterance's end."""
        rest, self._taken = self.text[self._taken :], len(self.text)
        return [Word(rest, end_s, end_s)] if rest else []

    def _hand_out(self, word: _Placed) -> list[Word]:
        if word.text_to <= self._taken:  # taken while its segment was still open
            return []
        text, self._taken = self.text[self._taken : word.text_to], word.text_to
        return [Word(text, word.start_s, word.end_s)]

    def _open(self) -> list[_Placed]:
        """The words of the segment that is being spoken, if its end is not known yet."""
        last = self.spans[-1] if self.spans else None
        return self._place(last) if last is not None and last.sample_to is None else []

    def _place(self, span: Span) -> list[_Placed]:
        at_s = span.sample_from / self.rate
        words = list(_WORD.finditer(self.text, span.text_from, span.text_to))
        weights = [_weight(word.group()) for word in words]
        if span.sample_to is not None and words:
            self._s_per_char = (span.sample_to / self.rate - at_s) / sum(weights)
        placed = []
        for word, weight in zip(words, weights, strict=True):
            end_s = at_s + weight * self._s_per_char
            placed.append(_Placed(_past_space(self.text, word.end()), at_s, end_s))
            at_s = end_s
        return placed


@dataclass(frozen=True, slots=True)
class _Placed:
    text_to: int  # offset after the word and the whitespace that follows it
    start_s: float
    end_s: float


def _weight(word: str) -> float:
    bare = word.rstrip()
    return len(bare) + 1 + _PAUSE_CHARS.get(bare[-1:], 0.0)


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
