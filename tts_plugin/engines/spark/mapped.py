"""MappedTensors: the tensors of a safetensors file as arrays that lie in it, read when they are used."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_plugin.engines.spark.model_files import Shape

_TYPES = {"F32": np.float32, "BF16": np.uint16, "I8": np.int8, "U8": np.uint8}


class MappedTensors:
    """name in, array out. Of float32, bfloat16, int8 and uint8; nothing is read before it is used."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
            # ACCESS_COPY: OpenVINO takes only what looks writable; nothing is written
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header.pop("__metadata__", None)
        self._entries = header
        self._data = np.frombuffer(self._map, np.uint8, offset=8 + length)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> Shape:
        return tuple(self._entries[name]["shape"])

    def array(self, name: str) -> NDArray[Any]:
        """As it is stored (bfloat16 as its 16 bits), while this object lives."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        stored: NDArray[Any] = np.asarray(self._data[begin:end]).view(_TYPES[entry["dtype"]])
        return stored.reshape(entry["shape"])

    def forget(self) -> None:
        """Let the system take back what has been read; whatever is used again is read again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not everywhere
            self._map.madvise(mmap.MADV_DONTNEED)

    def floats(self, name: str, rows: slice | NDArray[np.intp] = slice(None)) -> NDArray[np.float32]:
        """Some rows of a tensor of float32 or bfloat16, as float32."""
        stored = self.array(name)[rows]
        if self._entries[name]["dtype"] == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(stored, np.float32)


def blocks(rows: int, most: int) -> Iterator[slice]:
    """`rows` in pieces of at most `most`."""
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))
