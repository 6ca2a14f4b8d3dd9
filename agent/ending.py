"""Ending: why a call is over, also where the far end is gone before that can be known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.line import TransferFailed


class Ending:
    """The end of one call. Its first reason stands; `on_end` is called once, with it.

    because: the reason, "" before.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.because = ""
        self._on_end = on_end
        self._over = asyncio.Event()
        self._asked = False  # for a handover, and not answered yet
        self._left: str | None = None  # the reason, if asking comes to nothing

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def end(self, why: str) -> None:
        """Over, and this is why."""
        if not self.over:
            self.because = why
            self._over.set()
            self._on_end()

    def left(self, why: str) -> None:
        """The far end is gone, which looks like `why`. While a handover is being asked for its answer is
        awaited: a carrier may take the caller away first and say so afterwards."""
        if self._asked:
            self._left = self._left or why
        else:
            self.end(why)

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """The block asks for a handover. With it the call is over; where it raises, the call goes on unless
        the far end has left. TransferFailed if the call is over already."""
        if self.over:
            raise TransferFailed(f"the call is over: {self.because}")
        self._asked = True
        try:
            yield
            self.end("handed over")
        finally:
            self._asked = False
            if self._left is not None:
                self.end(self._left)

    async def wait(self) -> str:
        """Until the call is over; why it is."""
        await self._over.wait()
        return self.because
