"""Batches of steps: who is in one, who is not, and what becomes of those who wait when something fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from tts_plugin.engines.spark.lm.batcher import Batcher
from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.errors import EngineUnavailable, SynthesisFailed
from tts_plugin.worker import SerialWorker

Run = Callable[[Sequence[int]], Sequence[int | Exception]]
PATIENCE_S = 10.0


class Rig:
    """A batcher of numbers, which answers each with its double. batches: as they were run."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.most = 100
        self.fault: BaseException | None = None
        self.threads: set[str] = set()
        self.gate = Gate()
        self.worker = SerialWorker("steps")
        self.batcher: Batcher[int, int] = Batcher(
            self.worker, self.run, lambda jobs: jobs[: self.most], self.gate
        )

    def run(self, jobs: Sequence[int]) -> list[int | Exception]:
        self.threads.add(threading.current_thread().name)
        self.batches.append(list(jobs))
        if self.fault:
            raise self.fault
        return [ValueError("thirteen") if job == 13 else 2 * job for job in jobs]

    async def count(self, first: int, steps: int) -> None:
        for number in range(first, first + steps):
            assert await self.batcher.ask(number) == 2 * number


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.worker.close()
    await made.batcher.aclose()


async def test_those_who_go_on_stay_together_and_one_who_comes_joins_them(rig: Rig) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.count(100, 6))
        tasks.create_task(rig.count(200, 6))
        while len(rig.batches) < 2:
            await asyncio.sleep(0)
        tasks.create_task(rig.count(300, 2))
    assert len(rig.batches) == 6
    assert sorted(map(len, rig.batches)) == [2, 2, 2, 2, 3, 3]
    assert len(rig.threads) == 1


async def test_who_does_not_fit_waits_for_the_next_batch(rig: Rig) -> None:
    rig.most = 2
    await asyncio.gather(*(rig.count(100 * who, 1) for who in range(5)))
    assert rig.batches == [[0, 100], [200, 300], [400]]


async def test_an_error_is_that_of_its_own_job(rig: Rig) -> None:
    answers = await asyncio.gather(*map(rig.batcher.ask, (12, 13, 14)), return_exceptions=True)
    assert [answers[0], answers[2]] == [24, 28]
    assert isinstance(answers[1], ValueError)


async def test_a_job_that_is_cancelled_while_it_waits_is_never_run(rig: Rig) -> None:
    with rig.gate.hold():
        asking = [asyncio.create_task(rig.count(number, 1)) for number in (1, 2)]
        await asyncio.sleep(0.01)
        asking[0].cancel()
        await asyncio.wait([asking[0]])
    await asking[1]
    assert rig.batches == [[2]]


async def test_closing_ends_those_who_wait_even_while_it_is_held(rig: Rig) -> None:
    with rig.gate.hold():
        asking = asyncio.create_task(rig.count(1, 1))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE_S):
            await rig.batcher.aclose()
            with pytest.raises(EngineUnavailable, match="closed"):
                await asking
    with pytest.raises(EngineUnavailable, match="closed"):
        await rig.batcher.ask(2)
    assert rig.batches == []


async def test_a_batch_that_dies_in_an_unknown_way_leaves_nobody_waiting(rig: Rig) -> None:
    loop, told = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    rig.fault = KeyError("a bug, say")
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*map(rig.batcher.ask, (1, 2)), return_exceptions=True)
    assert all(isinstance(answer, SynthesisFailed) and answer.retryable for answer in answers)
    rig.fault = None
    await rig.count(3, 2)


async def test_holds_without_a_break_between_them_let_a_step_begin_at_the_end_of_each(rig: Rig) -> None:
    asked: list[int] = []

    async def count() -> None:
        for number in range(6):
            asked.append(number)
            await rig.batcher.ask(number)

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
        for hold in range(1, 7):
            with rig.gate.hold():
                if hold == 1:
                    tasks.create_task(count())
                while len(asked) < hold:
                    await asyncio.sleep(0)
                for _ in range(5):
                    await asyncio.sleep(0)  # it has come to the gate
                assert len(rig.batches) == hold - 1
    assert len(rig.batches) == 6
