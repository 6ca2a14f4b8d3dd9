"""The wave generator: frames at the token rate to samples, by four upsampling blocks.

Local too: `reach` tokens to either side are all that a token's samples depend on. Most of that reach is used
up by the first block; so each layer runs only on the frames that the wanted samples depend on (`spans`), and
16 tokens inside an utterance cost as much as 19, not as much as 36.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import GeneratorSizes
from tts_plugin.engines.spark.bicodec.layers import Conv, Snake, UpConv
from tts_plugin.engines.spark.bicodec.weights import Weights

_KERNEL = 7
_DILATIONS = (1, 3, 9)

Span = tuple[int, int]


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
        self.up = UpConv(at(1), channels, channels // 2, kernel, rate)
        self.units = [
            ResidualUnit(at(2 + index), channels // 2, dilation) for index, dilation in enumerate(_DILATIONS)
        ]

    def lengthened(self, x: Tensor, keep: Tensor | None) -> Tensor:
        return self.up(self._snake(x), keep)


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
        self._hop = sizes.hop
        first, last = self._sources(0, 1)[0]
        self.reach = max(-first, last - 1)

    def __call__(
        self, x: Tensor, lengths: Tensor | None = None, emit: tuple[int, int] | None = None
    ) -> Tensor:
        """lengths: tokens of each row of `x` that are its own, int64 [B]; None: all of them. emit: the first
        token whose samples are wanted, and the one after the last; None: all, float32 [B, tokens * hop].

        What comes out beyond a row's own samples means nothing.
        """
        first, last = (0, x.shape[-1]) if emit is None else emit
        return self.run(x, self.spans(first, last, x.shape[-1]), lengths)

    def run(self, x: Tensor, spans: Sequence[Span], lengths: Tensor | None = None) -> Tensor:
        """As a call, on `spans` as the method of that name gives them."""
        span = iter(spans)
        frames = _Frames(x, lengths)
        frames.crop(next(span))
        frames.x = self._first(frames.x, frames.keep)
        for block in self._blocks:
            frames.crop(next(span))
            frames.lengthen(block.lengthened(frames.x, frames.keep), block.rate)
            for unit in block.units:
                frames.crop(next(span))
                frames.x = unit(frames.x, frames.keep)
        frames.crop(next(span))
        frames.x = self._last(self._snake(frames.x.float()), frames.keep)
        frames.crop(next(span))
        return frames.x.squeeze(1).tanh()

    def spans(self, first: int, last: int, tokens: int) -> list[Span]:
        """The frames that every layer in turn reads for the samples of `first`..`last` - 1 of so many tokens,
        the last span being these samples; of each the first and the one after the last."""
        rates = [1]
        for block in self._blocks:
            rates += [rates[-1], *[rates[-1] * block.rate] * len(block.units)]
        rates += [self._hop, self._hop]
        return [
            (max(0, start), min(tokens * rate, stop))
            for (start, stop), rate in zip(self._sources(first, last), rates, strict=True)
        ]

    def _sources(self, first: int, last: int) -> list[Span]:
        """`spans` of an utterance without beginning or end."""
        spans = [(first * self._hop, last * self._hop)]

        def wider(reach: int) -> None:
            start, stop = spans[-1]
            spans.append((start - reach, stop + reach))

        wider(self._last.reach)
        for block in reversed(self._blocks):
            for unit in reversed(block.units):
                wider(unit.reach)
            start, stop = block.up.sources(spans[-1][0], spans[-1][1] - 1)
            spans.append((start, stop + 1))
        wider(self._first.reach)
        return spans[::-1]


class _Frames:
    """Frames `at`.. of all [B, C, T], and which of them are each row's own."""

    def __init__(self, x: Tensor, lengths: Tensor | None) -> None:
        self.x = x
        self._lengths = lengths
        self._at: int = 0

    @property
    def keep(self) -> Tensor | None:
        return keep_of(self.x, None if self._lengths is None else self._lengths - self._at)

    def crop(self, span: Span) -> None:
        start, stop = span
        self.x = self.x[..., start - self._at : stop - self._at]
        self._at = start

    def lengthen(self, x: Tensor, rate: int) -> None:
        self.x = x
        self._at = self._at * rate  # never in place: traced, it is a tensor of the caller
        self._lengths = None if self._lengths is None else self._lengths * rate


def keep_of(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Ones for the first `lengths` frames of each row of [B, C, T] and zeros after them, [B, 1, T]."""
    if lengths is None:
        return None
    frames = torch.arange(x.shape[-1], device=x.device)
    return (frames < lengths[:, None])[:, None].to(x.dtype)
