"""InOrder: numbered pieces of audio put in order where a carrier does not keep it."""

from __future__ import annotations

HOLD = 3  # pieces of 20 ms waited for one that is late
BEHIND = 50  # a number further back than that is a new count


class InOrder:
    """Sans-IO. A piece that comes too late is dropped, one that never comes is left out."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._held: dict[int, bytes] = {}

    def push(self, number: int | None, piece: bytes) -> list[bytes]:
        """What may be played now, in order. A piece without a number is played as it comes."""
        if number is None:
            return [piece]
        if self._next is None or number < self._next - BEHIND:
            self._held.clear()
            self._next = number
        if number >= self._next:
            self._held[number] = piece
        if len(self._held) > HOLD:
            self._next = min(self._held)
        ready = []
        while self._next in self._held:
            ready.append(self._held.pop(self._next))
            self._next += 1
        return ready
