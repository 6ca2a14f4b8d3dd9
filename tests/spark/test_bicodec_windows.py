"""Windows with enough context are the whole, rows do not hear each other, and bad tokens are told apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.spark.codecs import golden, tiny, tiny_random, worst
from tts_plugin.engines.spark.bicodec import (
    PUBLISHED,
    TINY,
    BiCodec,
    CodecSizes,
    CodecWindow,
    random_bicodec,
    shapes,
)
from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.generator import Generator
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.weights import Listing, Stored, Weights
from tts_plugin.errors import BadRequest

IO = golden("tiny/io.npz")
TOLERANCE = 1e-5
TOKENS = 150


def tokens(rows: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Semantic and global tokens for `tiny_random`."""
    generator = torch.Generator().manual_seed(seed)
    codec = tiny_random()
    return (
        torch.randint(codec.semantic_codes, (rows, count), generator=generator),
        torch.randint(codec.global_codes, (rows, codec.global_count), generator=generator),
    )


@pytest.mark.parametrize("seed", range(8))
def test_an_utterance_cut_anywhere_is_the_whole(seed: int) -> None:
    codec = tiny()
    semantic, whole = IO["long_semantic"], IO["long_wave"].squeeze(1)
    voice = codec.speaker(IO["long_global"].squeeze(1))
    draws = random.Random(seed)
    cuts = sorted({0, TOKENS, *(draws.randrange(TOKENS) for _ in range(draws.randrange(1, 9)))})
    pieces = []
    for first, last in pairwise(cuts):
        start, stop = max(0, first - codec.reach), min(TOKENS, last + codec.reach)
        window = semantic[:, start:stop]
        pieces.append(codec.decode_window(window, voice, first - start, last - start))
    assert worst(torch.cat(pieces, dim=1), whole) < TOLERANCE


def far_hearing() -> Weights:
    """Kernels of 7 have their two outermost taps only, so that what is far away is not faint."""
    tensors = draw(TINY, seed=3, stressed=True)
    for value in tensors.values():
        if value.dim() == 3 and value.shape[-1] == 7:
            value[..., 1:-1] = 0
    return Weights(Stored(tensors))


def changes(network: Callable[[Tensor], Tensor], before: Tensor, at: int, amount: float) -> Tensor:
    """Which output frames (or tokens' samples) [T, ...] differ when input frame `at` of [1, C, T] does."""
    after = before.clone()
    after[..., at] += amount
    return (network(before) != network(after)).flatten(1).any(dim=1)


def test_the_prenets_reach_is_the_least_that_is_enough() -> None:
    prenet = Prenet(replace(far_hearing(), dtype=torch.float64).at("prenet"), TINY.prenet)
    middle = prenet.reach + 3
    before = torch.randn(1, 32, 2 * middle + 1, generator=torch.Generator().manual_seed(0)).double()
    steering = torch.ones(1, 32).double()
    changed = changes(lambda x: prenet(x, steering)[0].T, before, middle, 1.0)
    assert torch.equal(changed.nonzero().flatten()[[0, -1]], torch.tensor([3, 2 * prenet.reach + 3]))


def test_the_generators_reach_is_the_least_that_is_enough() -> None:
    generator = Generator(far_hearing().at("decoder"), TINY.decoder)
    middle = generator.reach + 3
    before = torch.randn(1, 32, 2 * middle + 1, generator=torch.Generator().manual_seed(0))
    changed = changes(lambda x: generator(x)[0].reshape(-1, TINY.decoder.hop), before, middle, 1e4)
    assert torch.equal(changed.nonzero().flatten()[[0, -1]], torch.tensor([3, 2 * generator.reach + 3]))


def test_each_layer_reads_only_the_frames_that_the_samples_depend_on() -> None:
    """What it costs to generate tokens 10 .. 25 of 36, in tokens: the last layers are nearly all of it."""
    spans = Generator(Weights(Listing()).unused().at("decoder"), PUBLISHED.decoder).spans(10, 26, 36)
    rates = [1, 1, *[8] * 4, *[40] * 4, *[160] * 4, *[320] * 5]  # of a layer's input
    assert spans[0] == (0, 36)
    assert spans[-1] == (10 * 320, 26 * 320)
    widths = [(stop - start) / rate for (start, stop), rate in zip(spans, rates, strict=True)]
    assert widths == sorted(widths, reverse=True)
    assert max(widths[6:]) < 19
    assert max(widths[10:]) < 17


@pytest.mark.parametrize(
    ("sizes", "prenet", "generator"), [(PUBLISHED, 57, 10), (TINY, 30, 10)], ids=["full", "tiny"]
)
def test_reach_comes_from_the_sizes(sizes: CodecSizes, prenet: int, generator: int) -> None:
    codec = BiCodec(Weights(Listing()).unused(), sizes)
    assert (codec.prenet_reach, codec.generator_reach) == (prenet, generator)
    assert codec.reach == prenet + generator


def test_more_context_is_nearer_to_the_whole() -> None:
    codec = tiny_random()
    semantic, voice = tokens(1, 100)
    d_vector = codec.speaker(voice)
    whole = codec.decode(semantic, voice)[:, : 50 * codec.hop]
    errors = [
        worst(codec.decode_window(semantic[:, : 50 + right], d_vector, 0, 50), whole)
        for right in (0, 2, 8, codec.reach)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < TOLERANCE < errors[2]


@pytest.mark.parametrize("count", range(1, 41))
def test_every_number_of_tokens_has_its_exact_length(count: int) -> None:
    codec = tiny_random()
    semantic, voice = tokens(1, count)
    wave = codec.decode(semantic, voice)
    assert wave.shape == (1, 320 * count)
    assert wave.dtype == torch.float32
    assert wave.abs().max() <= 1
    assert wave.abs().max() > 0


def test_no_tokens_are_no_samples() -> None:
    semantic, voice = tokens(2, 0)
    assert tiny_random().decode(semantic, voice).shape == (2, 0)


def test_a_row_of_a_batch_is_the_row_alone() -> None:
    codec = tiny_random()
    semantic, voices = tokens(5, 61)
    together = codec.decode(semantic, voices)
    for at in range(5):
        assert worst(together[at], codec.decode(semantic[at : at + 1], voices[at : at + 1])[0]) < TOLERANCE


def some_windows(seed: int) -> list[CodecWindow]:
    draws = random.Random(seed)
    windows = []
    for at in range(draws.randrange(2, 7)):
        count = draws.randrange(1, 90)
        semantic, voice = tokens(1, count, seed=100 * seed + at)
        first = draws.randrange(count)
        windows.append(
            CodecWindow(
                semantic[0], tiny_random().speaker(voice)[0], first, draws.randrange(first, count) + 1
            )
        )
    return windows


def of_fixed_shapes() -> BiCodec:
    """tiny_random with the batches of a GPU."""
    return BiCodec(Weights(Stored(draw(TINY, seed=3, stressed=True))), TINY, fixed_shapes=True)


@pytest.mark.parametrize("fixed", [False, True], ids=["as they are", "fixed shapes"])
@pytest.mark.parametrize("seed", range(6))
def test_windows_of_any_shapes_decode_together_as_alone(seed: int, fixed: bool) -> None:
    codec = of_fixed_shapes() if fixed else tiny_random()
    windows = some_windows(seed)
    for window, wave in zip(windows, codec.decode_windows(windows), strict=True):
        alone = codec.decode_window(
            window.semantic[None], window.d_vector[None], window.emit_from, window.emit_to
        )
        assert wave.shape == ((window.emit_to - window.emit_from) * codec.hop,)
        assert worst(wave, alone[0]) < TOLERANCE


def test_with_fixed_shapes_the_networks_see_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[torch.Size] = set()
    run = Generator.__call__

    def watched(generator: Generator, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        seen.add(x.shape)
        return run(generator, x, lengths)

    monkeypatch.setattr(Generator, "__call__", watched)
    codec = of_fixed_shapes()
    for seed in range(20):
        codec.decode_windows(some_windows(seed))
    assert {shape[0] for shape in seen} <= set(shapes.ROWS)
    assert {shape[2] for shape in seen} <= set(shapes.TOKENS)
    assert len(seen) > 2


def test_a_size_beyond_the_last_is_a_multiple_of_it() -> None:
    assert [shapes.rounded(count, (4, 10)) for count in (1, 4, 5, 10, 11, 21)] == [4, 4, 10, 10, 20, 30]


def test_padding_a_row_with_tokens_is_not_the_same_as_its_end() -> None:
    """Why the batch has masks: without them a shorter row would hear its padding."""
    codec = tiny_random()
    semantic, voice = tokens(1, 60)
    padded = torch.nn.functional.pad(semantic[:, :40], (0, 20))
    ended = codec.decode(semantic[:, :40], voice)
    assert worst(codec.decode(padded, voice)[:, : ended.shape[1]], ended) > 100 * TOLERANCE


def test_no_windows_are_no_waves() -> None:
    assert tiny_random().decode_windows([]) == []


@pytest.mark.parametrize(
    ("semantic", "said"),
    [
        (torch.tensor([[1, 64]]), "64 is no semantic token: they are 0 to 63"),
        (torch.tensor([[-1, 3]]), "-1 is no semantic token"),
        (torch.tensor([[1.0]]), r"semantic tokens are integers in 2 dimensions, not float32 \[1, 1\]"),
        (torch.tensor([1, 2]), "semantic tokens are integers in 2 dimensions"),
        (torch.tensor([[True]]), "semantic tokens are integers"),
    ],
)
def test_bad_semantic_tokens_are_refused(semantic: Tensor, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        tiny().decode(semantic, torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("voice", "said"),
    [
        (torch.zeros(1, 3, dtype=torch.int64), "a voice has 4 global tokens, not 3"),
        (torch.full((1, 4), 64), "64 is no global token: they are 0 to 63"),
        (torch.zeros(2, 4, dtype=torch.int64), r"speaker vectors should be \[1, 24\], not float32 \[2, 24\]"),
    ],
)
def test_bad_global_tokens_are_refused(voice: Tensor, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        tiny().decode(torch.zeros(1, 5, dtype=torch.int64), voice)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (2, 1), (0, 6)])
def test_tokens_outside_the_window_cannot_be_emitted(first: int, last: int) -> None:
    codec = tiny()
    voice = codec.speaker(torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(BadRequest, match="cannot be emitted from a window of 5"):
        codec.decode_window(torch.zeros(1, 5, dtype=torch.int64), voice, first, last)


def test_a_window_of_a_batch_emits_something() -> None:
    codec = tiny()
    voice = codec.speaker(torch.zeros(1, 4, dtype=torch.int64))[0]
    for count, at in ((5, 5), (0, 0)):
        window = CodecWindow(torch.zeros(count, dtype=torch.int64), voice, at, at)
        with pytest.raises(BadRequest, match="cannot be emitted"):
            codec.decode_windows([window])


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (torch.zeros(1, 512), "at least 513 samples, not 512"),
        (torch.zeros(4000), "float samples"),
        (torch.zeros(1, 4000, dtype=torch.int16), "float samples"),
        (torch.full((1, 4000), torch.nan), "no number"),
    ],
)
def test_bad_reference_clips_are_refused(clip: Tensor, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        tiny().encode_global(clip)


def test_bad_features_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"features are \[B, T, 24\]"):
        tiny().encode_semantic(torch.zeros(1, 4, 25))
    with pytest.raises(BadRequest, match="no number"):
        tiny().encode_semantic(torch.full((1, 4, 24), torch.inf))
    assert tiny().encode_semantic(torch.zeros(2, 0, 24)).shape == (2, 0)


def test_any_integers_do_as_tokens() -> None:
    codec = tiny()
    semantic, voice = IO["semantic_tokens"], IO["global_tokens"].squeeze(1)
    assert voice.dtype == torch.int32
    assert torch.equal(codec.decode(semantic.to(torch.int16), voice), codec.decode(semantic, voice.long()))


def test_two_rounds_of_quantising_double_the_global_tokens() -> None:
    twice = replace(TINY, speaker_encoder=replace(TINY.speaker_encoder, fsq_num_quantizers=2))
    codec = random_bicodec(twice)
    clip = torch.randn(2, 8000, generator=torch.Generator().manual_seed(0)) * 0.1
    found = codec.encode_global(clip)
    assert found.shape == (2, codec.global_count) == (2, 64)
    assert codec.speaker(found).shape == (2, 32)
