"""The two quantisers, float32 whatever the rest computes in: codes of a codebook, and rounded numbers.

A code decides what is heard, so it must not depend on the precision of a decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atanh, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_plugin.engines.spark.bicodec.layers import Conv, Linear
from tts_plugin.engines.spark.bicodec.weights import Weights, constant, normal

_BOUND_MARGIN = 1e-3  # keeps the outermost level from being reached at infinity only


class Codebook:
    """Vector quantisation in a narrow space: the nearest of `size` directions, and back."""

    def __init__(self, weights: Weights, width: int, size: int, code_width: int) -> None:
        projected = width != code_width
        self._narrow = (
            Conv(weights.at("in_project"), width, code_width, 1, normed=True) if projected else None
        )
        self._widen = (
            Conv(weights.at("out_project"), code_width, width, 1, normed=True) if projected else None
        )
        self.codes = weights.at("codebook").take("weight", size, code_width, init=normal(1.0))
        weights.unused().take("cluster_size", size, init=constant(0.0))
        directions = F.normalize(self.codes)
        self._directions = directions.T
        self._squares = directions.square().sum(dim=1)

    def narrowed(self, x: Tensor) -> Tensor:
        """[B, width, T] -> [B, code_width, T], the space in which codes are near or far."""
        return self._narrow(x) if self._narrow else x

    def nearest(self, x: Tensor) -> Tensor:
        """[B, width, T] -> int64 codes [B, T]: the least distance between directions."""
        return self.nearest_to(F.normalize(self.narrowed(x), dim=1))

    def nearest_to(self, aimed: Tensor) -> Tensor:
        """Directions [B, code_width, T] -> int64 codes [B, T]."""
        return (2 * aimed.transpose(1, 2) @ self._directions - self._squares).argmax(dim=-1)

    def look_up(self, codes: Tensor) -> Tensor:
        """int64 codes [B, T] -> [B, width, T]; a code is used as stored, not as a direction."""
        return self.widened(F.embedding(codes, self.codes).transpose(1, 2))

    def widened(self, x: Tensor) -> Tensor:
        """[B, code_width, T] -> [B, width, T]."""
        return self._widen(x) if self._widen else x


class ScalarGrid:
    """Finite scalar quantisation: each number is bounded and rounded to one of its `levels`."""

    def __init__(self, levels: Sequence[int], device: torch.device) -> None:
        def numbers(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.size = prod(levels)
        spans = [(level - 1) * (1 + _BOUND_MARGIN) / 2 for level in levels]
        offsets = [0.0 if level % 2 else 0.5 for level in levels]  # an even count has no level at zero
        self._spans = numbers(spans)
        self._offsets = numbers(offsets)
        self._shifts = numbers([atanh(offset / span) for offset, span in zip(offsets, spans, strict=True)])
        self._halves = numbers([level // 2 for level in levels])
        self._levels = torch.tensor(list(levels), device=device)
        self._places = torch.tensor([prod(levels[:at]) for at in range(len(levels))], device=device)

    def rounded(self, x: Tensor) -> Tensor:
        """[..., levels] -> the nearest point of the grid, each number in [-1, 1]."""
        return self._bounded(x).round() / self._halves

    def nearly(self, x: Tensor) -> Tensor:
        """[..., levels] as `rounded`, without the rounding: what training pushes."""
        return self._bounded(x) / self._halves

    def _bounded(self, x: Tensor) -> Tensor:
        return (x + self._shifts).tanh() * self._spans - self._offsets

    def indices(self, points: Tensor) -> Tensor:
        """Points of the grid [..., levels] -> int64 [...], the first number counting least."""
        digits = (points * self._halves + self._halves).round().long()
        return (digits * self._places).sum(dim=-1)

    def points(self, indices: Tensor) -> Tensor:
        """int64 [...] -> points of the grid [..., levels]."""
        digits = indices[..., None] // self._places % self._levels
        return (digits - self._halves) / self._halves


class ResidualGrid:
    """`count` grids one after another, each for what the one before left over.

    Grid k is (levels - 1)^k times finer than the first. Works on [B, T, width]; codes are [B, T, count].
    """

    def __init__(self, weights: Weights, width: int, levels: Sequence[int], count: int) -> None:
        numbers = len(levels)
        projected = width != numbers
        self._in = Linear(weights.at("project_in"), width, numbers) if projected else None
        self._out = Linear(weights.at("project_out"), numbers, width) if projected else None
        self.grid = ScalarGrid(levels, weights.device)
        steps = torch.tensor([level - 1.0 for level in levels], device=weights.device)
        self._scales = [steps**-finer for finer in range(count)]

    def encode(self, x: Tensor) -> Tensor:
        """[B, T, width] -> int64 codes [B, T, count]."""
        rest = self._in(x) if self._in else x
        codes = []
        for scale in self._scales:
            points = self.grid.rounded(rest / scale)
            codes.append(self.grid.indices(points))
            rest = rest - points * scale
        return torch.stack(codes, dim=-1)

    def passed(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width] as after encoding and decoding by the first grid, but
        differentiable: rounding passes its gradient on as it is."""
        rest = self._in(x) if self._in else x
        nearly = self.grid.nearly(rest)
        points = nearly + (self.grid.rounded(rest) - nearly).detach()
        return self._out(points) if self._out else points

    def decode(self, codes: Tensor) -> Tensor:
        """int64 codes [B, T, count] -> [B, T, width]."""
        points = self.grid.points(codes)
        total = sum(
            (points[..., at, :] * scale for at, scale in enumerate(self._scales)), start=points.new_zeros(())
        )
        return self._out(total) if self._out else total
