"""The transformers backend: the speech-only head, its place among errors, and loading; the scripted one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from tests.spark import tiny_lm
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.lm.hf import PREFILL_TOKENS, HfLM, dtype_named, load_qwen2
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.sampling import Logits, draw
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import ConfigError, EngineUnavailable, SynthesisFailed

PATIENCE_S = 10.0
GREEDY = Sampling(temperature=0.0)
EVEN = Sampling(temperature=50.0, top_k=0, top_p=1.0)  # every row of the head is about as likely
IDS = tiny_lm.vocabulary()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Two threads would wait for each other at every one of these tiny steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def hooked(hook: Any) -> Iterator[None]:
    """`hook(inputs)` runs in the model's thread before each step, with the ids of the step."""
    handle = tiny_lm.model().model.embed_tokens.register_forward_pre_hook(lambda _, inputs: hook(inputs[0]))
    try:
        yield
    finally:
        handle.remove()


async def said(
    lm: SemanticLM, prompt: Sequence[int], sampling: Sampling = GREEDY, seed: int = 1, most: int = 10_000
) -> list[int]:
    codes: list[int] = []
    async with aclosing(lm.generate(prompt, sampling, seed)) as groups, asyncio.timeout(PATIENCE_S):
        async for group in groups:
            codes += group
            if len(codes) >= most:
                break
    return codes


@torch.inference_mode()
def expected(prompt: Sequence[int], most: int) -> list[int]:
    """Greedy codes the long way: no cache, the whole head, everything but speech struck out after it."""
    ids = list(prompt)
    codes: list[int] = []
    allowed = [*range(IDS.semantic_first, IDS.semantic_first + IDS.semantic_count), IDS.eos]
    while len(codes) < most:
        logits = tiny_lm.model()(torch.tensor([ids])).logits[0, -1]
        token = max(allowed, key=lambda row: float(logits[row]))
        if token == IDS.eos:
            break
        codes.append(token - IDS.semantic_first)
        ids.append(token)
    return codes


@pytest.mark.parametrize("length", [1, 60, PREFILL_TOKENS - 1, PREFILL_TOKENS, 2 * PREFILL_TOKENS + 5])
@pytest.mark.parametrize("make", [tiny_lm.lm, tiny_lm.static_lm])
async def test_steps_with_a_cache_and_a_small_head_say_what_the_whole_model_says(
    length: int, make: Callable[[], HfLM]
) -> None:
    prompt = [number * 7 % tiny_lm.WORDS for number in range(length)]
    lm = make()
    codes = await said(lm, prompt, most=20)
    await lm.aclose()
    assert codes == expected([*prompt, IDS.start_semantic], most=20)
    assert len(set(codes)) > 2, "the test would see a wrong step"


@pytest.mark.parametrize("make", [tiny_lm.lm, tiny_lm.static_lm], ids=["growing", "static"])
async def test_logits_among_seven_others_are_those_alone(
    make: Callable[[], HfLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[Sampling, list[Logits]] = {}

    def noted(logits: Logits, sampling: Sampling, seen: set[int], numbers: np.random.Generator) -> int:
        rows.setdefault(sampling, []).append(logits.copy())
        return draw(logits, sampling, seen, numbers)

    monkeypatch.setattr("tts_plugin.engines.spark.lm.hf.draw", noted)
    streams = [Sampling(temperature=50.0 + number, top_k=0, top_p=1.0) for number in range(8)]
    lm = make()

    def saying(number: int) -> Awaitable[list[int]]:
        prompt = [(3 * number + at) % tiny_lm.WORDS for at in range(5 + number)]
        return said(lm, prompt, streams[number], seed=number, most=20 + 2 * number)

    for number in range(8):
        await saying(number)
    alone = dict(rows)
    rows.clear()
    await asyncio.gather(*map(saying, range(8)))
    await lm.aclose()
    assert sum(map(len, alone.values())) > 60
    for sampling in streams:
        one, other = np.stack(alone[sampling]), np.stack(rows[sampling])
        assert np.abs(one - other).max() <= 1e-6 * np.abs(one).max()


async def test_a_static_cache_is_used_again_and_keeps_nothing_of_the_request_before() -> None:
    lm = tiny_lm.static_lm()
    fresh = await said(lm, [4, 5], most=10)
    await said(lm, [1, 2, 3], EVEN, most=30)
    caches = lm._loaded._static._free  # type: ignore[union-attr]  # loaded, and static
    assert len(caches) == 1
    assert await said(lm, [4, 5], most=10) == fresh
    assert len(caches) == 1
    await lm.aclose()


async def test_a_prompt_that_starts_the_speech_itself_goes_on_from_its_codes() -> None:
    begun = [1, 2, IDS.start_semantic, IDS.semantic_first + 3, IDS.semantic_first + 9]
    lm = tiny_lm.lm()
    assert await said(lm, begun, most=8) == expected(begun, most=8)
    assert await said(lm, [1, 2], most=8) == await said(lm, [1, 2, IDS.start_semantic], most=8)
    await lm.aclose()


async def test_nothing_but_semantic_codes_and_end_of_speech_is_ever_drawn() -> None:
    lm = tiny_lm.lm()
    answers = [await said(lm, [1, 2, 3], EVEN, seed) for seed in range(20)]
    await lm.aclose()
    drawn = {code for codes in answers for code in codes}
    assert drawn == set(range(tiny_lm.SEMANTIC)), "all of them, and the model's other rows never"
    # 1 row of 41 ends it, so 40 codes are usual; a draw from all 123 rows would end or leave the range sooner
    assert 15 < np.mean([len(codes) for codes in answers]) < 100


async def test_a_step_is_one_call_and_a_code() -> None:
    lm = tiny_lm.lm()
    codes = await said(lm, [1, 2, 3], EVEN, seed=3)
    assert lm.steps == len(codes) + 1, "the last one drew end-of-speech"
    await lm.aclose()


async def test_closing_in_a_long_prompt_stops_after_the_piece_that_is_read() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(_: torch.Tensor) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)

    lm = tiny_lm.lm()
    with hooked(wait):
        groups = lm.generate([1] * (3 * PREFILL_TOKENS), GREEDY, 1)
        reading = asyncio.ensure_future(anext(groups))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait([reading], timeout=PATIENCE_S)
        assert reading.cancelled(), "the reader need not wait for the step"
        await groups.aclose()
        leave.set()
    before = lm.steps
    await said(lm, [1], most=1)
    assert (before, lm.steps) == (1, 2)
    await lm.aclose()


async def test_a_new_voice_goes_through_its_phases_in_order() -> None:
    fed: list[int] = []
    lm = tiny_lm.lm()
    with hooked(lambda ids: fed.extend(ids[0].tolist())):
        voice = await lm.create_globals([1, 2, 3], EVEN, 5)
    await lm.aclose()
    head, pitch, speed, tail, codes = fed[:4], fed[4], fed[5], fed[6:8], fed[8:]
    assert head == [1, 2, 3, IDS.start_acoustic]
    assert 0 <= pitch - IDS.pitch_value_first < IDS.pitch_value_count
    assert 0 <= speed - IDS.speed_value_first < IDS.speed_value_count
    assert tail == [IDS.end_acoustic, IDS.start_global]
    assert [code - IDS.global_first for code in codes] == list(voice[:-1]), "the last one need not be read"
    assert len(voice) == GLOBAL_TOKENS
    assert len(set(voice)) > 10


async def test_an_error_in_a_step_is_synthesis_failed_and_the_next_request_goes_on() -> None:
    broken = True

    def fail(_: torch.Tensor) -> None:
        if broken:
            raise RuntimeError("out of memory, say")

    lm = tiny_lm.lm()
    with hooked(fail):
        with pytest.raises(SynthesisFailed, match="out of memory, say"):
            await said(lm, [1, 2, 3])
        broken = False
        assert await said(lm, [1, 2, 3], most=5)
    await lm.aclose()


async def test_a_token_that_the_model_does_not_have_is_refused_before_it_reaches_the_device() -> None:
    lm = tiny_lm.lm()
    for token in (-1, IDS.id_count + 6):
        with pytest.raises(SynthesisFailed, match=f"token {token}"):
            await said(lm, [1, token])
    assert lm.steps == 0
    await lm.aclose()


async def test_speech_that_never_ends_ends_at_the_models_context() -> None:
    lm = tiny_lm.lm()
    codes: list[int] = []
    sampling = Sampling(temperature=1.0, top_k=1)  # the likeliest, for ever
    with pytest.raises(SynthesisFailed, match="512 tokens"):
        async with aclosing(lm.generate([1] * 490, sampling, 1)) as groups:
            async for group in groups:
                codes += group
    assert len(codes) == 512 - 491 + 1
    await lm.aclose()


async def test_a_tokenizer_of_another_model_is_refused() -> None:
    grown = tiny_lm.vocabulary()
    object.__setattr__(grown, "semantic_count", grown.semantic_count + 100)
    lm = HfLM(tiny_lm.model, grown)
    with pytest.raises(ConfigError, match="not of one model"):
        await lm.warm_up()
    await lm.aclose()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_saved_model_is_loaded_in_the_dtype_asked_for(tmp_path: Path, dtype: str, tied: bool) -> None:
    folder = tiny_lm.saved(tmp_path, tied=tied)
    model = load_qwen2(folder, dtype=dtype_named(dtype, "cpu"), device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype_named(dtype, "cpu")}
    assert not model.training
    lm = HfLM.open(folder, IDS, dtype=dtype)
    codes = await said(lm, [1, 2, 3], EVEN)
    if dtype == "float32" and tied:
        memory = tiny_lm.lm()
        assert codes == await said(memory, [1, 2, 3], EVEN)
        await memory.aclose()
    assert len(codes) > 1
    await lm.aclose()


def test_the_default_dtype_is_float32_on_a_cpu_and_bfloat16_on_a_gpu() -> None:
    assert dtype_named(None, "cpu") is torch.float32
    assert dtype_named(None, "cuda:0") is torch.bfloat16


@pytest.mark.parametrize("name", ["float16", "fp16", "half"])
def test_half_precision_is_refused_and_the_error_says_why(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="garbage or nothing; use bfloat16 or float32"):
        HfLM.open(tmp_path, IDS, dtype=name)


def test_an_unknown_dtype_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='did you mean "bfloat16"'):
        HfLM.open(tmp_path, IDS, dtype="bfloat61")


def test_a_gpu_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match='use device "cpu"'):
        HfLM.open(tmp_path, IDS, device="cuda")


def _lose(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pickle(folder: Path) -> None:
    _lose(folder)
    torch.save(tiny_lm.model().state_dict(), folder / "pytorch_model.bin")


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lack(folder: Path) -> None:
    state = {key: tensor for key, tensor in tiny_lm.model().state_dict().items() if ".1.mlp.up" not in key}
    tiny_lm.model().save_pretrained(folder, state_dict=state)


def _reshape(folder: Path) -> None:
    state = dict(tiny_lm.model().state_dict())
    state["model.norm.weight"] = torch.ones(16)
    tiny_lm.model().save_pretrained(folder, state_dict=state)


def _rename(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"llama"'))


def _unconfigure(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose, "model.safetensors"),
        (_pickle, "safetensors"),
        (_cut, "model check"),
        (_lack, "model.layers.1.mlp.up_proj.weight"),
        (_reshape, "model.norm.weight"),
        (_rename, '"llama"'),
        (_unconfigure, "SPARK_TTS_MODEL"),
    ],
)
async def test_a_damaged_model_is_refused_in_words(tmp_path: Path, damage: Any, words: str) -> None:
    folder = tiny_lm.saved(tmp_path)
    damage(folder / "LLM")
    lm = HfLM.open(folder, IDS)
    with pytest.raises(ConfigError, match=words):
        await lm.warm_up()
    await lm.aclose()


async def test_nothing_of_a_model_directory_is_run(tmp_path: Path) -> None:
    """A directory that brings code of its own loads as a plain Qwen2; the code stays text."""
    folder = tiny_lm.saved(tmp_path)
    (folder / "LLM" / "evil.py").write_text("raise SystemExit('it ran')")
    config = folder / "LLM" / "config.json"
    config.write_text(
        config.read_text().replace("{", '{"auto_map": {"AutoModelForCausalLM": "evil.Evil"},', 1)
    )
    assert type(load_qwen2(folder, dtype=torch.float32, device="cpu")) is Qwen2ForCausalLM


async def test_a_script_that_ends_at_once_says_nothing() -> None:
    assert await said(ScriptedLM([Script(())]), [1]) == []


async def test_a_script_may_go_on_for_ever() -> None:
    lm = ScriptedLM([Script((7,), then="again")])
    assert await said(lm, [1], most=500) == [7] * 500
    assert lm.steps in (501, 502), "the prompt, and a step a code"


async def test_a_script_that_hangs_can_be_closed_by_its_reader_and_by_its_lm() -> None:
    lm = ScriptedLM([Script((1, 2), then="hang")])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            async with aclosing(lm.generate([1], GREEDY, 1)) as groups:
                assert [await anext(groups), await anext(groups)] == [[1], [2]]
                await anext(groups)
    assert lm.live == 0
    waiting = asyncio.ensure_future(said(lm, [1]))
    await asyncio.sleep(0.01)
    await lm.aclose()
    with pytest.raises(EngineUnavailable):
        await waiting


async def test_a_script_that_fails_says_its_codes_first() -> None:
    lm = ScriptedLM([Script((4, 5), then="fail")])
    async with aclosing(lm.generate([1], GREEDY, 1)) as groups:
        assert [await anext(groups), await anext(groups)] == [[4], [5]]
        with pytest.raises(SynthesisFailed):
            await anext(groups)


async def test_each_request_gets_the_next_script_and_all_are_recorded() -> None:
    lm = ScriptedLM([Script((1,)), Script((2, 3, 4), group=2)])
    groups = lm.generate([9, 8], GREEDY, 5)
    assert await anext(groups) == [1]
    assert (lm.live, lm.requests[0].closed) == (1, False)
    await groups.aclose()
    async with aclosing(lm.generate([7], GREEDY, None)) as later:
        assert [group async for group in later] == [[2, 3], [4]]
    assert await said(lm, [7]) == [2, 3, 4], "the last one again"
    assert [(request.prompt, request.seed) for request in lm.requests] == [
        ((9, 8), 5),
        ((7,), None),
        ((7,), 1),
    ]
    assert lm.live == 0


def test_a_script_of_nothing_cannot_go_on_for_ever() -> None:
    with pytest.raises(ValueError, match="nothing to say"):
        Script((), then="again")
