"""The codec in OpenVINO: its samples are torch's, a window's do not depend on its company, and it is kept."""

from __future__ import annotations

import multiprocessing
import os
import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.spark.codecs import TINY_DIR, WIDTHS, golden, tiny, tiny_random, worst
from tts_plugin.config import SparkSettings
from tts_plugin.engines.spark.bicodec import TINY, BiCodec, CodecWindow, load_bicodec
from tts_plugin.engines.spark.bicodec.load import openvino_nets
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.weights import Stored, Weights
from tts_plugin.engines.spark.engine import codec_runtime
from tts_plugin.errors import ConfigError, NotInstalled

IO = golden("tiny/io.npz")
TOLERANCE = 1e-5
TOKENS = 150


@cache
def fixture() -> BiCodec:
    """The codec of the tiny fixture."""
    return load_bicodec(
        TINY_DIR, dtype="float32", device="cpu", overrides=WIDTHS, runtime="openvino", threads=1
    )


@cache
def stressed() -> BiCodec:
    """`tiny_random`, whose far tokens are heard."""
    weights = Weights(Stored(draw(TINY, seed=3, stressed=True)))
    return BiCodec(weights, TINY, openvino_nets(weights, TINY, threads=1))


def windows(count: int, seed: int) -> list[CodecWindow]:
    draws = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        tokens = draws.randrange(1, 120)
        semantic = torch.randint(stressed().semantic_codes, (tokens,), generator=generator)
        voice = torch.randint(stressed().global_codes, (1, stressed().global_count), generator=generator)
        first = draws.randrange(tokens)
        last = draws.randrange(first, tokens) + 1
        made.append(CodecWindow(semantic, stressed().speaker(voice)[0], first, last))
    return made


def test_the_golden_utterance_decodes_as_it_should() -> None:
    wave = fixture().decode(IO["long_semantic"], IO["long_global"].squeeze(1))
    assert worst(wave, IO["long_wave"].squeeze(1)) < TOLERANCE


@pytest.mark.parametrize("seed", range(4))
def test_an_utterance_cut_anywhere_is_the_whole(seed: int) -> None:
    codec = fixture()
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


@pytest.mark.parametrize("seed", range(5))
def test_windows_of_any_shapes_are_those_of_torch(seed: int) -> None:
    some = windows(8, seed)
    for ours, theirs in zip(stressed().decode_windows(some), tiny_random().decode_windows(some), strict=True):
        assert worst(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("count", range(1, 75, 3))
def test_every_number_of_tokens_has_its_exact_length_and_samples(count: int) -> None:
    window = windows(40, 1)[count % 40]
    semantic = window.semantic.repeat(75)[None, :count]
    ours = stressed().decode_window(semantic, window.d_vector[None], 0, count)
    assert ours.shape == (1, 320 * count)
    assert worst(ours, tiny_random().decode_window(semantic, window.d_vector[None], 0, count)) < TOLERANCE


def test_a_window_among_seven_others_is_to_the_bit_what_it_is_alone() -> None:
    some = windows(8, 11)
    for window, wave in zip(some, stressed().decode_windows(some), strict=True):
        assert torch.equal(stressed().decode_windows([window])[0], wave)


def test_what_it_returned_does_not_change_with_the_next_window() -> None:
    first, second = windows(2, 5)
    wave = stressed().decode_windows([first])[0]
    before = wave.clone()
    stressed().decode_windows([second])
    assert torch.equal(wave, before)


def test_bfloat16_is_near_where_the_processor_has_it() -> None:
    weights = Weights(Stored(draw(TINY, seed=3, stressed=True)), torch.bfloat16)
    codec = BiCodec(weights, TINY, openvino_nets(weights, TINY, threads=1))
    [window] = windows(1, 2)
    near, exact = codec.decode_windows([window])[0], stressed().decode_windows([window])[0]
    noise, signal = (near - exact).square().sum(), exact.square().sum()
    assert noise < signal / 1000  # 30 dB


def load(cache: Path, folder: Path = TINY_DIR) -> BiCodec:
    return load_bicodec(
        folder,
        dtype="float32",
        device="cpu",
        overrides=WIDTHS,
        runtime="openvino",
        threads=1,
        cache=cache,
    )


def test_it_is_converted_once_and_then_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "openvino" / ".0123-codec.1.0123abcd.part"  # of one that was killed long ago
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    first = load(tmp_path)
    assert [path.suffix for path in (tmp_path / "openvino").iterdir()] == [""], "nothing half made is left"

    def converts(*_: object) -> None:
        raise AssertionError("it is there already")

    monkeypatch.setattr("tts_plugin.engines.spark.bicodec.openvino_graph.converted", converts)
    again = load(tmp_path)
    [window] = [
        CodecWindow(IO["long_semantic"][0, :40], first.speaker(IO["long_global"].squeeze(1))[0], 5, 25)
    ]
    assert torch.equal(first.decode_windows([window])[0], again.decode_windows([window])[0])


def test_converting_it_tells_nobody_and_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """openvino.convert_model reports to its makers, each time from a fork of the process."""
    started: list[str] = []
    monkeypatch.setattr(multiprocessing.Process, "start", lambda process: started.append(process.name))
    weights = Weights(Stored(draw(TINY, seed=3)))
    openvino_nets(weights, TINY, threads=1)
    assert started == []


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "openvino").write_text("a file where the folder belongs")
    with pytest.raises(ConfigError, match=r"XDG_CACHE_HOME, or set engine\.spark\.codec: torch"):
        load(tmp_path)


def test_other_weights_are_other_graphs(tmp_path: Path) -> None:
    from tts_plugin.engines.spark.bicodec.openvino_graph import place_of

    names = {place_of(tmp_path, fingerprint, tiny().sizes) for fingerprint in ("one", "other")}
    names.add(place_of(tmp_path, "one", TINY))
    assert len(names) == 3


def test_it_runs_the_codec_on_a_cpu_unless_it_is_not_installed_or_torch_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert codec_runtime(SparkSettings()) == "openvino"
    assert codec_runtime(SparkSettings(codec="torch")) == "torch"
    assert codec_runtime(SparkSettings(device="cuda")) == "torch"
    monkeypatch.setattr("tts_plugin.engines.spark.engine.find_spec", lambda _: None)
    assert codec_runtime(SparkSettings()) == "torch"
    with pytest.raises(NotInstalled, match=r"pip install .*openvino.*codec: torch"):
        codec_runtime(SparkSettings(codec="openvino"))
