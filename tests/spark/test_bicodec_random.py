"""Random codecs have the published layout and the published code's initialisation, and are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tts_plugin.engines.spark.bicodec import (
    TINY,
    layout,
    load_bicodec,
    random_bicodec,
    read_sizes,
    write_random,
)
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE
from tts_plugin.errors import ConfigError

SEMANTIC = torch.arange(0, 8192, 200)[None]
VOICE = torch.arange(0, 4096, 128)[None]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Tensor]:
    return draw(TINY, seed=1)


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    write_random(tmp_path, "tiny", seed=5)
    assert read_sizes(tmp_path) == TINY
    loaded = load_bicodec(tmp_path, dtype="float32", device="cpu")
    wave = loaded.decode(SEMANTIC, VOICE)
    assert torch.equal(wave, random_bicodec(TINY, seed=5).decode(SEMANTIC, VOICE))
    assert not torch.equal(wave, random_bicodec(TINY, seed=6).decode(SEMANTIC, VOICE))
    assert sorted(path.name for path in (tmp_path / "BiCodec").iterdir()) == [
        "config.yaml",
        "model.safetensors",
    ]


def test_a_codec_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    weights = tmp_path / WEIGHTS_FILE
    weights.parent.mkdir()
    weights.write_bytes(b"somebody's weights")
    with pytest.raises(ConfigError, match="exists already"):
        write_random(tmp_path, "tiny")
    assert weights.read_bytes() == b"somebody's weights"
    assert len(list(weights.parent.iterdir())) == 1


def test_every_tensor_of_the_layout_is_drawn(drawn: dict[str, Tensor], tmp_path: Path) -> None:
    assert {key: spec.shape for key, spec in layout(TINY).items()} == {
        key: tuple(value.shape) for key, value in drawn.items()
    }
    write_random(tmp_path, "tiny", seed=1)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    assert all(torch.equal(stored[key], value) for key, value in drawn.items())
    assert len(stored) == len(drawn)


def test_the_tiny_size_speaks_the_published_tokens() -> None:
    codec = random_bicodec(TINY)
    assert (codec.semantic_codes, codec.global_codes, codec.global_count) == (8192, 4096, 32)
    assert (codec.rate, codec.hop, codec.feature_width) == (16000, 320, 1024)
    wave = codec.decode(SEMANTIC, VOICE)
    assert 1e-4 < wave.square().mean().sqrt() < 0.5


def test_initial_values_are_those_of_the_published_code(drawn: dict[str, Tensor]) -> None:
    layers = TINY.prenet.vocos_num_layers
    assert (drawn["prenet.vocos_backbone.convnext.0.gamma"] == 1 / layers).all()
    assert (drawn["prenet.downsample.1.1.convnext.0.gamma"] == 1 / 2).all()
    small = drawn["prenet.vocos_backbone.convnext.0.norm.scale.weight"]  # not ones: drawn over afterwards
    assert 0.015 < small.std() < 0.025
    assert not drawn["prenet.vocos_backbone.convnext.0.norm.scale.bias"].any()
    linear = drawn["prenet.linear.weight"]
    assert 0.9 * 16**-0.5 < linear.abs().max() <= 16**-0.5
    assert drawn["prenet.linear.bias"].any()
    assert not drawn["decoder.model.0.bias"].any()
    assert drawn["decoder.model.1.block.1.bias"].any()  # transposed convolutions keep theirs
    direction = drawn["decoder.model.1.block.1.weight_v"]
    lengths = direction.flatten(1).norm(dim=1)
    assert torch.allclose(drawn["decoder.model.1.block.1.weight_g"].flatten(), lengths)
    assert direction.abs().max() <= (16 * 16) ** -0.5
    assert (drawn["decoder.model.5.alpha"] == 1).all()
    assert 0.9 < drawn["quantizer.codebook.weight"].std() < 1.1
    assert 0.015 < drawn["speaker_encoder.perceiver_sampler.latents"].std() < 0.025


def test_stress_touches_the_prenets_mixing_and_nothing_else(drawn: dict[str, Tensor]) -> None:
    stressed = draw(TINY, seed=1, stressed=True)
    changed = {key for key, value in drawn.items() if not torch.equal(value, stressed[key])}
    assert changed == {
        key
        for key in drawn
        if key.startswith("prenet.")
        and key.endswith((".gamma", "pwconv1.weight", "pwconv2.weight", "dwconv.weight", "embed.weight"))
    }
    block = "prenet.vocos_backbone.convnext.0."
    assert (stressed[f"{block}gamma"] == 1).all()
    assert torch.equal(stressed[f"{block}pwconv1.weight"], 2.5 * drawn[f"{block}pwconv1.weight"])
    assert torch.equal(stressed[f"{block}dwconv.weight"], 5 * drawn[f"{block}dwconv.weight"])


def test_random_codecs_refuse_float16() -> None:
    with pytest.raises(ConfigError, match="float16"):
        random_bicodec(TINY, dtype="float16")
