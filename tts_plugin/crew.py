"""Crew: a few threads for blocking calls, of which the most urgent that waits is taken first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tts_plugin.worker import answer_of, closed, contained

P = ParamSpec("P")
T = TypeVar("T")

# when it is due, the order among like ones, its result; Any: of calls of every kind
_Waiting = tuple[float, int, Future[Any], Callable[[], Any]]


class Crew:
    """Like SerialWorker, with `threads` of them, for calls that may run beside each other.

    A call that is cancelled while it waits is never run; one that runs is finished and its result dropped.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._closed = False
        self._order = itertools.count()
        self._waiting: list[_Waiting] = []  # a heap
        self._guard = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, due_s: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` before all that wait with a later `due_s`, of like ones the first come; its result or
        its exception. EngineUnavailable for a call that comes after `close`, or waits then."""
        future: Future[T] = Future()
        with self._guard:
            if self._closed:
                raise closed()
            waiting: _Waiting = (due_s, next(self._order), future, partial(call, *args, **kwargs))
            heapq.heappush(self._waiting, waiting)
        self._threads.submit(self._take)  # whoever comes to it takes the most urgent, not this one
        return await answer_of(future, lambda: self._closed)

    def close(self) -> None:
        """Drop the calls that wait and let the threads end; does not block."""
        with self._guard:
            self._closed = True
            dropped = [future for _, _, future, _ in self._waiting]
            self._waiting.clear()
        for future in dropped:
            future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> None:
        with self._guard:
            if not self._waiting:
                return  # closed
            _, _, future, call = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(contained(call))
        except Exception as error:
            future.set_exception(error)
