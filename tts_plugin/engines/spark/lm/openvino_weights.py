"""The language model's weights for OpenVINO: compressed once from the checkpoint, kept in a cache."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.mapped import MappedTensors, blocks
from tts_plugin.engines.spark.model_files import ModelFiles, TensorFile
from tts_plugin.engines.spark.parts import part_of, sweep
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

logger = logging.getLogger(__name__)

Weights = Literal["int8", "int4"]
Progress = Callable[[int, int], None]  # bytes written, bytes in all

EMBEDDING = "model.embed_tokens.weight"  # not compressed: the few rows in use are read from the checkpoint
_VERSION = 2  # of what is written below: a change of it is another file
_ROWS = 4096  # at a time, so that a matrix never stands in memory as float32
_GROUP = 64  # numbers that share an int4 scale


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be compressed. ids: where in the head the tokens of speech are."""

    files: ModelFiles
    config: LmConfig
    ids: Vocabulary
    weights: Weights

    def place(self, cache: Path) -> Path:
        """Where its compressed weights belong: a name that no other weights, head or kind will have."""
        of = TensorFile.read(self.files.lm)
        digest = hashlib.sha256(of.fingerprint().encode())
        digest.update(self.config.model_dump_json().encode())
        digest.update(repr((_VERSION, self.ids)).encode())
        return cache / "openvino" / f"{digest.hexdigest()[:20]}-{self.weights}.safetensors"


def compressed(source: Source, cache: Path, progress: Progress | None = None) -> Path:
    """The file of the compressed weights, made now if it is not there yet, whole or not at all.

    Two processes may do so at once: the later one puts the same bytes in the same place. ConfigError if
    the checkpoint does not fit or the disk is full.
    """
    place = source.place(cache)
    sweep(place.parent)
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(place)
        try:
            _write(part, source, progress or Bar().show)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{shown(place.parent)}: the converted language model cannot be written "
            f"({error.strerror or error}): make room, or name another cache folder with XDG_CACHE_HOME"
        ) from error
    return place


class Bar:
    """How far it is, on stderr: a line that moves at a terminal, elsewhere one log line."""

    def __init__(self) -> None:
        self._moves = sys.stderr is not None and sys.stderr.isatty()
        self._told = False
        self._filled = -1

    def show(self, done: int, whole: int) -> None:
        """`done` of `whole` bytes are written."""
        if not self._told:
            self._told = True
            logger.info("compressing the language model, once: %d MB", whole // 1_000_000)
        filled = 30 * done // whole
        if self._moves and filled != self._filled:
            self._filled = filled
            end = "\n" if done == whole else ""
            sys.stderr.write(
                f"\rcompressing the language model [{'=' * filled:<30}] {done / 1e6:,.0f} MB{end}"
            )
            sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """name: in the new file. of: tensors of the checkpoint whose rows it has, one after another.
    kind: how it is kept."""

    name: str
    of: tuple[tuple[str, slice], ...]
    kind: Literal["float", "int8", "int4"]

    def rows(self, tensors: MappedTensors) -> int:
        return sum(len(range(*rows.indices(tensors.shape(name)[0]))) for name, rows in self.of)

    def pieces(self, tensors: MappedTensors) -> Iterator[NDArray[np.float32]]:
        """Some rows at a time, as float32."""
        for name, rows in self.of:
            first, last, _ = rows.indices(tensors.shape(name)[0])
            for block in blocks(last - first, _ROWS):
                yield tensors.floats(name, slice(first + block.start, first + block.stop))


def _plan(source: Source) -> Iterator[_Matrix]:
    config, ids = source.config, source.ids
    whole, head = slice(None), EMBEDDING if config.tie_word_embeddings else "lm_head.weight"
    speech = slice(ids.semantic_first, ids.semantic_first + ids.semantic_count)
    yield _Matrix("head", ((head, speech), (head, slice(ids.eos, ids.eos + 1))), "int8")
    for family in ("global", "pitch_value", "speed_value"):
        first, count = getattr(ids, f"{family}_first"), getattr(ids, f"{family}_count")
        yield _Matrix(family, ((head, slice(first, first + count)),), "float")
    for layer in range(config.num_hidden_layers):
        old, new = f"model.layers.{layer}", f"layers.{layer}"
        joined = {
            "qkv": tuple(f"self_attn.{one}_proj" for one in "qkv"),
            "out": ("self_attn.o_proj",),
            "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "down": ("mlp.down_proj",),
        }
        for name, parts in joined.items():
            of = tuple((f"{old}.{part}.weight", whole) for part in parts)
            yield _Matrix(f"{new}.{name}", of, source.weights)
        biases = tuple((f"{old}.self_attn.{one}_proj.bias", whole) for one in "qkv")
        yield _Matrix(f"{new}.qkv.bias", biases, "float")
        yield _Matrix(f"{new}.input_norm", ((f"{old}.input_layernorm.weight", whole),), "float")
        yield _Matrix(f"{new}.inner_norm", ((f"{old}.post_attention_layernorm.weight", whole),), "float")
    yield _Matrix("norm", (("model.norm.weight", whole),), "float")


def _write(path: Path, source: Source, progress: Progress) -> None:
    tensors = MappedTensors(source.files.lm)
    plan = list(_plan(source))
    header: dict[str, Any] = {}
    at = 0

    def add(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        nonlocal at
        length = int(np.prod(shape)) * (4 if dtype == "F32" else 1)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length

    for matrix in plan:
        rows, inner = matrix.rows(tensors), tensors.shape(matrix.of[0][0])[1:]
        if matrix.kind == "float":
            add(matrix.name, "F32", (rows, *inner))
            continue
        groups = inner[0] // _group(inner[0]) if matrix.kind == "int4" else 1
        # scales first, so that every float stands on a multiple of four
        add(f"{matrix.name}.scale", "F32", (rows, groups, 1) if matrix.kind == "int4" else (rows, 1))
        if matrix.kind == "int4":
            add(matrix.name, "U8", (rows, groups, inner[0] // groups // 2))
        else:
            add(matrix.name, "I8", (rows, *inner))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    if (free := shutil.disk_usage(path.parent).free) < at + len(text):
        raise ConfigError(f"{shown(path.parent)}: the disk has {free:,} bytes left, {at:,} are to come")
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for matrix in plan:
            if matrix.kind == "float":
                for piece in matrix.pieces(tensors):
                    file.write(piece.tobytes())
            else:
                scales = start + header[f"{matrix.name}.scale"]["data_offsets"][0]
                packed = start + header[matrix.name]["data_offsets"][0]
                for piece in matrix.pieces(tensors):
                    scale, rows_ = _int8(piece) if matrix.kind == "int8" else _int4(piece)
                    file.seek(scales)
                    scales += file.write(scale.tobytes())
                    file.seek(packed)
                    packed += file.write(rows_.tobytes())
            progress(file.tell() - start, at)
        file.flush()
        os.fsync(file.fileno())


def _int8(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Symmetric, a scale a row."""
    scale = _scale(np.abs(rows).max(axis=1, keepdims=True), 127)
    return scale, np.rint(rows / scale).astype(np.int8)


def _int4(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Symmetric, a scale a group; two numbers a byte, the first in the low half."""
    grouped = rows.reshape(len(rows), -1, _group(rows.shape[1]))
    scale = _scale(np.abs(grouped).max(axis=2, keepdims=True), 7)
    whole = np.rint(grouped / scale).astype(np.int8).view(np.uint8) & 0x0F
    return scale, whole[..., 0::2] | (whole[..., 1::2] << 4)


def _scale(peak: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    return np.where(peak > 0, peak, 1).astype(np.float32) / np.float32(most)


def _group(width: int) -> int:
    return _GROUP if width % _GROUP == 0 else width
