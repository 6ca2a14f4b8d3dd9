"""The decode path's networks as OpenVINO graphs: converted from the torch modules, kept in a cache."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.generator import Span
from tts_plugin.engines.spark.bicodec.nets import nets_of, steered
from tts_plugin.engines.spark.bicodec.weights import Weights
from tts_plugin.engines.spark.parts import part_of
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

logger = logging.getLogger(__name__)

_VERSION = 1  # of the graphs below: a change of them is another folder
_TOKENS = 24  # of the example that is traced; the graphs take any number

# sin(pi r)^2 for |r| <= 1/2 as a polynomial in r^2, fitted at Chebyshev's points: to 6e-9, and to 2e-7 in
# float32. OpenVINO computes a sine number by number; this is some multiplications, sixteen at a time.
_DEGREE = 6


@dataclass(frozen=True, slots=True)
class Graphs:
    """prenet: vectors [B, C, T], steering [B, D], lengths [B] -> frames. generator: frames [B, C, T],
    spans [n, 2] as `Generator.spans` gives them, lengths [B] -> samples [B, N]."""

    prenet: Any  # openvino.Model, which has no types
    generator: Any


def place_of(cache: Path, fingerprint: str, sizes: CodecSizes) -> Path:
    """The folder of the graphs of a checkpoint: a name that no other weights or version will have."""
    digest = hashlib.sha256(repr((_VERSION, ov.__version__, fingerprint, sizes)).encode())
    return cache / "openvino" / f"{digest.hexdigest()[:20]}-codec"


def read(place: Path) -> Graphs | None:
    """What `write` has put there, if it has."""
    if not place.is_dir():
        return None
    core = ov.Core()
    return Graphs(*(core.read_model(place / f"{name}.xml") for name in ("prenet", "generator")))


def write(graphs: Graphs, place: Path) -> None:
    """Keep them at `place`, whole or not at all; of two processes that do so at once the first one's stay."""
    part = part_of(place)
    try:
        part.mkdir(parents=True)
        try:
            ov.save_model(graphs.prenet, part / "prenet.xml", compress_to_fp16=False)
            ov.save_model(graphs.generator, part / "generator.xml", compress_to_fp16=False)
            with suppress(FileExistsError):
                os.rename(part, place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # openvino raises the second, for a full disk too
        if place.is_dir():
            return
        raise ConfigError(
            f"{shown(place.parent)}: the converted codec cannot be written ({error}): "
            "make room, name another cache folder with XDG_CACHE_HOME, or set engine.spark.codec: torch"
        ) from error


def converted(weights: Weights, sizes: CodecSizes) -> Graphs:
    """The graphs of `weights`, float32 on the CPU; takes seconds."""
    logger.info("converting the codec for OpenVINO, once")
    prenet, generator = nets_of(weights, sizes)
    vectors = torch.zeros(1, sizes.prenet.input_channels, _TOKENS)
    lengths = torch.tensor([_TOKENS])
    spans = torch.tensor(generator.spans(8, _TOKENS - 8, _TOKENS))
    frames = torch.zeros(1, sizes.decoder.input_channel, _TOKENS)

    def generated(x: Tensor, spans: Tensor, lengths: Tensor) -> Tensor:
        # tensors instead of integers, so that they are inputs of the graph
        return generator.run(x, cast(Sequence[Span], [span.unbind() for span in spans.unbind()]), lengths)

    def steered_(vectors: Tensor, steering: Tensor, lengths: Tensor) -> Tensor:
        return steered(prenet, vectors, steering, lengths)

    steering = torch.zeros(1, sizes.speaker_encoder.out_dim)
    return Graphs(
        _traced(steered_, (vectors, steering, lengths)),
        _without_sines(_traced(generated, (frames, spans, lengths))),
    )


class _Module(torch.nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        made: Tensor = self._call(*inputs)
        return made


def _traced(call: Any, example: tuple[Tensor, ...]) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        # deprecated in favour of torch.export, from which OpenVINO has no lengths that are slice bounds
        warnings.simplefilter("ignore", DeprecationWarning)
        # the check would trace it twice more: 13 of 19 s
        trace = cast(Callable[..., torch.jit.ScriptModule], torch.jit.trace)
        script = trace(_Module(call), example, check_trace=False)
        # as openvino.convert_model does it, which reports each conversion to Google Analytics besides, from
        # forks of this process, and waits for them
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(script, example_input=example)  # in use until all is converted
        loaded = frontend.load(decoder)
        for place, tensor in zip(loaded.get_inputs(), example, strict=True):
            loaded.set_partial_shape(place, ov.PartialShape([-1] * tensor.dim()))
            loaded.set_element_type(place, ov.Type(tensor.numpy().dtype))
        return frontend.convert(loaded)


def _without_sines(model: Any) -> Any:
    """The same graph with every squared sine as a polynomial."""
    points = np.cos(np.pi * (np.arange(400) + 0.5) / 400) / 8 + 0.125
    fit = np.polynomial.Chebyshev.fit(
        points, np.sin(np.pi * np.sqrt(points)) ** 2, _DEGREE, domain=[0.0, 0.25]
    )
    highest, *others = fit.convert(kind=np.polynomial.Polynomial).coef[::-1]
    for sine in [node for node in model.get_ops() if node.get_type_name() == "Sin"]:
        square, *more = {
            user.get_node().get_friendly_name(): user.get_node() for user in _users(sine)
        }.values()
        if more or square.get_type_name() not in ("Multiply", "Power"):  # x * x, or x.square()
            raise RuntimeError("the wave generator has a sine that is not squared")
        turns = ops.multiply(sine.input_value(0), _number(1 / np.pi))
        rest = ops.subtract(turns, ops.round(turns, "half_to_even"))
        squared = ops.multiply(rest, rest)
        total: Any = _number(highest)
        for coefficient in others:
            total = ops.add(ops.multiply(total, squared), _number(coefficient))
        square.output(0).replace(total.output(0))
    model.validate_nodes_and_infer_types()
    return model


def _users(node: Any) -> Any:
    return node.output(0).get_target_inputs()


def _number(value: float) -> Any:
    return ops.constant(np.full((1, 1, 1), value, np.float32))
