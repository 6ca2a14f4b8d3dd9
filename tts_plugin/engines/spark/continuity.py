"""Continuity: what of the speech so far is shown to the model before it speaks the next segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tts_plugin.engines.spark.duration import TOKENS_PER_S, duration_of
from tts_plugin.text.gauge import is_unspaced

_LEAST_CODES = 25  # half a second says nothing of how a voice speaks
CONTEXT_TOKENS = 1500  # the model was trained on no longer ones, text and speech together
_FRAME_TOKENS = 40  # of a prompt: 32 global codes and the control tokens


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of what was said, and its codes: `said` and `semantic` of a clone prompt; both may be empty."""

    said: str = ""
    semantic: tuple[int, ...] = ()


class Continuity:
    """Remembers the end of a turn's speech.

    count: text tokens of a text. rate_hz: codes a second. tail: at most so many codes are shown.
    context: prompt and the speech that is likely to follow stay within so many tokens.
    """

    def __init__(
        self,
        count: Callable[[str], int],
        rate_hz: float = TOKENS_PER_S,
        *,
        tail: int,
        context: int = CONTEXT_TOKENS,
    ) -> None:
        self._count = count
        self._rate_hz = rate_hz
        self._tail = tail
        self._context = context
        self._last = Tail()

    def spoke(self, text: str, codes: Sequence[int]) -> None:
        """Note a segment that was spoken to its end."""
        said, text = self._last.said.strip(), text.strip()
        whole = Tail(said + gap(said, text) + text, (*self._last.semantic, *codes))
        self._last = _cut(whole, self._tail)

    def tail(self, text: str) -> Tail:
        """What to show before `text`, or nothing if that would be too little; `said` ends with the space
        that must stand before `text`, if any."""
        room = self._context - _FRAME_TOKENS - self._count(text)
        room -= round(duration_of(text).likely_s * self._rate_hz)
        shown = self._last
        while shown.semantic and len(shown.semantic) + self._count(shown.said) > room:
            shown = _cut(shown, min(len(shown.semantic) * 3 // 4, max(0, room)))
        if len(shown.semantic) < _LEAST_CODES:
            return Tail()
        return Tail(shown.said + gap(shown.said, text), shown.semantic)


def gap(said: str, text: str) -> str:
    """The space between two texts, if their scripts put one."""
    if not said or not text or text[0].isspace():
        return ""
    return "" if is_unspaced(text[0]) or is_unspaced(said[-1]) or said[-1] in "。！？；：，、」』" else " "


def _cut(tail: Tail, codes: int) -> Tail:
    """The last `codes` codes and about the words they say.

    The end of text and codes is one moment, as the model needs it; where they begin may differ by part of
    a word, as it does in any clip that was cut out of a longer one.
    """
    if len(tail.semantic) <= codes:
        return tail
    starts = _word_starts(tail.said)
    if codes == 0 or not starts:
        return Tail()
    wanted_s = codes / len(tail.semantic) * _likely_s(tail.said)
    at = min(starts, key=lambda start: abs(_likely_s(tail.said[start:]) - wanted_s))
    return Tail(tail.said[at:], tail.semantic[-codes:])


def _word_starts(text: str) -> list[int]:
    """Where a word or a character of a script without spaces begins."""
    return [
        at
        for at, char in enumerate(text)
        if not char.isspace() and (at == 0 or text[at - 1].isspace() or is_unspaced(char))
    ]


def _likely_s(text: str) -> float:
    return duration_of(text).likely_s - duration_of("").likely_s
