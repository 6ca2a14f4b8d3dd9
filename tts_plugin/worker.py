"""SerialWorker: the one thread that touches a device, so the event loop never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SerialWorker:
    """Runs blocking calls one after another on a thread of its own.

    A call that is cancelled while it waits is never run; one that runs is finished and its result
    dropped, so cancelling costs at most one call. Keep calls short.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the thread and return its result or raise its exception."""
        future = self._thread.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop the calls that wait and let the thread end; does not block."""
        self._thread.shutdown(wait=False, cancel_futures=True)
