"""Splitter: text as a language model writes it in, pieces that can each be spoken in one breath out.

Sans-IO: nothing here waits. Each character is judged once, with at most one character of look-ahead,
so the pieces depend on the text and not on how it was cut into deltas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tts_plugin.text.breaks import best_break
from tts_plugin.text.gauge import WORD, Gauge, is_unspaced, words_in
from tts_plugin.text.stops import (
    CLOSERS,
    OPENERS,
    WIDE_PAUSES,
    WIDE_STOPS,
    Ending,
    ending,
    is_open,
    settled,
)

PIECE_CHARS = 300  # a piece is never longer, whatever it holds
SHORTEST_WORDS = 3  # later pieces shorter than this wait for the text that follows
WRAP_CHARS = 40  # a line this long that ends in mid-sentence was wrapped, not ended

_NEWLINES = frozenset("\n\r\v\f\x85\u2028\u2029")
_INNER_STOPS = WIDE_STOPS | WIDE_PAUSES | frozenset("—…")
_ASCII_STOPS = frozenset(".!?")
_ASCII_PAUSES = frozenset(",;:")
_WORD_ENDS = _ASCII_STOPS | _ASCII_PAUSES | _INNER_STOPS | frozenset("‽")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the text as pushed: raw == text[start:end], no whitespace at either end."""

    raw: str
    start: int
    end: int


class Splitter:
    """Deltas in, pieces out; in order, not overlapping, and only whitespace lies between them.

    first_words: a clause of so many words is enough for the first piece. max_words: no piece has more
    (a Chinese character counts as 0.6). stall_s: how long the owner lets the text stand still before it
    calls `release`; nothing here keeps time.

    A sentence is a piece; a longer one is cut at its best pause, and one of fewer than three words
    waits for its successor, except at the start, where early sound matters more.
    """

    def __init__(self, first_words: int = 4, max_words: int = 25, stall_s: float = 0.35) -> None:
        if not 1 <= first_words <= max_words:
            raise ValueError(f"first_words must be 1 to max_words={max_words}, not {first_words}")
        if stall_s <= 0:
            raise ValueError(f"stall_s must be more than 0 seconds, not {stall_s}")
        self.stall_s = stall_s
        self._first = first_words * WORD
        self._most = max_words * WORD
        self._spoken_yet = False
        self._at = 0  # index of the next character
        self._line_at = 0  # index where its line starts
        self._fresh_line = True  # nothing but whitespace on the line so far
        self._clear()

    def _clear(self) -> None:
        self._wait: list[str] = []  # what is pushed and in no piece yet; starts with a visible character
        self._gauge = Gauge()
        self._word_at: int | None = None  # where in _wait the unfinished word starts
        self._word_opens_line = False
        self._question: Ending | None = None  # open until the next visible character

    def push(self, delta: str) -> list[Piece]:
        """Take more text; return the pieces it completes."""
        out: list[Piece] = []
        for char in delta:
            self._feed(char, out)
        return out

    def flush(self) -> list[Piece]:
        """Release all that waits, even half a word. More may be pushed; it starts a new piece."""
        out: list[Piece] = []
        self._emit(len(self._wait), out)
        self._fresh_line, self._line_at = True, self._at
        return out

    def release(self) -> list[Piece]:
        """Release the whole words that wait, if they are three or end a clause: the text stands still."""
        out: list[Piece] = []
        self._emit(self._whole_words(), out)
        return out

    @property
    def pending(self) -> bool:
        """True if `release` would return a piece now."""
        return self._whole_words() > 0

    def _feed(self, char: str, out: list[Piece]) -> None:
        if char.isspace():
            self._space(char, out)
        else:
            self._visible(char, out)
        if char in _NEWLINES:
            self._fresh_line, self._line_at = True, self._at + 1
        self._at += 1

    def _space(self, char: str, out: list[Piece]) -> None:
        if len(self._wait) >= PIECE_CHARS:
            self._cut(out)
        ends = char in _NEWLINES and not (char == "\n" and self._wait[-1:] == ["\r"])
        if self._word_at is not None:
            what = ending("".join(self._wait[self._word_at :]), opens_line=self._word_opens_line)
            self._word_at = None
            if is_open(what):
                self._question = what
            else:
                self._pause(what, out)
                if ends and self._at - self._line_at >= WRAP_CHARS and what is not Ending.SENTENCE:
                    self._question, ends = Ending.WRAP, False
        if ends:
            self._pause(Ending.SENTENCE, out)
        if self._wait:
            self._wait.append(char)
        else:
            self._question = None
        self._gauge.space()

    def _visible(self, char: str, out: list[Piece]) -> None:
        self._judge(char, out)
        while self._wait and not self._has_room_for(char):
            self._cut(out)
            self._judge(char, out)
        if self._word_at is None:
            self._word_at = len(self._wait)
            self._word_opens_line, self._fresh_line = self._fresh_line, False
        self._wait.append(char)
        self._gauge.add(char)

    def _has_room_for(self, char: str) -> bool:
        return len(self._wait) < PIECE_CHARS and self._gauge.cost + self._gauge.price(char)[0] <= self._most

    def _judge(self, char: str, out: list[Piece]) -> None:
        """End the piece before the visible `char` if that is where a sentence ends."""
        if not self._wait:
            return
        if self._word_at is not None:
            self._pause(_ending_inside(self._wait, char), out)
        elif self._question is not None:
            what, self._question = settled(self._question, char), None
            self._pause(what, out)

    def _pause(self, what: Ending, out: list[Piece]) -> None:
        """End the piece here if the pause is worth it."""
        words = self._gauge.words
        if what is Ending.SENTENCE:
            enough = words > 0 if not self._spoken_yet else words >= SHORTEST_WORDS * WORD
        else:
            enough = what is Ending.CLAUSE and not self._spoken_yet and words >= self._first
        if enough:
            self._emit(len(self._wait), out)

    def _cut(self, out: list[Piece]) -> None:
        self._emit(best_break("".join(self._wait)), out)

    def _emit(self, count: int, out: list[Piece]) -> None:
        """Make a piece of the first `count` characters that wait and judge the rest anew."""
        if count == 0:
            return
        text = "".join(self._wait)
        raw = text[:count].rstrip()
        if raw:
            start = self._at - len(text)
            out.append(Piece(raw, start, start + len(raw)))
            self._spoken_yet = self._spoken_yet or words_in(raw) > 0
        rest = text[count:]
        self._clear()
        self._at -= len(rest)
        for char in rest:
            self._feed(char, out)

    def _whole_words(self) -> int:
        """How many of the waiting characters `release` may speak."""
        text = "".join(self._wait)
        words = text.split()
        if not words:
            return 0
        if self._word_at is not None and not _is_whole(words[-1]):
            words.pop()
        while words and _wants_more(words[-1]):
            words.pop()
        if not words:
            return 0
        count = _length_of(text, len(words))
        said = words_in(text[:count])
        if said >= SHORTEST_WORDS or (said > 0 and ending(words[-1]) is not Ending.NONE):
            return count
        return 0


def _ending_inside(wait: list[str], char: str) -> Ending:
    """What lies between the last waiting character and `char`, with no space between them."""
    last = wait[-1]
    if (last not in _WORD_ENDS and last not in CLOSERS) or char in CLOSERS or char in _WORD_ENDS:
        return Ending.NONE
    at = len(wait) - 1
    while at > 0 and wait[at] in CLOSERS:
        at -= 1
    mark, quoted = wait[at], at < len(wait) - 1
    if mark in WIDE_STOPS:
        return Ending.CLAUSE if quoted and char not in OPENERS else Ending.SENTENCE
    if mark in WIDE_PAUSES or mark in "—…":
        return Ending.CLAUSE
    # ASCII marks between Chinese characters do what the wide ones do
    if at > 0 and is_unspaced(wait[at - 1]) and is_unspaced(char):
        if mark in _ASCII_STOPS:
            return Ending.SENTENCE
        if mark in _ASCII_PAUSES:
            return Ending.CLAUSE
    return Ending.NONE


def _is_whole(word: str) -> bool:
    """True if a word that no whitespace follows yet is finished all the same."""
    body = word.rstrip("".join(CLOSERS))
    return bool(body) and (body[-1] in _WORD_ENDS or is_unspaced(word[-1]))


_WORDS = re.compile(r"\S+")
_PART_OF_NUMBER = re.compile(r"[+(]?\d[\d().\-–]*(?<!\.)")


def _wants_more(word: str) -> bool:
    """True for a last word after which nobody pauses: a title, an opening mark, the start of a number."""
    if _PART_OF_NUMBER.fullmatch(word):
        return True
    if word[-1] == "." and "." not in word[:-1]:
        return ending(word) is Ending.NONE
    return not any(char.isalnum() or char in _WORD_ENDS for char in word)


def _length_of(text: str, words: int) -> int:
    """Characters up to the end of the `words`-th word."""
    for count, found in enumerate(_WORDS.finditer(text), 1):
        if count == words:
            return found.end()
    return len(text)
