"""ECAPA-TDNN as far as its frame features: what tells speakers apart in a mel spectrogram."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import RES2_PARTS, SpeakerSizes
from tts_plugin.engines.spark.bicodec.layers import Affine, Conv, Linear
from tts_plugin.engines.spark.bicodec.weights import Weights

_DILATIONS = (2, 3, 4)
_SQUEEZED = 128  # channels of the squeeze-excitation and of the attentive pooling


class ConvNorm:
    """Convolution, ReLU, batch norm, in this order."""

    def __init__(self, weights: Weights, inputs: int, outputs: int, kernel: int) -> None:
        self._conv = Conv(weights.at("conv"), inputs, outputs, kernel)
        self._norm = Affine(weights.at("bn"), outputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(self._conv(x).relu_())


class Res2:
    """Channel groups, each convolved together with the result for the one before; the last passes through."""

    def __init__(self, weights: Weights, channels: int, dilation: int) -> None:
        width = channels // RES2_PARTS
        parts = range(RES2_PARTS - 1)
        self._convs = [Conv(weights.at("convs", at), width, width, 3, dilation=dilation) for at in parts]
        self._norms = [Affine(weights.at("bns", at), width) for at in parts]

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.chunk(RES2_PARTS, dim=1)
        done: list[Tensor] = []
        for part, conv, norm in zip(parts[:-1], self._convs, self._norms, strict=True):
            done.append(norm(conv(part + done[-1] if done else part).relu_()))
        return torch.cat((*done, parts[-1]), dim=1)


class Excitation:
    """Scales each channel by what the mean over time of all channels says."""

    def __init__(self, weights: Weights, channels: int) -> None:
        self._squeeze = Linear(weights.at("linear1"), channels, _SQUEEZED)
        self._excite = Linear(weights.at("linear2"), _SQUEEZED, channels)

    def __call__(self, x: Tensor) -> Tensor:
        gate = self._excite(self._squeeze(x.mean(dim=2)).relu_()).sigmoid()
        return x * gate[..., None]


class Block:
    """Pointwise, Res2, pointwise, excitation; added to the input."""

    def __init__(self, weights: Weights, channels: int, dilation: int) -> None:
        at = weights.at("se_res2block").at
        self._first = ConvNorm(at(0), channels, channels, 1)
        self._res2 = Res2(at(1), channels, dilation)
        self._second = ConvNorm(at(2), channels, channels, 1)
        self._excitation = Excitation(at(3), channels)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self._excitation(self._second(self._res2(self._first(x))))


class Ecapa:
    """[B, bands, frames] -> features [B, C, frames]."""

    def __init__(self, weights: Weights, sizes: SpeakerSizes) -> None:
        channels, outputs = sizes.ecapa_channels, sizes.ecapa_out_channels
        self._first = ConvNorm(weights.at("layer1"), sizes.input_dim, channels, 5)
        self._blocks = [
            Block(weights.at(f"layer{2 + at}"), channels, dilation) for at, dilation in enumerate(_DILATIONS)
        ]
        self._last = Conv(weights.at("conv"), len(_DILATIONS) * channels, outputs, 1)
        _note_x_vector(weights.unused(), outputs, sizes.out_dim)

    def __call__(self, mel: Tensor) -> Tensor:
        x = self._first(mel)
        found = []
        for block in self._blocks:
            x = block(x)
            found.append(x)
        return self._last(torch.cat(found, dim=1)).relu_()


def _note_x_vector(weights: Weights, features: int, width: int) -> None:
    """The attentive pooling and the embedding after it served in training only."""
    Conv(weights.at("pool", "linear1"), 3 * features, _SQUEEZED, 1)
    Conv(weights.at("pool", "linear2"), _SQUEEZED, features, 1)
    Affine(weights.at("bn"), 2 * features)
    Linear(weights.at("linear"), 2 * features, width)
