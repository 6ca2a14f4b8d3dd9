"""Gate: what lets others ask that no step of a language model begins for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Open unless somebody holds it. Belongs to one event loop at a time."""

    def __init__(self) -> None:
        self._held: set[asyncio.Event] = set()  # of each block that runs: set when it ends

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Shut while the block runs, to all who come to it before the block ends."""
        over = asyncio.Event()
        self._held.add(over)
        try:
            yield
        finally:
            self._held.discard(over)
            over.set()

    async def opened(self) -> None:
        """Return when all who hold it now have let go; at once if nobody does.

        Who takes it meanwhile is not waited for: blocks that follow one another without a break keep back
        one step each, and never all of them.
        """
        for over in list(self._held):
            await over.wait()
