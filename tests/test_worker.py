"""The thread that touches a device: one call after another, and no call ends it."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from tts_plugin.errors import EngineUnavailable
from tts_plugin.worker import SerialWorker


async def test_calls_run_one_after_another_on_a_thread_of_their_own() -> None:
    worker, threads = SerialWorker("test"), list[str]()

    def note(number: int) -> int:
        threads.append(threading.current_thread().name)
        return number

    assert await asyncio.gather(*(worker.run(note, number) for number in range(5))) == list(range(5))
    assert len(set(threads)) == 1
    assert threads[0].startswith("test")
    worker.close()


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_call_that_would_end_the_process_is_an_error_to_its_caller_and_the_next_runs(
    end: BaseException,
) -> None:
    worker = SerialWorker("test")

    def leave() -> NoReturn:
        raise end

    with pytest.raises(EngineUnavailable, match=type(end).__name__) as told:
        await worker.run(leave)
    assert told.value.retryable
    assert await worker.run(lambda: 7) == 7
    worker.close()


async def test_an_error_of_a_call_is_its_callers_as_it_is() -> None:
    worker = SerialWorker("test")

    def fail() -> NoReturn:
        raise ValueError("a wire is loose")

    with pytest.raises(ValueError, match="a wire is loose"):
        await worker.run(fail)
    worker.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await worker.run(fail)
