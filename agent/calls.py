"""Calls: how many telephone calls there may be at once, and what is measured of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tts_plugin.errors import Overloaded
from tts_plugin.timing import Clock

MAX_CALLS = 8
_CALL_S = (5, 15, 30, 60, 120, 300, 600, 1800, 3600)
_FIRST_WORD_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)


class Place:
    """One of the calls that there may be at once; given back when its block is left, or by `give_back`."""

    def __init__(self, held: dict[object, int], call: object) -> None:
        self._held: dict[object, int] | None = held
        self._call = call
        held[call] = held.get(call, 0) + 1

    def give_back(self) -> None:
        """Somebody else may call now; twice is fine."""
        if self._held is None:
            return
        self._held[self._call] -= 1
        if not self._held[self._call]:
            del self._held[self._call]
        self._held = None

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.give_back()


class Calls:
    """The places of all transports together, and their metrics by transport; never by number or caller."""

    def __init__(self, max_calls: int = MAX_CALLS, *, clock: Clock = time.monotonic) -> None:
        self.max_calls = max_calls
        self._held: dict[object, int] = {}  # how many Places each call has
        self._clock = clock
        self._registry = CollectorRegistry()
        label = ("transport",)
        self._active = Gauge("sparkvoice_calls_active", "Calls now.", label, registry=self._registry)
        self._refused = Counter(
            "sparkvoice_calls_refused",
            "Callers told that all is busy.",
            label,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sparkvoice_call_seconds", "How long calls last.", label, registry=self._registry, buckets=_CALL_S
        )
        self._barge_ins = Counter(
            "sparkvoice_barge_ins", "Turns of the agent cut short.", label, registry=self._registry
        )
        self._first_word = Histogram(
            "sparkvoice_first_word_seconds",
            "From the answer of a call to the agent's first sound.",
            label,
            registry=self._registry,
            buckets=_FIRST_WORD_S,
        )

    @property
    def taken(self) -> int:
        """Calls now."""
        return len(self._held)

    def place(self, transport: str, call: str | None = None) -> Place:
        """A place for one more call; Overloaded when all are taken, which the transport tells the caller.

        call: the transport's name of it. Who asks again for a call that has a place shares that one, which is
        free when the last of them has given it back; None is a call of its own.
        """
        key = (transport, object() if call is None else call)
        if key not in self._held and self.taken >= self.max_calls:
            self.refused(transport)
            raise Overloaded(f"all {self.max_calls} lines are busy; try again in a minute")
        return Place(self._held, key)

    def refused(self, transport: str) -> None:
        """Note that a caller was told that all is busy."""
        self._refused.labels(transport).inc()

    @contextmanager
    def measured(self, transport: str) -> Iterator[Meter]:
        """Count a call as active for as long as the block lasts."""
        began_s = self._clock()
        active = self._active.labels(transport)
        active.inc()
        try:
            yield Meter(
                self._barge_ins.labels(transport), self._first_word.labels(transport), began_s, self._clock
            )
        finally:
            active.dec()
            self._seconds.labels(transport).observe(self._clock() - began_s)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Meter:
    """What one call tells of itself; it began at `began_s`."""

    def __init__(self, barge_ins: Counter, first_word: Histogram, began_s: float, clock: Clock) -> None:
        self._barge_ins = barge_ins
        self._first_word: Histogram | None = first_word
        self._began_s = began_s
        self._clock = clock

    def spoke(self) -> None:
        """The agent's sound has begun; only the first time counts."""
        if self._first_word is not None:
            self._first_word.observe(self._clock() - self._began_s)
            self._first_word = None

    def barged_in(self) -> None:
        """The caller has cut the agent short."""
        self._barge_ins.inc()
