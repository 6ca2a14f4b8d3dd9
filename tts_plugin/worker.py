"""SerialWorker: the one thread that touches a device, so the event loop never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from tts_plugin.errors import EngineUnavailable

P = ParamSpec("P")
T = TypeVar("T")


class SerialWorker:
    """Runs blocking calls one after another on a thread of its own.

    A call that is cancelled while it waits is never run; one that runs is finished and its result
    dropped, so cancelling costs at most one call. Keep calls short.
    """

    def __init__(self, name: str) -> None:
        self._closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the thread and return its result or raise its exception; EngineUnavailable for a
        call that comes after `close`, or waits then, or that tried to end the thread or the process."""
        if self._closed:
            raise closed()
        future = self._thread.submit(contained, partial(call, *args, **kwargs))
        return await answer_of(future, lambda: self._closed)

    def close(self) -> None:
        """Drop the calls that wait and let the thread end; does not block."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


async def answer_of(future: Future[T], is_closed: Callable[[], bool]) -> T:
    """The result of a call on a thread, or its exception; EngineUnavailable if it was dropped as the worker
    closed. is_closed: whether it has."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if is_closed() and task is not None and not task.cancelling():
            raise closed() from None  # the waiting call was dropped, not who waits
        raise


def contained(call: Callable[[], T]) -> T:
    """A SystemExit of some library would reach the event loop, and end every other call with it."""
    try:
        return call()
    except Exception:
        raise
    except BaseException as end:
        raise EngineUnavailable(f"the worker's call ended in {type(end).__name__}; try again") from end


def closed() -> EngineUnavailable:
    """What is told to calls of a worker that is closed."""
    return EngineUnavailable("this engine is closed: open another one")
