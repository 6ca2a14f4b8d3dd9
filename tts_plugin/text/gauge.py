"""How long a text is to say, in words, also for scripts that have none between spaces."""

from __future__ import annotations

# Lengths are in fifths of a word, so that they stay integers.
WORD = 5
_UNSPACED = 3  # a character of a script without spaces: about 0.6 words (Chinese: 4 characters a second)
_LETTERS = 20  # a "word" costs one more for every so many characters
_DIGITS = 4  # and one for every digit after these: long numbers are read digit by digit


def words_in(text: str) -> float:
    """How long `text` is to say, in words: a Chinese character is 0.6, long words and numbers more."""
    gauge = Gauge()
    for char in text:
        if char.isspace():
            gauge.space()
        else:
            gauge.add(char)
    return gauge.words / WORD


class Gauge:
    """Measures text character by character, in fifths of a word.

    words: what is said. cost: the same, but whatever stands between spaces costs at least a word.
    """

    def __init__(self) -> None:
        self.words = 0
        self.cost = 0
        self.space()

    def space(self) -> None:
        """The next character starts a word."""
        self._new = True
        self._credit = 0  # paid in advance by a word that begins with a mark
        self._run()

    def _run(self) -> None:
        self._counted = False  # this run of spaced script has its word
        self._chars = 0
        self._digits = 0

    def price(self, char: str) -> tuple[int, int]:
        """What `char` would add to cost and to words."""
        if is_unspaced(char):
            words = _UNSPACED
        else:
            words = 0 if self._counted or not char.isalnum() else WORD
            if self._digits >= _DIGITS and char.isdigit():
                words += WORD
            if self._counted and self._chars % _LETTERS == 0:
                words += WORD
        return (max(WORD, words) if self._new else max(0, words - self._credit)), words

    def add(self, char: str) -> None:
        cost, words = self.price(char)
        self.cost += cost
        self.words += words
        self._credit = max(0, self._credit + cost - words)
        self._new = False
        if is_unspaced(char) or char == "—":
            self._run()
        else:
            self._chars += 1
            self._digits += char.isdigit()
            self._counted = self._counted or words > 0


def is_unspaced(char: str) -> bool:
    """True for letters of scripts that put no spaces between words (Chinese, Japanese, Thai ...)."""
    if char < "\u0e00":
        return False
    return (
        "\u0e01" <= char <= "\u0edf"  # Thai, Lao
        or "\u1000" <= char <= "\u109f"  # Burmese
        or "\u1780" <= char <= "\u17d3"  # Khmer
        or "\u3005" <= char <= "\u3007"
        or "\u3041" <= char <= "\u30ff"  # kana
        or "\u3400" <= char <= "\u9fff"  # Han
        or "\uf900" <= char <= "\ufaff"
        or "\uff66" <= char <= "\uff9f"
        or "\U00020000" <= char <= "\U0003ffff"
    )
