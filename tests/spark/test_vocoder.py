"""Streaming a segment through windows and the vocoder gives the samples of decoding it whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import torch

from tts_plugin.audio import Pcm, to_int16
from tts_plugin.config import LatencySettings
from tts_plugin.engines.spark.bicodec import TINY, BiCodec, random_bicodec
from tts_plugin.engines.spark.vocoder import Vocoder
from tts_plugin.engines.spark.window import Cut, Shape, Window, shape_of
from tts_plugin.errors import EngineUnavailable, SynthesisFailed
from tts_plugin.worker import SerialWorker

BALANCED = shape_of(LatencySettings(), "balanced")


@pytest.fixture(scope="module")
def codec() -> BiCodec:
    return random_bicodec(TINY, seed=5)


@pytest.fixture
async def vocoder(codec: BiCodec) -> AsyncIterator[Vocoder]:
    worker = SerialWorker("test codec")
    vocoder = Vocoder(codec, worker)
    yield vocoder
    await vocoder.aclose()
    worker.close()


def utterance(codec: BiCodec, tokens: int, seed: int = 1) -> tuple[list[int], torch.Tensor, Pcm]:
    """Codes, speaker, and the samples of decoding them whole."""
    draw = np.random.default_rng(seed)
    codes = [int(code) for code in draw.integers(0, codec.semantic_codes, tokens)]
    globals_ = torch.tensor(draw.integers(0, codec.global_codes, (1, codec.global_count)))
    whole = codec.decode(torch.tensor([codes]), globals_)[0]
    return codes, codec.speaker(globals_)[0], to_int16(whole.numpy())


def cuts_of(shape: Shape, reach: int, tokens: int) -> list[Cut]:
    """As an engine asks for them, with a buffer that is now full, now empty."""
    window = Window(shape, reach)
    cuts: list[Cut] = []
    for at in range(tokens):
        buffered_s = None if not cuts else [0.0, 3.0, 0.1, 3.0, 3.0][at // 3 % 5]
        cuts += window.push(1, buffered_s)
    return cuts + window.flush()


async def decoded(vocoder: Vocoder, codes: list[int], speaker: torch.Tensor, cut: Cut) -> Pcm:
    piece = codes[cut.ctx_from : cut.ctx_to]
    return await vocoder.decode(piece, speaker, cut.emit_from - cut.ctx_from, cut.emit_to - cut.ctx_from)


async def streamed(vocoder: Vocoder, codes: list[int], speaker: torch.Tensor, shape: Shape) -> Pcm:
    cuts = cuts_of(shape, vocoder.codec.reach, len(codes))
    return np.concatenate([await decoded(vocoder, codes, speaker, cut) for cut in cuts])


async def test_every_length_streams_to_exactly_its_offline_length(vocoder: Vocoder) -> None:
    codes, speaker, _ = utterance(vocoder.codec, 300)
    made: dict[Cut, int] = {}  # utterances of all lengths share most of their pieces
    for tokens in range(1, 301):
        cuts = cuts_of(BALANCED, vocoder.codec.reach, tokens)
        for cut in cuts:
            if cut not in made:
                made[cut] = len(await decoded(vocoder, codes, speaker, cut))
        assert sum(made[cut] for cut in cuts) == tokens * vocoder.codec.hop


@pytest.mark.parametrize("tokens", [1, 30, 47, 48, 120, 300])
async def test_with_the_codecs_whole_reach_as_look_ahead_the_stream_is_the_offline_decode(
    vocoder: Vocoder, tokens: int
) -> None:
    codes, speaker, whole = utterance(vocoder.codec, tokens)
    reach = vocoder.codec.reach
    out = await streamed(vocoder, codes, speaker, Shape(first=8, first_right=reach, right=reach))
    np.testing.assert_allclose(out, whole, atol=1)  # 1e-5 of full scale is a third of a step of int16


async def test_a_streams_samples_do_not_depend_on_what_it_is_batched_with(vocoder: Vocoder) -> None:
    turns = [utterance(vocoder.codec, 60 + 17 * index, index) for index in range(6)]
    alone = [await streamed(vocoder, codes, speaker, BALANCED) for codes, speaker, _ in turns]
    before = vocoder.decodes
    together = await asyncio.gather(
        *(streamed(vocoder, codes, speaker, BALANCED) for codes, speaker, _ in turns)
    )
    assert vocoder.decodes - before < before  # they were batched
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1)


async def test_a_window_cancelled_while_it_waits_is_never_decoded(vocoder: Vocoder) -> None:
    codes, speaker, _ = utterance(vocoder.codec, 200)
    first = asyncio.create_task(vocoder.decode(codes, speaker, 0, 200))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(vocoder.decode(codes[:20], speaker, 0, 20)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await first
    await asyncio.sleep(0.01)
    assert vocoder.decodes == 1
    assert len(await vocoder.decode(codes[:20], speaker, 0, 20)) == 20 * vocoder.codec.hop


async def test_a_bad_window_is_the_error_of_its_own_utterance_and_the_vocoder_lives(vocoder: Vocoder) -> None:
    codes, speaker, _ = utterance(vocoder.codec, 20)
    with pytest.raises(SynthesisFailed, match="semantic token"):
        await vocoder.decode([10**6] * 20, speaker, 0, 20)
    assert len(await vocoder.decode(codes, speaker, 5, 15)) == 10 * vocoder.codec.hop


async def test_closed_it_says_so(codec: BiCodec) -> None:
    worker = SerialWorker("test codec")
    vocoder = Vocoder(codec, worker)
    codes, speaker, _ = utterance(codec, 20)
    await vocoder.aclose()
    await vocoder.aclose()
    with pytest.raises(EngineUnavailable):
        await vocoder.decode(codes, speaker, 0, 20)
    worker.close()
