"""Scribe: the thread that writes calls to disk, in order, so that no call waits for a disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec

P = ParamSpec("P")

log = logging.getLogger("sparkvoice.desk")


class Scribe:
    """Use as `async with`: leaving it waits until everything is written. A failure is logged, once a kind:
    a full disk ends no call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scribe")
        self._last: Future[None] | None = None
        self._told: set[str] = set()

    def write(self, what: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the thread do it after what was asked before; never blocks."""
        self._last = self._thread.submit(self._done, lambda: what(*args, **kwargs))

    async def written(self) -> None:
        """Wait until all that was asked for so far is done."""
        if self._last is not None:
            await asyncio.wrap_future(self._last)

    async def __aenter__(self) -> Scribe:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self.written()
        finally:
            self._thread.shutdown(wait=False)

    def _done(self, what: Callable[[], None]) -> None:
        try:
            what()
        except OSError as error:
            told = error.strerror or type(error).__name__
            if told not in self._told:
                self._told.add(told)
                log.error("calls are not written down: %s (%s)", told, error.filename or "no file")
