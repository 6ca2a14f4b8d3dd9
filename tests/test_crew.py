"""The most urgent call that waits is taken first, whoever came first."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tts_plugin.crew import Crew
from tts_plugin.errors import EngineUnavailable


async def begun(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


class Busy:
    """A crew whose one thread is held until `free`; calls that come meanwhile wait."""

    def __init__(self) -> None:
        self.crew = Crew("test", 1)
        self.done: list[str] = []
        self._free = threading.Event()
        self._held = threading.Event()

    async def hold(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.crew.run(0.0, self._hold))
        await begun(self._held)
        return task

    def free(self) -> None:
        self._free.set()

    def ask(self, due_s: float, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.crew.run(due_s, self.done.append, name))

    def _hold(self) -> None:
        self._held.set()
        self._free.wait(10)


async def test_what_is_due_sooner_is_done_first() -> None:
    busy = Busy()
    holding = await busy.hold()
    asked = [busy.ask(due_s, name) for due_s, name in ((9.0, "later"), (2.0, "b"), (1.0, "a"), (2.0, "c"))]
    await asyncio.sleep(0)
    busy.free()
    await asyncio.gather(holding, *asked)
    assert busy.done == ["a", "b", "c", "later"]
    busy.crew.close()


async def test_a_call_that_is_cancelled_while_it_waits_is_never_run() -> None:
    busy = Busy()
    holding = await busy.hold()
    first, second = busy.ask(1.0, "cancelled"), busy.ask(2.0, "kept")
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    busy.free()
    await asyncio.gather(holding, second)
    assert busy.done == ["kept"]
    busy.crew.close()


async def test_several_threads_work_beside_each_other() -> None:
    crew = Crew("test", 2)
    together = threading.Barrier(2)
    await asyncio.wait_for(asyncio.gather(*(crew.run(0.0, together.wait) for _ in range(2))), 10)
    crew.close()


async def test_closing_tells_who_waits_and_who_comes_later() -> None:
    busy = Busy()
    holding = await busy.hold()
    waiting = busy.ask(1.0, "dropped")
    await asyncio.sleep(0)
    busy.crew.close()
    busy.crew.close()
    busy.free()
    await holding
    for asked in (waiting, busy.ask(1.0, "late")):
        with pytest.raises(EngineUnavailable, match="closed"):
            await asked
    assert busy.done == []


async def test_an_error_is_the_callers_and_the_thread_goes_on() -> None:
    crew = Crew("test", 1)
    with pytest.raises(ZeroDivisionError):
        await crew.run(0.0, lambda: 1 // 0)
    with pytest.raises(EngineUnavailable, match="SystemExit"):
        await crew.run(0.0, lambda: exec("raise SystemExit"))
    assert await crew.run(0.0, len, "four") == 4
    crew.close()
