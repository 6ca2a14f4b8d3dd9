"""How a command runs a coroutine, so that Ctrl-C at any moment cancels it and nothing complains of that."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run(make())`; an interrupt cancels it, and KeyboardInterrupt follows when it has ended.

    asyncio's own way raises wherever Python is while the event loop is made or closed, which then complains
    of itself on stderr. A second interrupt is raised at once, for a coroutine that does not end.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(make())
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts.take)
    try:
        made = asyncio.run(interrupts.cancelling(make))
    except asyncio.CancelledError:
        if not interrupts.came:
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts.came:
        raise KeyboardInterrupt
    return made


class _Interrupts:
    def __init__(self) -> None:
        self.came = False
        self._cancel: Callable[[], object] | None = None

    def take(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        if self._cancel is not None:
            self._cancel()

    async def cancelling(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it in the task that an interrupt cancels, or not at all if one has come already."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            if self.came:
                raise asyncio.CancelledError
            return await make()
        finally:
            self._cancel = None
