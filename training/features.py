"""What the semantic encoder hears: logarithmic mel bands, in training stretched or squeezed at random."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.sizes import CODEC
from tts_plugin.engines.spark.bicodec.mel import Mel

WARPS = 17
_WARP = 0.18  # how far the bands are stretched or squeezed


class Features:
    """One frame a token."""

    def __init__(self, device: torch.device) -> None:
        self._mel = Mel(CODEC.mel_params, device)
        factors = np.linspace(1 - _WARP, 1 + _WARP, WARPS)
        tables = np.stack([warp(CODEC.mel_params.num_mels, factor) for factor in factors])
        self._warps = torch.from_numpy(tables).float().to(device)

    def mel(self, wave: Tensor) -> Tensor:
        """[B, N] -> [B, bands, frames], as the speaker encoder hears it."""
        return self._mel(wave)

    def of(self, wave: Tensor, warps: Tensor | None = None) -> Tensor:
        """[B, N] -> [B, N // HOP, bands]. warps: which of the WARPS each row has, int64 [B]; None: none."""
        heard = self._mel.features(wave)
        return heard if warps is None else torch.bmm(heard, self._warps[warps])


def warp(bands: int, factor: float) -> NDArray[np.float64]:
    """A table [bands, bands]: band b of the result is taken from the band about `factor` * b."""
    sources = np.clip(np.arange(bands) * factor, 0, bands - 1)
    low = np.floor(sources).astype(int)
    table = np.zeros((bands, bands))
    share = sources - low
    table[low, np.arange(bands)] += 1 - share
    table[np.minimum(low + 1, bands - 1), np.arange(bands)] += share
    return table
