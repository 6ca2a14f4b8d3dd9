"""The wave generator: frames at the token rate to samples, by four upsampling blocks.

Local too: `reach` tokens to either side are all that a token's samples depend on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import GeneratorSizes
from tts_plugin.engines.spark.bicodec.layers import Conv, Snake, UpConv
from tts_plugin.engines.spark.bicodec.weights import Weights

_KERNEL = 7
_DILATIONS = (1, 3, 9)


class ResidualUnit:
    """Snake, dilated convolution, snake, pointwise convolution; added to the input."""

    def __init__(self, weights: Weights, channels: int, dilation: int) -> None:
        at = weights.at("block").at
        self._snake = Snake(at(0), channels)
        self._dilated = Conv(
            at(1), channels, channels, _KERNEL, dilation=dilation, normed=True, zero_bias=True
        )
        self._second_snake = Snake(at(2), channels)
        self._pointwise = Conv(at(3), channels, channels, 1, normed=True, zero_bias=True)
        self.reach = self._dilated.reach

    def __call__(self, x: Tensor, keep: Tensor | None) -> Tensor:
        y = self._dilated(self._snake(x), keep)
        return self._pointwise(self._second_snake(y)).add_(x)


class UpBlock:
    """Snake, an upsampling convolution that halves the channels, and three residual units."""

    def __init__(self, weights: Weights, channels: int, kernel: int, rate: int) -> None:
        at = weights.at("block").at
        self.rate = rate
        self._snake = Snake(at(0), channels)
        self._up = UpConv(at(1), channels, channels // 2, kernel, rate)
        self._units = [
            ResidualUnit(at(2 + index), channels // 2, dilation) for index, dilation in enumerate(_DILATIONS)
        ]

    def __call__(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """lengths: frames of each row of `x` that are its own, [B]; None: all of them."""
        x = self._up(self._snake(x), keep_of(x, lengths))
        keep = keep_of(x, None if lengths is None else lengths * self.rate)
        for unit in self._units:
            x = unit(x, keep)
        return x

    def sources(self, first: int, last: int) -> tuple[int, int]:
        """First and last input frame that the output frames `first`..`last` depend on."""
        reach = sum(unit.reach for unit in self._units)
        return self._up.sources(first - reach, last + reach)


class Generator:
    """[B, C, T] -> float32 samples [B, T * hop] in [-1, 1]. The last layer computes in float32."""

    def __init__(self, weights: Weights, sizes: GeneratorSizes) -> None:
        at = weights.at("model").at
        blocks = len(sizes.rates)
        self._first = Conv(at(0), sizes.input_channel, sizes.channels, _KERNEL, normed=True, zero_bias=True)
        self._blocks = [
            UpBlock(at(1 + index), sizes.channels // 2**index, kernel, rate)
            for index, (kernel, rate) in enumerate(zip(sizes.kernel_sizes, sizes.rates, strict=True))
        ]
        self._snake = Snake(at(1 + blocks).as_float32(), sizes.channels // 2**blocks)
        # bfloat16 samples would have the noise of 8 bits
        self._last = Conv(
            at(2 + blocks).as_float32(),
            sizes.channels // 2**blocks,
            sizes.d_out,
            _KERNEL,
            normed=True,
            zero_bias=True,
        )
        self.reach = self._reach(sizes.hop)

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """lengths: tokens of each row of `x` that are its own, int64 [B]; None: all of them.

        What comes out beyond a row's own samples means nothing.
        """
        x = self._first(x, keep_of(x, lengths))
        for block in self._blocks:
            x = block(x, lengths)
            lengths = None if lengths is None else lengths * block.rate
        x = self._snake(x.float())
        return self._last(x, keep_of(x, lengths)).squeeze(1).tanh()

    def _reach(self, hop: int) -> int:
        first, last = -self._last.reach, hop - 1 + self._last.reach
        for block in reversed(self._blocks):
            first, last = block.sources(first, last)
        return max(self._first.reach - first, self._first.reach + last)


def keep_of(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Ones for the first `lengths` frames of each row of [B, C, T] and zeros after them, [B, 1, T]."""
    if lengths is None:
        return None
    frames = torch.arange(x.shape[-1], device=x.device)
    return (frames < lengths[:, None])[:, None].to(x.dtype)
