"""The codecs and arrays that the codec's tests share, each made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.spark.recipe import recipe_tensor
from tts_plugin.engines.spark import engine
from tts_plugin.engines.spark.bicodec import (
    PUBLISHED,
    TINY,
    BiCodec,
    load_bicodec,
    random_bicodec,
)
from tts_plugin.engines.spark.bicodec.weights import Init, Spec, Weights, placeholder

DATA = Path(__file__).parent.parent / "data" / "spark"
TINY_DIR = DATA / "tiny"
WIDTHS: dict[str, object] = json.loads((TINY_DIR / "test_overrides.json").read_text(encoding="utf-8"))


@cache
def golden(name: str) -> dict[str, Tensor]:
    """The arrays of one .npz as tensors; they are shared, so never change one."""
    with np.load(DATA / name) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


@cache
def tiny() -> BiCodec:
    """The codec of the tiny fixture."""
    return load_bicodec(TINY_DIR, dtype="float32", device="cpu", overrides=WIDTHS)


@cache
def tiny_random() -> BiCodec:
    """Stressed, so that what is far away is heard."""
    return random_bicodec(TINY, seed=3, stressed=True)


class Recipe:
    """A source of tensors that are functions of their keys."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        return recipe_tensor(key, spec.shape, self._seed) if used else placeholder(spec.shape)


def full_recipe(seed: int) -> BiCodec:
    """A codec of published size: 626 MB, some seconds."""
    return BiCodec(Weights(Recipe(seed)), PUBLISHED)


@contextmanager
def loaded_once(model: Path) -> Iterator[None]:
    """Engines of this model, which nobody changes, share a codec for each setting: OpenVINO compiles for
    seconds, and again at each new length, though all that an engine keeps is beside the codec."""
    real = cache(load_bicodec)

    def load(model_dir: Path, **how: Any) -> BiCodec:
        return real(model_dir, **how) if model_dir == model else load_bicodec(model_dir, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "load_bicodec", load)
        yield


def worst(found: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference; shapes must be equal."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max())
