"""Weights and a sound that are functions of a name and a number, so that a full-size codec needs no file."""

from __future__ import annotations

import zlib
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def recipe_tensor(key: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """The tensor `key` of a checkpoint; numpy promises that RandomState's stream never changes."""
    noise = np.random.RandomState((zlib.crc32(key.encode()) + seed) % 2**32).standard_normal
    match key.rsplit(".", 1)[-1]:
        case "num_batches_tracked":
            return torch.zeros(shape, dtype=torch.int64)
        case "cluster_size":
            values = np.zeros(shape)
        case "running_mean":
            values = 0.1 * noise(shape)
        case "running_var":
            values = 0.5 + np.abs(noise(shape))
        case "weight_g":
            values = 0.6 + 0.06 * noise(shape)
        case "alpha":
            values = 1.0 + 0.2 * np.abs(noise(shape))
        case "gamma":
            values = 0.5 + 0.1 * noise(shape)
        case "latents":
            values = 0.3 * noise(shape)
        case "bias":
            values = 0.1 * noise(shape) + (1.0 if key.endswith("norm.scale.bias") else 0.0)
        case _ if key.endswith("codebook.weight"):
            values = noise(shape)
        case _ if len(shape) > 1:
            values = noise(shape) / np.sqrt(prod(shape[1:]))
        case _:  # of a norm
            values = 1.0 + 0.1 * noise(shape)
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def recipe_wave(samples: int, seed: int, rate: int = 16000) -> NDArray[np.float64]:
    """Something like a voice: eight harmonics of a wavering pitch, a slow envelope, a little noise."""
    noise = np.random.RandomState(seed)
    time = np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 1.7 * time)) / rate
    voice = sum(0.6**k * np.sin((k + 1) * phase + k) for k in range(8))
    envelope = 0.55 + 0.45 * np.sin(2 * np.pi * 3.1 * time + 0.5)
    wave: NDArray[np.float64] = 0.12 * voice * envelope + 0.004 * noise.standard_normal(samples)
    return wave
