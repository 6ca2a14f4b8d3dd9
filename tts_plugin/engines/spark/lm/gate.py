"""Gate: what lets others ask that no step of a language model begins for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Open unless somebody holds it. Belongs to one event loop at a time."""

    def __init__(self) -> None:
        self._holders = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Shut while the block runs, and until the last of several blocks ends."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                for future in self._waiting:
                    if not future.done():
                        future.set_result(None)

    async def opened(self) -> None:
        """Return when nobody holds it; at once if so."""
        while self._holders:
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
