"""Schedule: which of the waiting windows are decoded next, and which of them together (no torch).

The window whose listener runs out of audio first comes first. The first window of a turn is due the moment
it is asked for, so it goes ahead of every window whose listener still has audio, and behind those who have
waited for sound longer. Nobody waits before its reader asks, so one who stalled does not go ahead of those
who ran dry meanwhile. Nobody starves: a window has a time at which it is due, and whoever asks later than
that is due later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Order:
    """One window that waits. tokens: its length with its context. work: tokens that the wave generator,
    nearly all of the cost, runs on. due_s: when its listener runs out of audio; of a first window, when it
    was asked for. is_first: of its turn, so nobody hears anything yet."""

    tokens: int
    work: int
    due_s: float
    is_first: bool


O = TypeVar("O", bound=Order)  # noqa: E741


@dataclass(slots=True)
class Schedule(Generic[O]):
    """most: windows of one batch. like: a batch costs its longest row times its rows, so their lengths
    differ by no more than this factor. longest_s: what is asked for next waits for a whole batch, so it takes
    no longer than this, unless one window alone does. A device that decodes many windows as fast as one gets
    full batches that way, and one whose cost grows with each row decodes the most urgent one alone."""

    most: int = 8
    like: float = 1.5
    # Not tuned: windows are cut to find 0.08 s still playing (MARGIN_S in window.py), and a batch that took
    # longer would use all of that up for whoever asks just after it began.
    longest_s: float = 0.08
    waiting: list[O] = field(default_factory=list)

    def add(self, order: O) -> None:
        self.waiting.append(order)

    def drop(self, order: O) -> None:
        """Its reader has left; nothing if it does not wait any more."""
        if order in self.waiting:
            self.waiting.remove(order)

    def take(self, now_s: float, s_per_token: float) -> list[O]:
        """The next batch, the most urgent first; empty if nothing waits.

        s_per_token: seconds that a token of `work` takes. A window that is due is delayed by no window that
        is not, and one that is not yet due by no more than the time it has.
        """
        if not self.waiting:
            return []
        ranked = sorted(self.waiting, key=_due_s)  # stable: who asked first is first among equals
        head = ranked[0]
        is_due = head.due_s <= now_s
        limit_s = self.longest_s if is_due else min(self.longest_s, head.due_s - now_s)
        batch, work = [head], head.work
        for order in ranked[1:]:
            if len(batch) == self.most or (is_due and order.due_s > now_s):
                break
            longest = max(work, order.work)
            fits = longest * (len(batch) + 1) * s_per_token <= limit_s
            if fits and head.tokens / self.like <= order.tokens <= head.tokens * self.like:
                batch.append(order)
                work = longest
        self.waiting = [order for order in self.waiting if order not in batch]
        return batch


def _due_s(order: Order) -> float:
    return order.due_s
