"""The files of a model directory: where each stands, and what tensors a safetensors file says it holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tts_plugin.config import SparkSettings
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

GET_ONE = (
    "get the published one: sparkvoice model fetch DIR; or one that speaks noise: sparkvoice model random DIR"
)

Shape = tuple[int, ...]

DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
FLOATS = ("F32", "BF16")  # what the weights may be
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LFS = b"version https://git-lfs"
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a fingerprint
_TOLD = 4  # things of one kind that a message names


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The published layout under `root`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def codec_config(self) -> Path:
        return self.root / "BiCodec" / "config.yaml"

    @property
    def codec(self) -> Path:
        return self.root / "BiCodec" / "model.safetensors"

    @property
    def lm_config(self) -> Path:
        return self.root / "LLM" / "config.json"

    @property
    def lm(self) -> Path:
        return self.root / "LLM" / "model.safetensors"

    @property
    def tokenizer(self) -> Path:
        return self.root / "LLM" / "tokenizer.json"

    @property
    def wav2vec2(self) -> Path:
        """Folder that only enrolling with a transcript needs."""
        return self.root / "wav2vec2-large-xlsr-53"

    def missing(self) -> list[str]:
        """Names, relative to root, of the files that are not there."""
        needed = (self.config, self.codec_config, self.codec, self.lm_config, self.lm, self.tokenizer)
        return [path.relative_to(self.root).as_posix() for path in needed if not path.is_file()]

    def require(self) -> None:
        """Raise ConfigError if this is no model directory, saying which one is meant if one is near."""
        name = shown(self.root)
        if not self.root.is_dir():
            what = "is a file, not a model directory" if self.root.exists() else "is not there"
            raise ConfigError(f"{name} {what}; {GET_ONE}")
        missing = self.missing()
        if missing:
            near = next((other for other in self._near() if not ModelFiles(other).missing()), None)
            hint = f"did you mean {shown(near)}?" if near else GET_ONE
            raise ConfigError(f"{name} is not a model directory: it lacks {', '.join(missing)}; {hint}")

    def _near(self) -> Iterator[Path]:
        yield self.root.resolve().parent
        yield from sorted(path for path in self.root.iterdir() if path.is_dir())


def configured(settings: SparkSettings) -> Path:
    """The model directory that the settings name, or ConfigError that says how to name one."""
    if settings.model is None:
        raise ConfigError(
            f"no Spark model is named: set SPARK_TTS_MODEL or engine.spark.model to a directory; {GET_ONE}"
        )
    return settings.model


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: as safetensors spells it, "F32". shape: of the tensor."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The header of a safetensors file. header: its bytes. size_bytes: of the whole file."""

    path: Path
    tensors: Mapping[str, Tensor]
    header: bytes
    size_bytes: int

    @classmethod
    def read(cls, path: Path) -> TensorFile:
        """Read the header, no data; ConfigError says why a file cannot be what it should be."""
        name = shown(path)
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                start = file.read(64)
                length = int.from_bytes(start[:8], "little")
                file.seek(8)
                header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
        except OSError as error:
            raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
        if start.startswith(_LFS):
            raise ConfigError(
                f"{name} is a git-lfs pointer, not the weights: run git lfs pull, or sparkvoice model fetch"
            )
        if not header.startswith(b"{"):
            raise ConfigError(f"{name} is not a safetensors file{' (it is empty)' if not size else ''}")
        if len(header) < length:
            raise _cut_off(name, size, 8 + length)
        try:
            tensors, data_bytes = _parsed(json.loads(header))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{name} is not a safetensors file: its header is broken ({error})") from error
        if size < 8 + length + data_bytes:
            raise _cut_off(name, size, 8 + length + data_bytes)
        if size > 8 + length + data_bytes:
            raise ConfigError(f"{name} has {size - 8 - length - data_bytes} bytes too many: fetch it again")
        return cls(path, tensors, header, size)

    def summary(self) -> str:
        """How many numbers of which kind it holds."""
        kinds = sorted({tensor.dtype for tensor in self.tensors.values() if tensor.dtype in FLOATS})
        count = sum(math.prod(tensor.shape) for tensor in self.tensors.values())
        return f"{len(self.tensors)} tensors, {count / 1e6:.1f} M numbers, {' and '.join(kinds)}"

    def fingerprint(self) -> str:
        """16 hex digits that other weights will not have: a hash of the header and of samples of the
        data, because reading all of it would take longer than the rest of loading."""
        digest = hashlib.sha256(self.header)
        digest.update(self.size_bytes.to_bytes(8, "little"))
        first = 8 + len(self.header)
        step = max(1, (self.size_bytes - first) // _SAMPLES)
        with self.path.open("rb") as file:
            for at in range(first, self.size_bytes, step):
                file.seek(at)
                digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:16]


def _cut_off(name: str, size: int, whole: int) -> ConfigError:
    return ConfigError(f"{name} is cut off: {size:,} bytes of {whole:,}; delete it and fetch it again")


def _parsed(header: dict[str, dict[str, Any]]) -> tuple[dict[str, Tensor], int]:
    """The tensors and the bytes of data they take; ValueError where they do not fill them exactly."""
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        shape = tuple(int(length) for length in entry["shape"])
        begin, end = entry["data_offsets"]
        tensors[key] = Tensor(entry["dtype"], shape)
        if end - begin != DTYPE_BYTES[entry["dtype"]] * math.prod(shape):
            raise ValueError(f"{key} takes {end - begin} bytes, which is not {entry['dtype']} {list(shape)}")
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise ValueError(f"its tensors overlap or leave a hole at byte {at}")
        at = end
    return tensors, at


def differences(file: TensorFile, layout: Mapping[str, Shape]) -> list[str]:
    """What keeps `file` from holding the tensors of `layout` as float32 or bfloat16, in words; tensors
    that the layout does not name do not matter."""
    name = shown(file.path)
    found = {key: file.tensors[key] for key in layout if key in file.tensors}
    problems = []
    if missing := [key for key in layout if key not in found]:
        problems.append(f"{name}: {len(missing)} of {len(layout)} tensors are missing: {_some(missing)}")
    wrong = [
        f"{key} should be {list(layout[key])}, not {list(tensor.shape)}"
        for key, tensor in found.items()
        if tensor.shape != layout[key]
    ]
    if wrong:
        problems.append(f"{name}: {_some(wrong, '; ')}")
    if half := [key for key, tensor in found.items() if tensor.dtype == "F16"]:
        problems.append(
            f"{name}: {len(half)} of {len(layout)} tensors are float16, in which this model speaks garbage: "
            "take the published file, which is float32 (bfloat16 is fine too)"
        )
    other = [
        f"{key} is {tensor.dtype}" for key, tensor in found.items() if tensor.dtype not in (*FLOATS, "F16")
    ]
    if other:
        problems.append(f"{name}: tensors should be {' or '.join(FLOATS)}, but {_some(other)}")
    return problems


def _some(items: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(items) - _TOLD} more" if len(items) > _TOLD else ""
    return between.join(items[:_TOLD]) + more
