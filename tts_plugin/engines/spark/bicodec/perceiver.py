"""The perceiver: learnt queries that gather a clip of any length into a fixed number of vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_plugin.engines.spark.bicodec.layers import Linear
from tts_plugin.engines.spark.bicodec.weights import Weights, constant, normal

_LAYERS = 2
_HEADS = 8
_HEAD_WIDTH = 64
_FEED_FORWARD = 4


class Attention:
    """Queries look at themselves and at the context."""

    def __init__(self, weights: Weights, width: int) -> None:
        inner = _HEADS * _HEAD_WIDTH
        self._query = Linear(weights.at("to_q"), width, inner, bias=False)
        self._key_value = Linear(weights.at("to_kv"), width, 2 * inner, bias=False)
        self._out = Linear(weights.at("to_out"), inner, width, bias=False)

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        seen = self._key_value(torch.cat((x, context), dim=1))
        query, key, value = map(_heads, (self._query(x), *seen.chunk(2, dim=-1)))
        found = F.scaled_dot_product_attention(query, key, value)
        return self._out(found.transpose(1, 2).flatten(2))


class FeedForward:
    """Linear, one half gated by the GELU of the other, linear."""

    def __init__(self, weights: Weights, width: int) -> None:
        inner = width * _FEED_FORWARD * 2 // 3
        self._in = Linear(weights.at(0), width, 2 * inner)
        self._out = Linear(weights.at(2), inner, width)

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = self._in(x).chunk(2, dim=-1)
        return self._out(F.gelu(gate) * value)


class Perceiver:
    """[B, frames, features] -> [B, queries, width]."""

    def __init__(self, weights: Weights, features: int, width: int, queries: int) -> None:
        projected = features != width
        self._context = Linear(weights.at("proj_context"), features, width) if projected else None
        self._queries = weights.take("latents", queries, width, init=normal(0.02))
        self._layers = [
            (Attention(weights.at("layers", at, 0), width), FeedForward(weights.at("layers", at, 1), width))
            for at in range(_LAYERS)
        ]
        self._gain = weights.at("norm").take("gamma", width, init=constant(1.0)) * width**0.5

    def __call__(self, features: Tensor) -> Tensor:
        context = self._context(features) if self._context else features
        x = self._queries.expand(len(features), -1, -1)
        for attention, feed_forward in self._layers:
            x = x + attention(x, context)
            x = x + feed_forward(x)
        return F.normalize(x, dim=-1).mul(self._gain)


def _heads(x: Tensor) -> Tensor:
    """[B, T, heads * width] -> [B, heads, T, width]."""
    return x.reshape(*x.shape[:-1], _HEADS, _HEAD_WIDTH).transpose(1, 2)
