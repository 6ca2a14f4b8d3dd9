"""One recogniser for all jobs of a worker, behind its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import stat

import numpy as np
import pytest

from agent.bench.caller import spoken
from agent.ears import new_recogniser
from agent.recogniser import LONGEST_S, RATE
from agent.recogniser_process import RecogniserError
from agent.shared_ears import SharedEars, served
from tests.leftovers import held_now
from tts_plugin.audio import silence

pytestmark = pytest.mark.ears


async def test_jobs_share_one_process_and_each_gets_its_own_words() -> None:
    questions = ("Where is my order?", "When are you open?")
    said = await spoken(questions, RATE)
    before = held_now()
    process = new_recogniser(None)
    async with served(process) as path:
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
        jobs = [SharedEars(path) for _ in range(4)]
        # the first one asks before the model is loaded
        heard = await asyncio.gather(*(job.recognise(said[n % 2]) for n, job in enumerate(jobs)))
        assert [one.text for one in heard] == [questions[n % 2] for n in range(4)]
        took_s = sorted(one.took_s for one in heard)
        assert took_s[-1] > took_s[0]  # the last one has waited for the others, and its answer says so
        await asyncio.gather(*(job.aclose() for job in jobs))
        assert process.pid is not None
    assert not path.exists()
    await asyncio.sleep(0.05)
    assert held_now().more_than(before) == {}


async def test_who_leaves_while_waiting_gets_nothing_late_and_keeps_nobody_waiting() -> None:
    (question,) = await spoken(("Where is my order?",), RATE)
    async with served(new_recogniser(None)) as path:
        first, second = SharedEars(path), SharedEars(path)
        await first.recognise(silence(0.5, RATE))
        dropped = asyncio.create_task(first.recognise(np.concatenate([question] * 4)))
        while not first.busy:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        dropped.cancel()
        assert (await second.recognise(question)).text == "Where is my order?"
        assert (await first.recognise(silence(0.5, RATE))).text != "Where is my order?"
        await first.aclose()
        await second.aclose()


async def test_a_killed_recogniser_is_an_error_once_and_the_next_is_heard_by_a_new_one() -> None:
    process = new_recogniser(None)
    async with served(process) as path:
        job = SharedEars(path)
        await job.recognise(silence(0.5, RATE))
        asked = asyncio.create_task(job.recognise(silence(LONGEST_S, RATE)))
        while not process.busy:
            await asyncio.sleep(0)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RecogniserError) as failed:
            await asked
        assert failed.value.retryable
        await job.recognise(silence(0.5, RATE))
        await job.aclose()


async def test_without_its_worker_it_is_a_retryable_error() -> None:
    async with served(new_recogniser(None)) as path:
        job = SharedEars(path)
    with pytest.raises(RecogniserError, match="gone") as failed:
        await job.recognise(silence(0.5, RATE))
    assert failed.value.retryable
