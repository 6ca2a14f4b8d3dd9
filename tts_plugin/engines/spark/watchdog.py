"""Watchdog: sees from the codes alone that a language model has stopped speaking the text."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tts_plugin.engines.spark.duration import TOKENS_PER_S, duration_of


class Verdict(Enum):
    """What the watchdog thinks; everything but OK is final."""

    OK = "ok"
    ENDED_AT_ONCE = "it ended without a sound"
    TOO_SHORT = "it ended long before the text could be said"
    RUNAWAY = "it went on long after the text was said"
    LOOP = "it repeated itself"
    SILENCE = "it fell silent"


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as wrong.

    silence_s: codes of `silence`, or of a set of `few` codes, this long. Natural pauses inside a breath
    stay under 1 s, and 2 s of speech hold dozens of codes.
    loop_s, loop_times: an exact repetition of up to `period_s` this long and this often. Drawn at random,
    speech never repeats to the code for a second; a loop of the model does so for ever.
    mute_s: a whole utterance of at least this and of no more than `few` codes is no speech.
    """

    silence_s: float = 2.0
    few: int = 4
    loop_s: float = 1.2
    loop_times: int = 3
    period_s: float = 1.0
    mute_s: float = 0.4


class Watchdog:
    """Watches one utterance of `text`. see() takes codes as they come, end() is end-of-speech.

    rate_hz: codes a second. silence: the codes known to be silence, if any are. Length is bounded by
    `duration_of(text)`. A verdict other than OK stays, and `reason` says it with its numbers.
    """

    def __init__(
        self,
        text: str,
        rate_hz: float = TOKENS_PER_S,
        *,
        silence: Collection[int] = (),
        limits: Limits = Limits(),
    ) -> None:
        self._rate_hz = rate_hz
        self._silence = frozenset(silence)
        self._limits = limits
        self._bounds = duration_of(text)
        self._least = round(self._bounds.least_s * rate_hz)
        self._most = round(self._bounds.most_s * rate_hz)
        self._window = round(limits.silence_s * rate_hz)
        self._recent: deque[int] = deque(maxlen=self._window)
        self._counts: Counter[int] = Counter()  # of the codes in `_recent`
        self._silent = 0  # codes of `silence` in a row
        # [p]: how many codes in a row equal the one p before; 1 s is at most one window back
        self._runs = [0] * (min(self._window, round(limits.period_s * rate_hz)) + 1)
        self._voices: set[int] = set()  # the first few codes that are no silence
        self.codes = 0
        self.verdict = Verdict.OK
        self._detail = ""

    def see(self, codes: Sequence[int]) -> Verdict:
        """What to think after these codes; those after the one that decided are not looked at."""
        for code in codes:
            if self.verdict is not Verdict.OK:
                break
            self._see(code)
        return self.verdict

    def end(self) -> Verdict:
        """What to think now that the model ended the utterance."""
        if self.verdict is not Verdict.OK:
            return self.verdict
        if self.codes == 0:
            if self._least:
                self._decide(Verdict.ENDED_AT_ONCE, "no code at all")
        elif self.codes < self._least:
            self._decide(
                Verdict.TOO_SHORT, f"{self._s(self.codes)}, at least {self._s(self._least)} expected"
            )
        elif self._least and self._is_mute and (not self._voices or self._is_long(self._limits.mute_s)):
            self._decide(Verdict.SILENCE, f"{self._s(self.codes)} of at most {self._limits.few} codes")
        return self.verdict

    @property
    def speaks(self) -> bool:
        """Whether there was more than silence, a few codes or one loop; before that, nothing is worth
        playing."""
        whole = (run >= period > 0 and run + period == self.codes for period, run in enumerate(self._runs))
        return not self._is_mute and not any(whole)

    @property
    def _is_mute(self) -> bool:
        return len(self._voices) <= self._limits.few

    @property
    def reason(self) -> str:
        """The verdict in words, with its numbers."""
        return f"{self.verdict.value} ({self._detail})" if self._detail else self.verdict.value

    def _see(self, code: int) -> None:
        self.codes += 1
        if self.codes > self._most:
            self._decide(Verdict.RUNAWAY, f"{self._s(self.codes)}, at most {self._s(self._most)} expected")
            return
        self._silent = self._silent + 1 if code in self._silence else 0
        if not self._silent and len(self._voices) <= self._limits.few:
            self._voices.add(code)
        self._see_runs(code)
        self._see_variety(code)

    def _see_runs(self, code: int) -> None:
        """Exact repetition, of every period at once; looks back before `code` is among the recent."""
        limits, recent = self._limits, self._recent
        for period in range(1, min(len(self._runs) - 1, len(recent)) + 1):
            run = self._runs[period] + 1 if recent[-period] == code else 0
            self._runs[period] = run
            span = run + period  # the first time round has nothing before it to be equal to
            if span < limits.loop_s * self._rate_hz or span < limits.loop_times * period:
                continue
            # what has fewer codes is silence, which may be longer
            if len({recent[-back] for back in range(1, period + 1)}) > limits.few:
                self._decide(Verdict.LOOP, f"{span} codes of period {period}")
                return

    def _see_variety(self, code: int) -> None:
        if len(self._recent) == self._window:
            oldest = self._recent[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._recent.append(code)
        self._counts[code] += 1
        full = len(self._recent) == self._window
        if self._silent >= self._window or (full and len(self._counts) <= self._limits.few):
            self._decide(Verdict.SILENCE, f"{self._s(self._window)} of {len(self._counts)} different codes")

    def _decide(self, verdict: Verdict, detail: str) -> None:
        if self.verdict is Verdict.OK:
            self.verdict = verdict
            self._detail = detail

    def _is_long(self, seconds: float) -> bool:
        return self.codes >= seconds * self._rate_hz

    def _s(self, codes: int) -> str:
        return f"{codes / self._rate_hz:.1f} s"
