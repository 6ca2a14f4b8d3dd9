"""A codec with random weights in the published layout: everything but the sound is real.

Values follow the published code's own initialisation. `stressed` weights mix further through time, nearer
to what a trained network does: layer scale 1, the prenet's pointwise weights 2.5 and its convolutions 5 times
as large.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import CONFIG_FILE, PUBLISHED, TINY, CodecSizes
from tts_plugin.engines.spark.bicodec.load import checked_device, checked_dtype
from tts_plugin.engines.spark.bicodec.model import BiCodec
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE, Drawn, Stored, Weights
from tts_plugin.errors import ConfigError

SIZES = {"tiny": TINY, "full": PUBLISHED}

_STRESS = {"pwconv1.weight": 2.5, "pwconv2.weight": 2.5, "dwconv.weight": 5.0, "embed.weight": 5.0}


def random_bicodec(
    sizes: CodecSizes = PUBLISHED,
    *,
    seed: int = 0,
    stressed: bool = False,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> BiCodec:
    """A codec of these sizes; the same seed gives the same weights."""
    tensors = draw(sizes, seed=seed, stressed=stressed)
    return BiCodec(Weights(Stored(tensors), checked_dtype(dtype), checked_device(device)), sizes)


def write_random(
    model_dir: str | Path, size: Literal["tiny", "full"], *, seed: int = 0, stressed: bool = False
) -> None:
    """Write `model_dir`/BiCodec/{config.yaml, model.safetensors}: tiny is 2 MB, full 626 MB.

    Both files appear whole or not at all; a codec that is there already is never overwritten (ConfigError).
    """
    weights, config = Path(model_dir) / WEIGHTS_FILE, Path(model_dir) / CONFIG_FILE
    for path in (weights, config):
        if path.exists():
            raise ConfigError(f"{path} exists already: random weights go to a folder of their own")
    sizes = SIZES[size]
    weights.parent.mkdir(parents=True, exist_ok=True)
    partial = weights.with_suffix(".partial")
    try:
        save_file(draw(sizes, seed=seed, stressed=stressed), partial, metadata={"format": "pt"})
        config.write_text(
            f"# random weights, {size} size\n{yaml.safe_dump(sizes.as_yaml(), sort_keys=False)}",
            encoding="utf-8",
        )
        partial.chmod(0o644)  # safetensors makes it its owner's alone
        os.replace(partial, weights)
    finally:
        partial.unlink(missing_ok=True)


def draw(sizes: CodecSizes, *, seed: int = 0, stressed: bool = False) -> dict[str, Tensor]:
    """A whole checkpoint by key."""
    source = Drawn(seed)
    BiCodec(Weights(source).unused(), sizes)
    return (
        {key: _stressed(key, tensor) for key, tensor in source.tensors.items()}
        if stressed
        else source.tensors
    )


def _stressed(key: str, tensor: Tensor) -> Tensor:
    if not key.startswith("prenet."):
        return tensor
    if key.endswith(".gamma"):
        return torch.ones_like(tensor)
    factors = [factor for name, factor in _STRESS.items() if key.endswith(name)]
    return tensor * factors[0] if factors else tensor
