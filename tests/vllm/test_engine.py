"""vLLM beside the conformance suite: what only it has, its model, its counts, its death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import psutil
import pytest
import pytest_asyncio
import torch

from tests.spark import tiny_lm
from tests.vllm import engines
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.lm.vllm import VllmLM
from tts_plugin.errors import BadRequest, EngineUnavailable, SynthesisFailed

PATIENCE_S = 120.0  # of a start on a busy box
GREEDY = Sampling(temperature=0.0)
EVEN = Sampling(temperature=2.0, top_k=0, top_p=1.0)
IDS = tiny_lm.vocabulary()


@pytest_asyncio.fixture
async def lm() -> AsyncIterator[VllmLM]:
    made = engines.lm()
    yield made
    await made.aclose()


async def said(
    lm: VllmLM, prompt: Sequence[int], sampling: Sampling, seed: int = 1, most: int = 999
) -> list[int]:
    codes: list[int] = []
    async with aclosing(lm.generate(prompt, sampling, seed)) as groups, asyncio.timeout(PATIENCE_S):
        async for group in groups:
            codes += group
            if len(codes) >= most:
                break
    return codes[:most]


@torch.inference_mode()
def expected(prompt: Sequence[int], allowed: Sequence[int]) -> int:
    """The likeliest of `allowed`, by transformers with its whole head."""
    logits = tiny_lm.model(hidden=engines.WIDTH)(torch.tensor([list(prompt)])).logits[0, -1]
    return max(allowed, key=lambda row: float(logits[row]))


def speech(prompt: Sequence[int], most: int) -> list[int]:
    ids = [*prompt, IDS.start_semantic]
    codes: list[int] = []
    while len(codes) < most:
        family = range(IDS.semantic_first, IDS.semantic_first + IDS.semantic_count)
        token = expected(ids, [*family, IDS.eos])
        if token == IDS.eos:
            break
        codes.append(token - IDS.semantic_first)
        ids.append(token)
    return codes


@pytest.mark.parametrize("length", [1, 5, 60, 300])
async def test_greedy_codes_are_those_of_transformers_with_the_whole_head(lm: VllmLM, length: int) -> None:
    prompt = [number * 7 % tiny_lm.WORDS for number in range(length)]
    codes = await said(lm, prompt, GREEDY, most=20)
    assert codes == speech(prompt, 20)
    assert len(set(codes)) > 2, "the test would see a wrong step"


async def test_a_greedy_voice_is_that_of_transformers_phase_by_phase(lm: VllmLM) -> None:
    ids = [1, 2, 3, IDS.start_acoustic]
    ids.append(expected(ids, range(IDS.pitch_value_first, IDS.pitch_value_first + IDS.pitch_value_count)))
    ids.append(expected(ids, range(IDS.speed_value_first, IDS.speed_value_first + IDS.speed_value_count)))
    ids += [IDS.end_acoustic, IDS.start_global]
    begin = len(ids)
    for _ in range(32):
        ids.append(expected(ids, range(IDS.global_first, IDS.global_first + IDS.global_count)))
    voice = await lm.create_globals([1, 2, 3], GREEDY, 1)
    assert [IDS.global_first + code for code in voice] == ids[begin:]
    assert len(set(voice)) > 2, "the test would see a wrong step"


async def test_a_token_is_a_step_and_none_is_made_for_a_reader_that_read_all(lm: VllmLM) -> None:
    codes = await said(lm, [1, 2, 3], EVEN, seed=0)
    assert (lm.steps, lm.orphans) == (len(codes) + 1, 0)


async def test_what_is_made_for_a_reader_that_closes_is_counted_and_little(lm: VllmLM) -> None:
    groups = lm.generate([1, 2, 3], EVEN, 21)
    read = 0
    while read < 3:
        read += len(await anext(groups))
    made = lm.steps
    await groups.aclose()
    assert lm.orphans <= made - read + 1
    others = await said(lm, [1], EVEN, seed=0)
    assert lm.steps == read + lm.orphans + len(others) + 1, "every token was read or is counted"
    # made between the last read and the abort, or in the step that ran then
    assert lm.orphans <= 2


async def test_speech_that_never_ends_ends_at_the_models_context(lm: VllmLM) -> None:
    prompt = [1] * 490
    with pytest.raises(SynthesisFailed, match="512 tokens"):
        await said(lm, prompt, Sampling(temperature=1.0, top_k=1))
    with pytest.raises(SynthesisFailed, match="512 tokens"):
        await said(lm, [1] * 600, GREEDY)


async def test_tokens_and_temperatures_that_it_cannot_take_are_refused(lm: VllmLM) -> None:
    with pytest.raises(SynthesisFailed, match=r"token -1"):
        await said(lm, [-1], GREEDY)
    with pytest.raises(SynthesisFailed, match=f"token {IDS.id_count + 6}"):
        await said(lm, [IDS.id_count + 6], GREEDY)
    with pytest.raises(BadRequest, match="at most 2"):
        await said(lm, [1], Sampling(temperature=2.5))
    assert lm.steps == 0


async def test_a_model_with_a_head_of_its_own_speaks_with_that_and_a_dead_process_is_replaced() -> None:
    lm = VllmLM(lambda: engines.started(tied=False), IDS)
    codes = await said(lm, [1, 2, 3], GREEDY, most=5)
    assert codes != speech([1, 2, 3], 5), "another head"
    reading = asyncio.create_task(said(lm, [1, 2, 3], EVEN, seed=21, most=10_000))
    while lm.steps < 8:
        await asyncio.sleep(0.001)
    (core,) = [child for child in psutil.Process().children() if "EngineCore" in child.name()][-1:]
    core.kill()
    with pytest.raises(EngineUnavailable, match="another one"):
        await reading
    assert await said(lm, [1, 2, 3], GREEDY, most=5) == codes, "by a process that was started for it"
    await lm.aclose()
