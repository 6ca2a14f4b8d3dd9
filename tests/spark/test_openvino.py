"""The OpenVINO backend: what it says against float32, cancelling, failure, holding, and its weights."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from tests.spark import tiny_lm
from tts_plugin.config import OpenVinoSettings
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.hf import load_qwen2
from tts_plugin.engines.spark.lm.openvino import PREFILL_TOKENS, properties
from tts_plugin.engines.spark.lm.openvino_net import Net, Past, Piece, Read, Reads
from tts_plugin.engines.spark.lm.openvino_weights import Source, Weights, compressed
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.mapped import MappedTensors
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.errors import SynthesisFailed

PATIENCE_S = 20.0
IDS = tiny_lm.vocabulary()
EVEN = Sampling(temperature=50.0, top_k=0, top_p=1.0)  # every code is about as likely
PROMPT = tuple(number * 7 % tiny_lm.WORDS for number in range(30))
SPEECH = tuple(IDS.semantic_first + number * 11 % tiny_lm.SEMANTIC for number in range(120))


class Watched:
    """A net that records how many pieces each step had, and fails when it is told to."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.steps: list[int] = []
        self.failing = False

    def read(self, pieces: Sequence[Piece]) -> Read:
        self.steps.append(len(pieces))
        if self.failing:
            raise RuntimeError("the plugin gave up, say")
        return self.net.read(pieces)

    def free(self, past: Past) -> None:
        self.net.free(past)

    def rows(self, family: str) -> NDArray[np.float32]:
        return self.net.rows(family)


@pytest.fixture
def watched() -> Iterator[Watched]:
    net = Watched(tiny_lm.net())
    yield net
    assert net.net.free_pages == net.net.pages, "nobody keeps a page"


async def said(lm: SemanticLM, seed: int, prompt: Sequence[int] = PROMPT, most: int = 10_000) -> list[int]:
    codes: list[int] = []
    async with aclosing(lm.generate(prompt, EVEN, seed)) as groups, asyncio.timeout(PATIENCE_S):
        async for group in groups:
            codes += group
            if len(codes) >= most:
                break
    return codes


def logits_of(net: Net, ids: Sequence[int], at_once: int = PREFILL_TOKENS) -> NDArray[np.float32]:
    """Teacher-forced: a row of logits a token, read `at_once` at a time."""
    past = Past()
    rows = [
        net.read([Piece(past, ids[at : at + at_once])], every=True).logits
        for at in range(0, len(ids), at_once)
    ]
    net.free(past)
    return np.concatenate(rows)


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(axis=1) / lengths)


# --- against float32


def restored(made: MappedTensors, name: str) -> torch.Tensor:
    """A matrix as the compressed numbers say it is."""
    rows = made.array(name)
    if rows.dtype == np.uint8:
        halves = np.stack((rows & 0x0F, rows >> 4), axis=-1).reshape(*rows.shape[:2], -1)
        rows = np.where(halves > 7, halves.astype(np.int16) - 16, halves)
    scaled = rows * made.array(f"{name}.scale")
    return torch.from_numpy(scaled.reshape(len(rows), -1).astype(np.float32))


@torch.inference_mode()
def logits_with(made: MappedTensors, tied: bool, ids: Sequence[int]) -> NDArray[np.float32]:
    """What transformers computes with the compressed numbers."""
    model = copy.deepcopy(tiny_lm.model(tied))
    for number, layer in enumerate(model.model.layers):
        attention, mlp, block = layer.self_attn, layer.mlp, f"layers.{number}"
        joined = {
            "qkv": (attention.q_proj, attention.k_proj, attention.v_proj),
            "out": (attention.o_proj,),
            "gate_up": (mlp.gate_proj, mlp.up_proj),
            "down": (mlp.down_proj,),
        }
        for name, parts in joined.items():
            rows = restored(made, f"{block}.{name}").numpy()
            ends = np.cumsum([part.out_features for part in parts])
            for part, some in zip(parts, np.split(rows, ends[:-1]), strict=True):
                part.weight.copy_(torch.from_numpy(some))
    state = model.model(torch.tensor([ids])).last_hidden_state[0]
    return np.asarray((state @ restored(made, "head").T).numpy())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_it_computes_what_transformers_does_with_the_same_numbers(
    weights: Weights, tied: bool, tmp_path: Path
) -> None:
    net = tiny_lm.opened(tiny_lm.saved(tmp_path, tied=tied), tmp_path, weights)
    (place,) = (tmp_path / "openvino").iterdir()
    ids = [*PROMPT, IDS.start_semantic, *SPEECH]
    due = logits_with(MappedTensors(place), tied, ids)
    for at_once in (1, 40, PREFILL_TOKENS):
        found = logits_of(net, ids, at_once)
        assert np.abs(found - due).max() <= 1e-3 * np.abs(due).max()


def test_its_logits_are_near_those_of_float32(tiny_model: Path, tmp_path: Path) -> None:
    ids = Checkpoint.open(tiny_model).vocabulary
    files = ModelFiles(tiny_model)
    source = Source(files, LmConfig.read(files.lm_config), ids, "int8")
    net = Net(source, compressed(source, tmp_path, lambda *_: None), properties(OpenVinoSettings(threads=1)))
    chosen = np.random.default_rng(1).integers(0, ids.semantic_count, 140)
    prompt = [*range(40), ids.start_semantic, *(ids.semantic_first + chosen).tolist()]
    model = load_qwen2(tiny_model, dtype=torch.float32, device="cpu")
    speech = [*range(ids.semantic_first, ids.semantic_first + ids.semantic_count), ids.eos]
    with torch.inference_mode():
        due = model(torch.tensor([prompt])).logits[0].numpy()[:, speech]
    for at_once in (1, PREFILL_TOKENS):
        found = logits_of(net, prompt, at_once)
        assert len(found) > 100
        assert cosines(found, due).min() >= 0.997


# --- alone and among others


def forced(net: Net, streams: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """Logits of each stream, read side by side: first its prompt, then token by token."""
    pasts = [Past() for _ in streams]
    read: list[list[NDArray[np.float32]]] = [[] for _ in streams]
    for at in range(max(map(len, streams)) - len(PROMPT) + 1):
        pieces, who = [], []
        for number, stream in enumerate(streams):
            ids = stream[: len(PROMPT)] if at == 0 else stream[len(PROMPT) + at - 1 : len(PROMPT) + at]
            if ids:
                pieces.append(Piece(pasts[number], ids))
                who.append(number)
        for number, row in zip(who, net.read(pieces).logits, strict=True):
            read[number].append(row)
    for past in pasts:
        net.free(past)
    return [np.stack(rows) for rows in read]


@pytest.mark.parametrize("told", [tiny_lm.EXACT, None], ids=["exact", "usual"])
def test_logits_among_seven_others_are_those_alone(told: tiny_lm.Told | None, tmp_path: Path) -> None:
    net = tiny_lm.opened(tiny_lm.saved(tmp_path), tmp_path, told=told)
    streams = [[*np.roll(PROMPT, number).tolist(), *SPEECH[number : 60 + 5 * number]] for number in range(8)]
    together = forced(net, streams)
    for stream, rows in zip(streams, together, strict=True):
        (alone,) = forced(net, [stream])
        assert np.abs(alone - rows).max() <= 1e-4 * np.abs(alone).max()


@pytest.mark.parametrize("make", [tiny_lm.lm, tiny_lm.openvino_lm], ids=["hf", "openvino"])
async def test_a_stream_says_the_same_codes_alone_and_among_seven_others(
    make: Callable[[], SemanticLM],
) -> None:
    lm = make()
    prompts = [np.roll(PROMPT, number).tolist() for number in range(8)]
    alone = [await said(lm, seed, prompt, 60) for seed, prompt in enumerate(prompts)]
    together = await asyncio.gather(*(said(lm, seed, prompt, 60) for seed, prompt in enumerate(prompts)))
    await lm.aclose()
    assert alone == together
    assert len({tuple(codes) for codes in alone}) == len(alone)


# --- steps


async def test_those_who_speak_share_each_step(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    codes = await asyncio.gather(*(said(lm, seed) for seed in range(4)))
    await lm.aclose()
    assert len(watched.steps) == max(map(len, codes)) + 1, "the last one draws end-of-speech"
    assert sum(watched.steps) == lm.steps == sum(map(len, codes)) + 4


async def test_the_step_after_one_of_four_is_closed_is_of_three(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    streams = [lm.generate(PROMPT, EVEN, seed) for seed in range(10, 14)]
    for _ in range(3):
        await asyncio.gather(*map(anext, streams))
    assert watched.steps[-1] == 4
    leaver, *rest = streams
    reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
    while len(watched.steps) < 4:
        await asyncio.sleep(0)
    steps = lm.steps
    reading[0].cancel()  # in the middle of a step that it shares
    await asyncio.wait(reading)
    await leaver.aclose()
    for _ in range(3):
        await asyncio.gather(*map(anext, rest))
    for stream in rest:
        await stream.aclose()
    await lm.aclose()
    assert watched.steps == [4, 4, 4, 4, 3, 3, 3]
    assert lm.steps == steps + 9, "one token of the leaver's at most is drawn for nobody"


async def test_a_long_prompt_is_read_in_pieces_while_others_speak(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    talker = lm.generate(PROMPT, EVEN, 5)
    await anext(talker)
    long = asyncio.ensure_future(said(lm, 1, [1] * (2 * PREFILL_TOKENS), most=1))
    for _ in range(6):
        await anext(talker)
    await talker.aclose()
    assert await long
    await lm.aclose()
    assert watched.steps.count(2) == 3, "each of its pieces went along in a step of the one who speaks"


async def test_no_step_begins_while_the_lm_is_held(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    talker = lm.generate(PROMPT, EVEN, 5)
    await anext(talker)
    with lm.hold():
        with lm.hold():
            reading = asyncio.ensure_future(anext(talker))
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)
        assert len(watched.steps) == 1
    await reading
    assert len(watched.steps) == 2
    await talker.aclose()
    await lm.aclose()


# --- failure


async def test_a_net_that_fails_ends_its_streams_and_the_next_request_loads_it_anew(watched: Watched) -> None:
    loads = 0

    def load() -> Reads:
        nonlocal loads
        loads += 1
        return watched

    lm = tiny_lm.openvino_lm(load)
    before = await said(lm, 3)
    streams = [lm.generate(PROMPT, EVEN, seed) for seed in (3, 4, 5)]
    lingering = lm.generate(PROMPT, EVEN, 6)
    await asyncio.gather(*map(anext, [*streams, lingering]))
    watched.failing = True
    ends = await asyncio.gather(*map(anext, streams), return_exceptions=True)
    watched.failing = False
    assert all(isinstance(end, SynthesisFailed) and end.retryable for end in ends), ends
    assert "the plugin gave up, say" in str(ends[0])
    with pytest.raises(SynthesisFailed, match="gave up"):
        await anext(lingering)  # what it has read went with the net
    assert loads == 1
    assert await said(lm, 3) == before
    assert loads == 2
    await lm.aclose()


async def test_a_net_that_cannot_be_loaded_is_tried_again() -> None:
    tries = 0

    def load() -> Reads:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("no memory, say")
        return tiny_lm.net()

    lm = tiny_lm.openvino_lm(load)
    with pytest.raises(SynthesisFailed, match="no memory, say"):
        await said(lm, 3)
    assert await said(lm, 3)
    await lm.aclose()


async def test_speech_that_never_ends_ends_at_the_models_context(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    codes: list[int] = []
    with pytest.raises(SynthesisFailed, match="512 tokens"):
        async with aclosing(lm.generate([1] * 490, Sampling(temperature=1.0, top_k=1), 1)) as groups:
            async for group in groups:
                codes += group
    assert len(codes) == 512 - 491 + 1
    await lm.aclose()


async def test_a_token_that_the_model_does_not_have_is_refused(watched: Watched) -> None:
    lm = tiny_lm.openvino_lm(lambda: watched)
    for token in (-1, IDS.id_count + 6):
        with pytest.raises(SynthesisFailed, match=f"token {token}"):
            await said(lm, 1, [1, token])
    assert not watched.steps
    await lm.aclose()


# --- memory


def test_a_sequence_that_is_freed_as_its_read_begins_keeps_no_page(tmp_path: Path) -> None:
    net = tiny_lm.opened(tiny_lm.saved(tmp_path), tmp_path)
    past = Past()
    net.read([Piece(past, PROMPT)])
    net.free(past)  # by a reader who leaves after its step was handed to the thread
    net.read([Piece(past, SPEECH[:1])])
    other = Past()
    net.read([Piece(other, PROMPT)])
    net.free(other)
    assert net.free_pages == net.pages


async def test_memory_is_flat_over_many_utterances_of_which_a_third_is_cancelled() -> None:
    net = tiny_lm.net()
    lm = tiny_lm.openvino_lm(lambda: net)
    process = psutil.Process()

    async def some(first: int) -> int:
        await asyncio.gather(
            *(said(lm, seed, most=10 if seed % 3 == 0 else 60) for seed in range(first, first + 10))
        )
        return int(process.memory_info().rss)

    for first in range(0, 100, 10):
        await some(first)
    pages = net.pages
    sizes = [await some(first) for first in range(100, 500, 10)]
    await lm.aclose()
    slope, _ = np.polyfit(np.arange(len(sizes)) * 10, sizes, 1)
    assert net.pages == pages
    assert slope < 5_000, f"{slope:.0f} bytes an utterance stay"
