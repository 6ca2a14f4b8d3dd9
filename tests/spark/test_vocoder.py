"""Streaming a segment through windows and the vocoder gives the samples of decoding it whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tts_plugin.audio import Pcm, to_int16
from tts_plugin.config import LatencySettings
from tts_plugin.engines.spark.bicodec import TINY, BiCodec, CodecWindow, random_bicodec
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


# --- who comes next


class Gate:
    """Holds the worker until it is opened, so that a test knows what waits; notes each batch."""

    def __init__(self, codec: BiCodec, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []  # the first code of each window
        real = codec.decode_windows

        def gated(windows: Sequence[CodecWindow]) -> list[torch.Tensor]:
            assert self.open.wait(10)
            self.batches.append([int(window.semantic[0]) for window in windows])
            return real(windows)

        monkeypatch.setattr(codec, "decode_windows", gated)


@pytest.fixture
def gate(codec: BiCodec, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(codec, monkeypatch)


class Hand:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Hold:
    """A language model that can be held, and says when it is."""

    def __init__(self) -> None:
        self.held = False
        self.times = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.held, self.times = True, self.times + 1
        try:
            yield
        finally:
            self.held = False


async def test_the_most_urgent_is_decoded_first_and_a_first_window_before_all_who_have_audio(
    codec: BiCodec, gate: Gate
) -> None:
    worker, hand = SerialWorker("test codec"), Hand()
    vocoder = Vocoder(codec, worker, clock=hand)
    vocoder.s_per_token = 1.0  # a device on which batches do not pay
    _, speaker, _ = utterance(codec, 20)
    async with asyncio.TaskGroup() as tasks:

        def ask(code: int, due_s: float | None) -> None:
            tasks.create_task(vocoder.decode([code] * 20, speaker, 0, 20, due_s=due_s))

        ask(1, 103.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is on the worker
        ask(2, 102.0)
        ask(3, 100.5)
        ask(4, None)
        ask(5, 99.0)  # has run dry
        ask(6, 101.0)
        await asyncio.sleep(0)
        gate.open.set()
    assert gate.batches == [[1], [5], [4], [3], [6], [2]]
    await vocoder.aclose()
    worker.close()


async def test_a_first_window_is_decoded_while_the_language_model_is_held_and_no_other_is(
    codec: BiCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, held = Hold(), list[bool]()
    real = codec.decode_windows

    def noted(windows: Sequence[CodecWindow]) -> list[torch.Tensor]:
        held.append(hold.held)
        return real(windows)

    monkeypatch.setattr(codec, "decode_windows", noted)
    worker = SerialWorker("test codec")
    vocoder = Vocoder(codec, worker, hold=hold)
    codes, speaker, _ = utterance(codec, 20)
    await vocoder.decode(codes, speaker, 0, 20)
    await vocoder.decode(codes, speaker, 0, 20, due_s=0.0)
    with pytest.raises(SynthesisFailed):
        await vocoder.decode([10**6] * 20, speaker, 0, 20)
    assert held == [True, False, True]
    assert (hold.held, hold.times) == (False, 2), "and let go after an error, too"
    await vocoder.aclose()
    worker.close()


async def test_what_a_token_costs_is_without_the_wait_for_the_codecs_thread(codec: BiCodec) -> None:
    worker, hand = SerialWorker("test codec"), Hand()
    vocoder = Vocoder(codec, worker, clock=hand)
    codes, speaker, _ = utterance(codec, 20)
    go_on = threading.Event()

    def enrol() -> None:
        assert go_on.wait(10)
        hand.now_s += 5.0

    enrolment = asyncio.create_task(worker.run(enrol))
    await asyncio.sleep(0)
    decoding = asyncio.create_task(vocoder.decode(codes, speaker, 0, 20))
    for _ in range(5):
        await asyncio.sleep(0)  # it has asked, by now
    before = vocoder.s_per_token
    go_on.set()
    await asyncio.gather(enrolment, decoding)
    assert vocoder.s_per_token < before
    await vocoder.aclose()
    worker.close()


async def test_windows_of_eight_speakers_asked_for_at_once_are_their_own(
    vocoder: Vocoder, gate: Gate
) -> None:
    turns = [utterance(vocoder.codec, 40 + index, index) for index in range(8)]
    gate.open.set()
    alone = [await vocoder.decode(codes, speaker, 0, len(codes)) for codes, speaker, _ in turns]
    vocoder.s_per_token = 0.0  # a device on which a batch costs as much as one
    gate.open.clear()
    gate.batches.clear()
    first = asyncio.create_task(vocoder.decode(turns[0][0], turns[0][1], 0, 40, due_s=0.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked = [
        asyncio.create_task(vocoder.decode(codes, speaker, 0, len(codes), due_s=0.0))
        for codes, speaker, _ in turns
    ]
    await asyncio.sleep(0)
    gate.open.set()
    together = await asyncio.gather(*asked)
    await first
    assert [len(batch) for batch in gate.batches] == [1, 8]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1)
    for index in range(1, 8):
        assert np.abs(together[0][:1000].astype(int) - together[index][:1000]).max() > 100


async def test_a_bad_window_fails_alone_and_not_those_it_was_batched_with(
    vocoder: Vocoder, gate: Gate
) -> None:
    codes, speaker, _ = utterance(vocoder.codec, 20)
    vocoder.s_per_token = 0.0
    asked = [
        asyncio.create_task(vocoder.decode(row, speaker, 0, 20, due_s=0.0))
        for row in (codes, codes, [10**6] * 20, codes)
    ]
    await asyncio.sleep(0)
    gate.open.set()
    made = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, SynthesisFailed) for one in made] == [False, False, True, False]
    assert all(len(one) == 20 * vocoder.codec.hop for one in made if isinstance(one, np.ndarray))


async def test_a_codec_that_ends_its_thread_is_an_error_to_its_streams_and_the_next_are_decoded(
    vocoder: Vocoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, speaker, _ = utterance(vocoder.codec, 20)

    def leave(_: Sequence[CodecWindow]) -> list[torch.Tensor]:
        raise SystemExit(3)

    with monkeypatch.context() as broken:
        broken.setattr(vocoder.codec, "decode_windows", leave)
        both = [vocoder.decode(codes, speaker, 0, 20), vocoder.decode(codes, speaker, 0, 20)]
        told = await asyncio.gather(*both, return_exceptions=True)
    assert [isinstance(error, SynthesisFailed) and error.retryable for error in told] == [True, True]
    assert len(await vocoder.decode(codes, speaker, 0, 20)) == 20 * vocoder.codec.hop


async def test_closed_while_a_failed_batch_is_tried_again_all_of_it_is_told(
    codec: BiCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail(windows: Sequence[CodecWindow]) -> list[torch.Tensor]:
        if len(windows) == 1:
            begun.set()
            assert go_on.wait(10)
        raise RuntimeError("a wire is loose")

    monkeypatch.setattr(codec, "decode_windows", fail)
    worker = SerialWorker("test codec")
    vocoder = Vocoder(codec, worker)
    vocoder.s_per_token = 0.0
    codes, speaker, _ = utterance(codec, 20)
    asked = [asyncio.create_task(vocoder.decode(codes, speaker, 0, 20)) for _ in range(3)]
    while not begun.is_set():
        await asyncio.sleep(0.001)
    await vocoder.aclose()
    go_on.set()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in told] == [EngineUnavailable] * 3
    worker.close()
