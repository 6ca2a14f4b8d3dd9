"""Batcher: everybody's next step at once, on one thread, and no step that nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.errors import EngineUnavailable, SynthesisFailed, TTSError
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
        self._asked: dict[asyncio.Future[Answer], Job] = {}  # of the batch that runs
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
        self._fail([*self._asked, *self._waiting], EngineUnavailable(_CLOSED))
        if (driver := self._driver) is not None:
            driver.cancel()
            await asyncio.wait([driver])

    async def _drive(self) -> None:
        """Until nobody asks any more."""
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
                self._asked = {at: job for at, job in self._waiting.items() if id(job) in chosen}
                for future in self._asked:
                    del self._waiting[future]
                answers = await self._worker.run(self._run, list(self._asked.values()))
                for future, answer in zip(self._asked, answers, strict=True):
                    _settle(future, answer)
                self._asked = {}
        except EngineUnavailable as closed:  # the worker's
            self._fail([*self._asked, *self._waiting], closed)
        finally:
            self._driver = None
            # Only if this was cancelled, or `run` raised: nobody may wait for what never comes.
            self._fail(
                [*self._asked, *self._waiting],
                SynthesisFailed("the language model's thread failed: ask again"),
            )

    def _fail(self, futures: Sequence[asyncio.Future[Answer]], error: TTSError) -> None:
        for future in futures:
            _settle(future, error)


def _settle(future: asyncio.Future[Answer], answer: Answer | Exception) -> None:
    if future.done():  # its reader has left
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
