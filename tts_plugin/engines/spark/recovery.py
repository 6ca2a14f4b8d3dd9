"""Recovery: a watched stream of codes that tries again while nobody has heard anything, and never lies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from tts_plugin.engines.spark.watchdog import Verdict, Watchdog
from tts_plugin.errors import SynthesisFailed
from tts_plugin.timing import Count, uncounted

ATTEMPTS = 2  # of a whole text; then each half has as many
# generate(text, attempt): the codes of `text`; attempt 0, 1, 2 ... of this call of `recovered`
Generate = Callable[[str, int], AsyncGenerator[list[int]]]
Split = Callable[[str], tuple[str, str] | None]
_MARKS = ".!?;:,。！？；：，、"


class _Unspoken(SynthesisFailed):
    """Every attempt at a text failed, and none of it is out."""


def halves(text: str) -> tuple[str, str] | None:
    """`text` in two near its middle: after a mark, else between words, else anywhere; None if too short."""
    text = text.strip()
    places = range(1, len(text))
    marks = [at for at in places if text[at - 1] in _MARKS and len(text) / 4 < at < len(text) * 3 / 4]
    spaces = [at for at in places if text[at].isspace()]
    for kind in (marks, spaces, [] if spaces else places):
        for at in sorted(kind, key=lambda place: abs(place - len(text) / 2)):
            first, second = text[:at].strip(), text[at:].strip()
            if _readable(first) and _readable(second):
                return first, second
    return None


async def recovered(
    text: str,
    generate: Generate,
    *,
    hold: int,
    watch: Callable[[str], Watchdog] = Watchdog,
    split: Split = halves,
    attempts: int = ATTEMPTS,
    count: Count = uncounted,
) -> AsyncGenerator[list[int]]:
    """The codes of `text`, watched and, while it costs the listener nothing, made again.

    hold: codes kept back at first. Give what the first window needs: no frame can come sooner, so this
    costs no time. They also stay back while all of them are silence or a loop. A bad verdict then means
    another attempt, for which `generate` should take another seed and drop what conditioned the last;
    after `attempts` of them the text is split and each part has as many.
    Once codes are out, or when all is tried, a bad verdict is SynthesisFailed, and no code after it is
    given on. Errors of `generate` pass as they are. Closing this closes what `generate` returned.
    count: told of each bad verdict, as "watchdog_loop" and so on.
    """
    tries = _Tries(generate, watch, hold, attempts, count)
    parts: tuple[str, ...] = (text,)
    try:
        async with aclosing(tries.speak(text)) as codes:
            async for group in codes:
                yield group
        return
    except _Unspoken:
        parts = split(text) or ()
        if not parts:
            raise
    for part in parts:
        async with aclosing(tries.speak(part)) as codes:
            async for group in codes:
                yield group


@dataclass(slots=True)
class _Tries:
    """Attempts at one text, numbered over its parts, so that none has the seed of another."""

    generate: Generate
    watch: Callable[[str], Watchdog]
    hold: int
    attempts: int
    count: Count
    made: int = 0

    async def speak(self, text: str) -> AsyncGenerator[list[int]]:
        """The codes of one attempt that went well, or _Unspoken."""
        reason = ""
        for _ in range(self.attempts):
            watchdog = self.watch(text)
            out = False
            attempt = self.made
            self.made += 1
            async with aclosing(_watched(self.generate(text, attempt), watchdog, self.hold)) as codes:
                async for group in codes:
                    out = True
                    yield group
            if watchdog.verdict is Verdict.OK:
                return
            reason = watchdog.reason
            self.count(f"watchdog_{watchdog.verdict.name.lower()}", 1)
            if out:
                raise SynthesisFailed(f"the speech went wrong after it began: {reason}; say it again")
        raise _Unspoken(f"the speech went wrong {self.made} times, at last: {reason}; try other words")


async def _watched(
    codes: AsyncGenerator[list[int]], watchdog: Watchdog, hold: int
) -> AsyncGenerator[list[int]]:
    """What may be given on; ends at the first bad verdict, which the watchdog keeps."""
    held: list[int] = []
    holding = True
    async with aclosing(codes):
        async for group in codes:
            if watchdog.see(group) is not Verdict.OK:
                return
            if not holding:
                yield group
                continue
            held += group
            if len(held) >= hold and watchdog.speaks:
                holding = False
                yield held
    if watchdog.end() is Verdict.OK and holding and held:
        yield held


def _readable(text: str) -> bool:
    return any(char.isalnum() for char in text)
