"""What every language model backend promises, checked on each of them.

A new backend is one entry in UNDER_TEST: how it is made, and a prompt that it takes.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import get_args

import pytest
import pytest_asyncio

from tests.spark import tiny_lm
from tts_plugin.config import SparkSettings
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.engine import LMS
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import BadRequest, EngineUnavailable

PATIENCE_S = 10.0
LENGTH = 60  # codes of a scripted answer


@dataclass(frozen=True)
class Case:
    """codes, globals_: how many of each it may say. draws: whether what it says depends on the seed.
    waits: whether it makes no step that its reader has not asked for, in this process."""

    name: str
    make: Callable[[], SemanticLM]
    codes: int
    globals_: int
    draws: bool = True
    waits: bool = True


def _scripted() -> SemanticLM:
    return ScriptedLM([Script(tuple(range(LENGTH)), delay_s=0.001)])


def _vllm() -> SemanticLM:
    from tests.vllm import engines

    return engines.lm()


UNDER_TEST = [
    Case("scripted", _scripted, LENGTH, GLOBAL_TOKENS, draws=False),
    Case("hf", tiny_lm.lm, tiny_lm.SEMANTIC, tiny_lm.GLOBAL),
    Case("openvino", tiny_lm.openvino_lm, tiny_lm.SEMANTIC, tiny_lm.GLOBAL),
    Case("hf static", tiny_lm.static_lm, tiny_lm.SEMANTIC, tiny_lm.GLOBAL),
]
HAS_VLLM = importlib.util.find_spec("vllm") is not None
if HAS_VLLM:
    UNDER_TEST.append(Case("vllm", _vllm, tiny_lm.SEMANTIC, tiny_lm.GLOBAL, waits=False))
# so even that the tiny models speak for a while; vLLM takes no higher temperature
SAMPLING = Sampling(temperature=2.0, top_k=0, top_p=1.0)
PROMPT = (1, 2, 3)
LONG_SEED = 8  # with it the tiny models say more than 20 codes


@pytest.fixture(params=UNDER_TEST, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest_asyncio.fixture
async def lm(case: Case) -> AsyncIterator[SemanticLM]:
    made = case.make()
    yield made
    await made.aclose()


async def said(lm: SemanticLM, seed: int | None = LONG_SEED, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    async with aclosing(lm.generate(prompt, SAMPLING, seed)) as groups, asyncio.timeout(PATIENCE_S):
        return [code async for group in groups for code in group]


def test_every_backend_is_tested_and_can_be_named_in_the_settings() -> None:
    elsewhere = set() if HAS_VLLM else {"vllm"}
    assert set(LMS) <= {case.name for case in UNDER_TEST} | elsewhere
    named, none = get_args(SparkSettings.model_fields["lm"].annotation)
    assert (set(get_args(named)), none) == (set(LMS), type(None))


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not in this environment: make test-vllm runs its part")
def test_vllm_is_among_them() -> None:
    assert "vllm" in {case.name for case in UNDER_TEST}


async def test_it_says_semantic_codes_and_ends(case: Case, lm: SemanticLM) -> None:
    async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
        answer = [group async for group in groups]
    assert all(answer), "no group is empty"
    codes = [code for group in answer for code in group]
    assert len(codes) > 20
    assert all(type(code) is int and 0 <= code < case.codes for code in codes)


async def test_the_same_seed_says_the_same(lm: SemanticLM) -> None:
    assert await said(lm) == await said(lm)


async def test_another_object_says_the_same(case: Case, lm: SemanticLM) -> None:
    other = case.make()
    assert await said(other) == await said(lm)
    await other.aclose()


@pytest.mark.parametrize("case", [case for case in UNDER_TEST if case.draws], ids=lambda case: case.name)
async def test_another_seed_and_none_at_all_say_something_else(lm: SemanticLM) -> None:
    answers = [await said(lm, seed) for seed in (1, 2, LONG_SEED, None, None)]
    assert len({tuple(answer) for answer in answers}) == len(answers)


async def test_requests_at_once_say_what_they_say_alone(lm: SemanticLM) -> None:
    prompts = [(1, 2, 3), (4,), (5, 6, 7, 8, 9)]
    alone = [await said(lm, seed, prompt) for seed, prompt in enumerate(prompts)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(said(lm, seed, prompt)) for seed, prompt in enumerate(prompts)]
    assert [task.result() for task in running] == alone


async def test_a_request_tells_once_that_it_has_begun_and_before_its_first_code(lm: SemanticLM) -> None:
    begun: list[int] = []
    async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED, lambda: begun.append(lm.steps))) as groups:
        assert begun == [], "not before it is asked"
        await anext(groups)
        assert len(begun) == 1
        async for _ in groups:
            pass
    assert len(begun) == 1
    assert begun[0] <= 1


async def test_requests_take_turns(lm: SemanticLM) -> None:
    order: list[int] = []

    async def listen(who: int) -> None:
        async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
            async for _ in groups:
                order.append(who)

    await lm.warm_up()
    async with asyncio.TaskGroup() as tasks:
        for who in range(3):
            tasks.create_task(listen(who))
    counts = [[order[: at + 1].count(who) for who in range(3)] for at in range(len(order))]
    assert max(max(count) - min(count) for count in counts) <= 2


async def test_closing_early_lets_no_step_begin_after_the_one_that_runs(lm: SemanticLM) -> None:
    groups = lm.generate(PROMPT, SAMPLING, LONG_SEED)
    for _ in range(3):
        await anext(groups)
    reading = asyncio.ensure_future(anext(groups))
    await asyncio.sleep(0)  # a step is asked for
    begun = lm.steps
    reading.cancel()
    await asyncio.wait([reading])
    await groups.aclose()
    closed = lm.steps
    assert closed <= begun + 1
    # whatever was left over would run before, or in turns with, this
    before = lm.steps
    await said(lm)
    whole = lm.steps - before
    before = lm.steps
    await said(lm)
    assert lm.steps - before == whole
    with pytest.raises(StopAsyncIteration):
        await anext(groups)


async def test_a_reader_that_lingers_misses_nothing(lm: SemanticLM) -> None:
    async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
        codes = list(await anext(groups))
        await asyncio.sleep(0.05)  # time to run ahead, for one that does
        codes += [code async for group in groups for code in group]
    assert codes == await said(lm)


@pytest.mark.parametrize("case", [case for case in UNDER_TEST if case.waits], ids=lambda case: case.name)
async def test_a_reader_that_lingers_costs_no_steps(lm: SemanticLM) -> None:
    async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
        await anext(groups)
        begun = lm.steps
        await asyncio.sleep(0.02)  # time for a step that nobody asked for
        assert lm.steps == begun


@pytest.mark.parametrize("case", [case for case in UNDER_TEST if case.waits], ids=lambda case: case.name)
async def test_no_step_begins_while_it_is_held(lm: SemanticLM) -> None:
    async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
        await anext(groups)
        begun = lm.steps
        with lm.hold():
            with lm.hold():
                reading = asyncio.ensure_future(anext(groups))
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            assert (lm.steps, reading.done()) == (begun, False)
        assert await reading
        with lm.hold():
            reading = asyncio.ensure_future(anext(groups))
            await asyncio.sleep(0)
            reading.cancel()  # one that leaves need not wait
            await asyncio.wait([reading])
            assert reading.cancelled()


async def test_closing_before_the_first_code_and_twice_is_fine(lm: SemanticLM) -> None:
    groups = lm.generate(PROMPT, SAMPLING, LONG_SEED)
    await groups.aclose()
    await groups.aclose()
    assert lm.steps == 0
    assert await said(lm)


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (Sampling(temperature=-0.1), "temperature"),
        (Sampling(temperature=float("nan")), "temperature"),
        (Sampling(top_k=-1), "top_k"),
        (Sampling(top_p=0), "top_p"),
        (Sampling(top_p=1.1), "top_p"),
        (Sampling(repetition_penalty=0), "repetition_penalty"),
        (Sampling(repetition_penalty=float("inf")), "repetition_penalty"),
    ],
)
async def test_sampling_out_of_range_is_refused(lm: SemanticLM, sampling: Sampling, name: str) -> None:
    async with aclosing(lm.generate(PROMPT, sampling, 1)) as groups:
        with pytest.raises(BadRequest, match=name):
            await anext(groups)
    with pytest.raises(BadRequest, match=name):
        await lm.create_globals(PROMPT, sampling, 1)
    assert await said(lm), "and it goes on"


async def test_a_new_voice_is_32_global_codes_and_the_seed_decides_which(case: Case, lm: SemanticLM) -> None:
    voice = await lm.create_globals(PROMPT, SAMPLING, 1)
    assert len(voice) == GLOBAL_TOKENS
    assert all(type(code) is int and 0 <= code < case.globals_ for code in voice)
    assert await lm.create_globals(PROMPT, SAMPLING, 1) == voice
    if case.draws:
        assert await lm.create_globals(PROMPT, SAMPLING, 2) != voice


async def test_closing_the_lm_ends_its_requests_with_an_error(lm: SemanticLM) -> None:
    async def read_on() -> None:
        async with aclosing(lm.generate(PROMPT, SAMPLING, LONG_SEED)) as groups:
            async for _ in groups:
                began.set()

    began = asyncio.Event()
    running = [asyncio.create_task(read_on()) for _ in range(3)]
    async with asyncio.timeout(PATIENCE_S):
        await began.wait()
        await lm.aclose()
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(end, EngineUnavailable) for end in ended), ended


async def test_a_closed_lm_says_so_and_closing_twice_is_fine(lm: SemanticLM) -> None:
    await lm.warm_up()
    await lm.warm_up()
    await lm.aclose()
    await lm.aclose()
    with pytest.raises(EngineUnavailable, match="closed"):
        await said(lm)
    with pytest.raises(EngineUnavailable, match="closed"):
        await lm.create_globals(PROMPT, SAMPLING, 1)
    with pytest.raises(EngineUnavailable, match="closed"):
        await lm.warm_up()
