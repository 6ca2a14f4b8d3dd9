"""A codec from a model directory: the file is checked against the list of what is needed, then read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from tts_plugin.engines.spark.bicodec.config import CodecSizes, read_sizes
from tts_plugin.engines.spark.bicodec.model import BiCodec
from tts_plugin.engines.spark.bicodec.nets import Nets
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE, CheckpointFile, Listing, Spec, Weights
from tts_plugin.engines.spark.model_files import TensorFile
from tts_plugin.engines.spark.parts import sweep
from tts_plugin.errors import ConfigError, did_you_mean

Runtime = Literal["torch", "openvino"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_bicodec(
    model_dir: str | Path,
    *,
    dtype: str | torch.dtype,
    device: str | torch.device,
    overrides: Mapping[str, Any] | None = None,
    runtime: Runtime = "torch",
    threads: int | None = None,
    cache: Path | None = None,
) -> BiCodec:
    """The codec in `model_dir`/BiCodec (config.yaml, model.safetensors).

    dtype: float32 or bfloat16, of the decoder; the encoders are float32 always. overrides: the widths
    `ecapa_channels` and `ecapa_out_channels` where they are not the published ones. runtime: of the decoder;
    OpenVINO is for a CPU, with so many threads (None: all cores), and keeps what it converts at the first
    load in `cache` (None: nowhere, so it converts at each). Every tensor that the
    published checkpoint has must be there in its shape; further ones are ignored. Blocks for seconds.
    Raises ConfigError, which names file, key, what was expected and what was found.
    """
    sizes = read_sizes(Path(model_dir)).overridden(overrides)
    kind, place = checked_dtype(dtype), checked_device(device)
    file = CheckpointFile(Path(model_dir) / WEIGHTS_FILE)
    file.demand(layout(sizes))
    weights = Weights(file, kind, place)
    if runtime == "torch":
        return BiCodec(weights, sizes)
    if place.type != "cpu":
        raise ConfigError(f"the codec runs on {place} in torch only: set engine.spark.codec: torch")
    fingerprint = "" if cache is None else TensorFile.read(file.path).fingerprint()
    return BiCodec(weights, sizes, openvino_nets(weights, sizes, threads, cache, fingerprint))


def openvino_nets(
    weights: Weights,
    sizes: CodecSizes,
    threads: int | None = None,
    cache: Path | None = None,
    fingerprint: str = "",
) -> Nets:
    """The decoder of `weights` in OpenVINO; dtype as that of the weights. fingerprint: of the checkpoint,
    by which its graphs are found in `cache`."""
    # it takes 0.1 s to import, and not everybody has it
    from tts_plugin.engines.spark.bicodec.openvino_graph import converted, place_of, read, write
    from tts_plugin.engines.spark.bicodec.openvino_nets import OpenVinoNets

    place = None if cache is None else place_of(cache, fingerprint, sizes)
    if place is not None:
        sweep(place.parent)
    graphs = None if place is None else read(place)
    if graphs is None:
        graphs = converted(weights.as_float32().on_cpu(), sizes)
        if place is not None:
            write(graphs, place)
            graphs = read(place) or graphs  # from the file, so that no copy of the weights stays in memory
    return OpenVinoNets(graphs, sizes, bfloat16=weights.dtype == torch.bfloat16, threads=threads)


def layout(sizes: CodecSizes) -> dict[str, Spec]:
    """Every tensor that a checkpoint of these sizes has, by key."""
    listing = Listing()
    BiCodec(Weights(listing).unused(), sizes)
    return listing.specs


def checked_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The dtype by name or as itself; ConfigError for all but float32 and bfloat16."""
    name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if name in ("float16", "fp16", "half"):
        raise ConfigError(
            "dtype float16 is known to give garbage with Spark-TTS: use bfloat16 on a GPU, float32 on a CPU"
        )
    if name not in DTYPES:
        raise ConfigError(f'dtype "{name}" is not supported{did_you_mean(name, DTYPES)}')
    return DTYPES[name]


def checked_device(device: str | torch.device) -> torch.device:
    """The device, if tensors can be put there; ConfigError otherwise."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # as its kind of build says it
        reason = str(error).partition("\n")[0]
        raise ConfigError(f'device "{device}" cannot be used here: {reason}') from error
    return place
