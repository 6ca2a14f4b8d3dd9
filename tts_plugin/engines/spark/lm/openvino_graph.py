"""The Qwen2 graph for OpenVINO: compressed weights, attention over pages, a head of speech tokens only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

# Private, but what the transformation to paged attention inserts; hence the pinned release.
from openvino.op import _PagedAttentionExtension

from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.mapped import MappedTensors

# its inputs after the caches and tables, none of them used: eviction, rotation, sparse attention ...
_UNUSED: Sequence[tuple[tuple[int, ...], type]] = (
    ((0,), np.int32),
    ((0,), np.int32),
    ((0,), np.int32),
    ((0,), np.float32),
    ((0,), np.float32),
    ((), np.int32),
    ((), np.int32),
    ((0, 0, 0, 0), np.float32),
    ((), np.int32),
    ((0,), np.int32),
    ((0,), np.int32),
    ((0,), np.int32),
    ((0,), np.int32),
    ((0,), np.uint8),
    ((0,), np.int32),
)
INPUTS = ("embedded", "cos", "sin", "wanted", "past", "begins", "blocks", "block_begins", "longest")


def build_graph(config: LmConfig, weights: MappedTensors) -> ov.Model:
    """The graph, over the memory of `weights`, which must outlive it.

    inputs: INPUTS in order, then the key and the value cache of each layer. Tokens of all sequences
    stand in one row. embedded: [tokens, hidden]. cos, sin: [tokens, 1, head], of their positions.
    wanted: rows of the answer. past, begins, blocks, block_begins, longest: as paged attention has them.
    outputs: logits [wanted, speech rows], last states [wanted, hidden], both float32."""
    return _Graph(config, weights).model()


class _Graph:
    def __init__(self, config: LmConfig, weights: MappedTensors) -> None:
        self._config = config
        self._weights = weights
        self._heads, self._shared = config.num_attention_heads, config.num_key_value_heads
        self._width = config.hidden_size // self._heads
        whole = {name: ops.parameter([-1], np.int32, name=name) for name in INPUTS}
        whole["embedded"] = ops.parameter([-1, config.hidden_size], np.float32, name="embedded")
        for name in ("cos", "sin"):
            whole[name] = ops.parameter([-1, 1, self._width], np.float32, name=name)
        whole["longest"] = ops.parameter([], np.int32, name="longest")
        self._inputs = whole

    def model(self) -> ov.Model:
        inputs, caches = self._inputs, list[Any]()
        x = inputs["embedded"]
        for layer in range(self._config.num_hidden_layers):
            block = f"layers.{layer}"
            key, value = (
                ops.parameter([-1, -1, -1, -1], ov.Type.dynamic, name=f"{kind}_cache.{layer}")
                for kind in ("key", "value")
            )
            caches += [key, value]
            for cache in (key, value):  # the plugin knows them by these names
                cache.output(0).set_names({cache.get_friendly_name()})
            x = ops.add(x, self._attended(self._normed(x, f"{block}.input_norm"), block, key, value))
            x = ops.add(x, self._widened(self._normed(x, f"{block}.inner_norm"), block))
        state = self._normed(ops.gather(x, inputs["wanted"], _of(0)), "norm")
        logits = self._linear(state, "head")
        results = [ops.result(logits), ops.result(state)]
        return ov.Model(results, [*(inputs[name] for name in INPUTS), *caches], "spark-lm")

    def _attended(self, x: Any, block: str, key: Any, value: Any) -> Any:
        heads, shared, width, inputs = self._heads, self._shared, self._width, self._inputs
        qkv = ops.add(self._linear(x, f"{block}.qkv"), self._stored(f"{block}.qkv.bias"))
        turned, v = _split(qkv, [(heads + shared) * width, shared * width])
        turned = ops.reshape(turned, _of([-1, heads + shared, width], np.int64), special_zero=False)
        half = ops.split(turned, _of(-1), 2)
        swapped = ops.concat([ops.multiply(half.output(1), _of(-1.0, np.float32)), half.output(0)], -1)
        turned = ops.add(ops.multiply(turned, inputs["cos"]), ops.multiply(swapped, inputs["sin"]))
        q, k = _split(turned, [heads, shared])
        q = ops.reshape(q, _of([-1, heads * width], np.int64), special_zero=False)
        k = ops.reshape(k, _of([-1, shared * width], np.int64), special_zero=False)
        tables = [inputs[name] for name in ("past", "begins", "blocks", "block_begins")]
        scale, window, slopes = _of(1 / math.sqrt(width), np.float32), _of(0), _of([], np.float32)
        unused = [ops.constant(np.zeros(shape, kind)) for shape, kind in _UNUSED]
        asked = [q, k, v, key, value, *tables, scale, window, slopes, inputs["longest"], *unused]
        attention = _PagedAttentionExtension([_output(one) for one in asked])
        told = attention.get_rt_info()
        told["num_k_heads"] = told["num_v_heads"] = shared
        told["k_head_size"] = told["v_head_size"] = width
        return self._linear(attention.output(0), f"{block}.out")

    def _widened(self, x: Any, block: str) -> Any:
        inner = self._config.intermediate_size
        gate, up = _split(self._linear(x, f"{block}.gate_up"), [inner, inner])
        return self._linear(ops.multiply(ops.swish(gate), up), f"{block}.down")

    def _normed(self, x: Any, name: str) -> Any:
        square = ops.reduce_mean(ops.power(x, _of(2.0, np.float32)), _of([-1]), keep_dims=True)
        length = ops.sqrt(ops.add(square, _of(self._config.rms_norm_eps, np.float32)))
        return ops.multiply(self._stored(name), ops.multiply(x, ops.divide(_of(1.0, np.float32), length)))

    def _linear(self, x: Any, name: str) -> Any:
        """x by a compressed matrix [out, in]: int8 with a scale a row, or int4 with one a group."""
        rows, scales = self._weights.array(name), self._stored(f"{name}.scale")
        if rows.dtype == np.int8:
            matrix = ops.multiply(ops.convert(self._stored(name), "f32"), scales)
            return ops.matmul(x, matrix, transpose_a=False, transpose_b=True)
        out, groups, half = rows.shape
        packed = ov.Tensor(rows, ov.Shape([out, groups, 2 * half]), ov.Type.i4)
        matrix = ops.multiply(ops.convert(ops.constant(packed, shared_memory=True), "f32"), scales)
        matrix = ops.reshape(matrix, _of([out, groups * 2 * half], np.int64), special_zero=False)
        return ops.matmul(x, matrix, transpose_a=False, transpose_b=True)

    def _stored(self, name: str) -> Any:
        return ops.constant(self._weights.array(name), shared_memory=True)


def _of(value: Any, kind: type = np.int32) -> Any:
    return ops.constant(np.asarray(value, kind))


def _split(x: Any, lengths: Sequence[int]) -> list[Any]:
    parts = ops.variadic_split(x, _of(1), _of(lengths, np.int64))
    return [parts.output(at) for at in range(len(lengths))]


def _output(value: Any) -> Any:
    return value if isinstance(value, ov.Output) else value.output(0)
