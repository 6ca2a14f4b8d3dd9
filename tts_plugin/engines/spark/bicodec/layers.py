"""The layers that the codec's networks are made of.

A layer is built from the place of its tensors and called with a tensor. Convolutions take [B, C, T], the
others [B, T, C]. `keep` is None, or ones and zeros [B, 1, T]: 0 marks frames beyond a row's own end. A
convolution zeroes them before it looks at its input, which is exactly what the edge of a shorter input is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_plugin.engines.spark.bicodec.weights import Init, Shape, Weights, constant, fan_in, normal

_SMALL = normal(0.02)
_ZERO = constant(0.0)


class Linear:
    """y = W x + b. small: as the ConvNeXt networks initialise theirs."""

    def __init__(
        self, weights: Weights, inputs: int, outputs: int, *, bias: bool = True, small: bool = False
    ) -> None:
        shape = (outputs, inputs)
        for_weight, for_bias = _inits(shape, small=small)
        self.weight = weights.take("weight", *shape, init=for_weight)
        self.bias = weights.take("bias", outputs, init=for_bias) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Conv:
    """A convolution that keeps the length. normed: stored with weight norm; small: as in Linear."""

    def __init__(
        self,
        weights: Weights,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        dilation: int = 1,
        groups: int = 1,
        normed: bool = False,
        small: bool = False,
        zero_bias: bool = False,
    ) -> None:
        shape = (outputs, inputs // groups, kernel)
        for_weight, for_bias = _inits(shape, small=small)
        if normed:
            self.weight = weights.take_normed(*shape, init=for_weight)
        else:
            self.weight = weights.take("weight", *shape, init=for_weight)
        self.bias = weights.take("bias", outputs, init=_ZERO if zero_bias else for_bias)
        self._dilation = dilation
        self._groups = groups
        self.reach = dilation * (kernel - 1) // 2  # frames it looks to either side

    def __call__(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None and self.reach:
            x = x * keep
        return F.conv1d(
            x, self.weight, self.bias, padding=self.reach, dilation=self._dilation, groups=self._groups
        )


class UpConv:
    """A transposed convolution that makes the input exactly `rate` times longer; stored with weight norm.

    Computed as a plain convolution that gives the `rate` frames of a place as channels, which are then put
    one after another: the same sums, and runtimes have fast kernels for them.
    """

    def __init__(self, weights: Weights, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        shape = (inputs, outputs, kernel)
        weight = weights.take_normed(*shape, init=fan_in(shape))
        bias = weights.take("bias", outputs, init=fan_in(shape))
        taps = -(-kernel // rate)
        if weights.used:
            phases = F.pad(weight, (0, taps * rate - kernel)).view(inputs, outputs, taps, rate)
            self.weight = (
                phases.flip(2).permute(1, 3, 0, 2).reshape(outputs * rate, inputs, taps).contiguous()
            )
            self.bias = bias.repeat_interleave(rate)
        self._rate = rate
        self._taps = taps
        self._outputs = outputs
        self._padding = (kernel - rate) // 2
        self._kernel = kernel

    def __call__(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            x = x * keep
        phases = F.conv1d(x, self.weight, self.bias, padding=self._taps - 1)
        rows, _, places = phases.shape
        y = phases.view(rows, self._outputs, self._rate, places).transpose(2, 3).flatten(2)
        return y[..., self._padding : self._padding + x.shape[-1] * self._rate]

    def sources(self, first: int, last: int) -> tuple[int, int]:
        """First and last input frame that the output frames `first`..`last` depend on."""
        lowest = first + self._padding - self._kernel + 1
        return -(-lowest // self._rate), (last + self._padding) // self._rate


class LayerNorm:
    """Normalises the channels of each frame."""

    def __init__(self, weights: Weights, channels: int) -> None:
        self.weight = weights.take("weight", channels, init=constant(1.0))
        self.bias = weights.take("bias", channels, init=_ZERO)

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps=_LAYER_NORM_EPS)


class SteeredNorm:
    """A LayerNorm whose scale and shift are computed from a condition [B, D], once for all frames."""

    def __init__(self, weights: Weights, condition: int, channels: int) -> None:
        self.scale = Linear(weights.at("scale"), condition, channels, small=True)
        self.shift = Linear(weights.at("shift"), condition, channels, small=True)
        self._channels = (channels,)

    def __call__(self, x: Tensor, condition: Tensor) -> Tensor:
        flat = F.layer_norm(x, self._channels, eps=_LAYER_NORM_EPS)
        return torch.addcmul(self.shift(condition)[:, None], flat, self.scale(condition)[:, None])


class Affine:
    """A batch norm at inference: one factor and one offset a channel of [B, C, T]."""

    def __init__(self, weights: Weights, channels: int) -> None:
        scale = weights.take("weight", channels, init=constant(1.0))
        bias = weights.take("bias", channels, init=_ZERO)
        mean = weights.take("running_mean", channels, init=_ZERO)
        variance = weights.take("running_var", channels, init=constant(1.0))
        weights.note_counter("num_batches_tracked")
        self.factor = (scale * torch.rsqrt(variance + _BATCH_NORM_EPS))[:, None]
        self.offset = bias[:, None] - mean[:, None] * self.factor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.offset, x, self.factor)


class Snake:
    """x + sin(a x)^2 / a, with a learnt `a` for each channel of [B, C, T]."""

    def __init__(self, weights: Weights, channels: int) -> None:
        self.alpha = weights.take("alpha", 1, channels, 1, init=constant(1.0))
        self._inverse = (1 / (self.alpha.float() + _SNAKE_EPS)).to(self.alpha.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            learnt: Tensor = _LearntSnake.apply(x, self.alpha)  # type: ignore[no-untyped-call]
            return learnt
        wave = torch.mul(x, self.alpha).sin_()
        return torch.addcmul(x, wave.square_(), self._inverse)


class _LearntSnake(torch.autograd.Function):
    """Snake in training, where it is a third of a step: few passes over memory, only its input is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha)
        return torch.addcmul(x, torch.mul(x, alpha).sin_().square_(), 1 / (alpha + _SNAKE_EPS))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, alpha = ctx.saved_tensors
        twice = torch.mul(x, 2 * alpha).sin_()  # d/dx sin(ax)^2 / a is sin(2ax)
        for_x = torch.addcmul(gradient, gradient, twice)
        # d/da is x sin(2ax) / a - sin(ax)^2 / a^2
        rising = twice.mul_(x).mul_(gradient).sum((0, 2), keepdim=True)
        falling = torch.mul(x, alpha).sin_().square_().mul_(gradient).sum((0, 2), keepdim=True)
        inverse = 1 / (alpha + _SNAKE_EPS)
        return for_x, inverse * rising - inverse.square() * falling


_SNAKE_EPS = 1e-9
_LAYER_NORM_EPS = 1e-6
_BATCH_NORM_EPS = 1e-5


def _inits(shape: Shape, *, small: bool) -> tuple[Init, Init]:
    return (_SMALL, _ZERO) if small else (fan_in(shape), fan_in(shape))
