"""The ConvNeXt stack that the semantic encoder and the prenet are built from, and the prenet itself.

Local and causal in neither direction: output frame t depends on input frames t - reach .. t + reach.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import PrenetSizes
from tts_plugin.engines.spark.bicodec.layers import Conv, LayerNorm, Linear, SteeredNorm
from tts_plugin.engines.spark.bicodec.weights import Weights, constant

_KERNEL = 7
_STAGE_LAYERS = 2
_STAGE_GAIN = 3.0  # a resampling stage of ratio 1 adds up three copies of its input


class ConvNeXt:
    """Depthwise convolution, norm, two linear layers; its result is scaled and added to the input."""

    def __init__(self, weights: Weights, width: int, inner: int, layers: int, condition: int | None) -> None:
        self._mix = Conv(weights.at("dwconv"), width, width, _KERNEL, groups=width, small=True)
        self._norm = _Norm(weights.at("norm"), width, condition)
        self._up = Linear(weights.at("pwconv1"), width, inner, small=True)
        self._down = Linear(weights.at("pwconv2"), inner, width, small=True)
        self._scale = weights.take("gamma", width, init=constant(1 / layers))
        self.reach = self._mix.reach

    def __call__(self, x: Tensor, condition: Tensor | None, keep: Tensor | None) -> Tensor:
        y = self._norm(self._mix(x, keep).transpose(1, 2), condition)
        y = self._down(F.gelu(self._up(y)))
        return torch.addcmul(x, y.transpose(1, 2), self._scale[:, None])


class Backbone:
    """Embedding convolution and `layers` ConvNeXt blocks: [B, inputs, T] -> [B, T, width].

    condition: width of the vector that steers every norm but the last, None for plain norms.
    """

    def __init__(
        self, weights: Weights, inputs: int, width: int, inner: int, layers: int, condition: int | None = None
    ) -> None:
        self._embed = Conv(weights.at("embed"), inputs, width, _KERNEL, small=True)
        self._norm = _Norm(weights.at("norm"), width, condition)
        self._blocks = [
            ConvNeXt(weights.at("convnext", at), width, inner, layers, condition) for at in range(layers)
        ]
        self._last_norm = LayerNorm(weights.at("final_layer_norm"), width)
        self.reach = self._embed.reach + sum(block.reach for block in self._blocks)

    def __call__(self, x: Tensor, condition: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        x = self._norm(self._embed(x, keep).transpose(1, 2), condition).transpose(1, 2)
        for block in self._blocks:
            x = block(x, condition, keep)
        return self._last_norm(x.transpose(1, 2))


class Stages:
    """Short backbones one after another, the input of each tripled: [B, T, width] -> [B, T, width]."""

    def __init__(self, weights: Weights, width: int, inner: int, count: int) -> None:
        # in the checkpoint the stage's resampler, which has no tensors, is 0 and the backbone is 1
        self._stages = [
            Backbone(weights.at(at, 1), width, width, inner, _STAGE_LAYERS) for at in range(count)
        ]
        self.reach = sum(stage.reach for stage in self._stages)

    def __call__(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        for stage in self._stages:
            x = stage(_STAGE_GAIN * x.transpose(1, 2), keep=keep)
        return x


class Prenet:
    """From looked-up codes to what the wave generator reads, steered by the speaker; [B, C, T] in and out."""

    def __init__(self, weights: Weights, sizes: PrenetSizes) -> None:
        width, inner = sizes.vocos_dim, sizes.vocos_intermediate_dim
        self._first = Linear(weights.at("linear_pre"), sizes.input_channels, width)
        self._stages = Stages(weights.at("downsample"), width, inner, len(sizes.sample_ratios))
        self._backbone = Backbone(
            weights.at("vocos_backbone"), width, width, inner, sizes.vocos_num_layers, sizes.condition_dim
        )
        self._last = Linear(weights.at("linear"), width, sizes.out_channels)
        self._tanh = sizes.use_tanh_at_final
        self.reach = self._stages.reach + self._backbone.reach

    def __call__(self, x: Tensor, condition: Tensor | None, keep: Tensor | None = None) -> Tensor:
        x = self._stages(self._first(x.transpose(1, 2)), keep)
        x = self._last(self._backbone(x.transpose(1, 2), condition, keep)).transpose(1, 2)
        return x.tanh() if self._tanh else x


class _Norm:
    """The norm of a backbone: plain, or steered by a condition."""

    def __init__(self, weights: Weights, width: int, condition: int | None) -> None:
        self._plain = LayerNorm(weights, width) if condition is None else None
        self._steered = None if condition is None else SteeredNorm(weights, condition, width)

    def __call__(self, x: Tensor, condition: Tensor | None) -> Tensor:
        if self._steered and condition is not None:
            return self._steered(x, condition)
        assert self._plain, "a steered norm is called with its condition"
        return self._plain(x)
