"""Batcher: everybody's next step at once, on one thread, and no step that nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.errors import EngineUnavailable
from tts_plugin.worker import SerialWorker

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_CLOSED = "this language model is closed: open another engine"


class Batcher(Generic[Job, Answer]):
    """Runs jobs in batches. After each batch everybody it was for is heard before the next begins, so
    those that go on stay together, and one that leaves costs nothing from then on.

    run: jobs in, an answer or an error for each; called on the worker, whose thread is the only one to
    touch the model. fit: of the jobs that wait, in order, those that the next batch takes; at least one.
    gate: no batch begins while it is held.
    """

    def __init__(
        self,
        worker: SerialWorker,
        run: Callable[[Sequence[Job]], Sequence[Answer | Exception]],
        fit: Callable[[Sequence[Job]], Sequence[Job]],
        gate: Gate,
    ) -> None:
        self._worker = worker
        self._run = run
        self._fit = fit
        self._gate = gate
        self._closed = False
        self._waiting: dict[asyncio.Future[Answer], Job] = {}
        self._driver: asyncio.Task[None] | None = None

    async def ask(self, job: Job) -> Answer:
        """The answer to `job`, or its error; EngineUnavailable after `aclose`. Cancelled while it waits,
        it is never run."""
        if self._closed:
            raise EngineUnavailable(_CLOSED)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[future] = job
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive(), name="language model steps")
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def aclose(self) -> None:
        """End whatever waits, with EngineUnavailable; a batch that runs is finished and forgotten."""
        self._closed = True
        if (driver := self._driver) is not None:
            driver.cancel()
            await asyncio.wait([driver])
        self._fail(list(self._waiting))

    async def _drive(self) -> None:
        """Until nobody asks any more."""
        batch: list[asyncio.Future[Answer]] = []
        try:
            while True:
                # Whoever had an answer runs now, and has asked again, or not, when this goes on.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await self._gate.opened()
                if not self._waiting:
                    return
                jobs = self._fit(list(self._waiting.values()))
                chosen = {id(job) for job in jobs}
                batch = [future for future, job in self._waiting.items() if id(job) in chosen]
                asked = [self._waiting.pop(future) for future in batch]
                answers = await self._worker.run(self._run, asked)
                for future, answer in zip(batch, answers, strict=True):
                    _settle(future, answer)
        except asyncio.CancelledError:
            self._fail(batch)
            raise
        except Exception as error:  # the worker's: each who waits for this batch is told
            for future in batch:
                _settle(future, error)
        finally:
            self._driver = None
            if self._waiting and not self._closed:
                self._driver = asyncio.create_task(self._drive(), name="language model steps")

    def _fail(self, futures: Sequence[asyncio.Future[Answer]]) -> None:
        for future in futures:
            _settle(future, EngineUnavailable(_CLOSED))


def _settle(future: asyncio.Future[Answer], answer: Answer | Exception) -> None:
    if future.done():  # its reader has left
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
