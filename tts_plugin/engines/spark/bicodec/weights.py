"""Where a network's tensors come from, and the list of what a checkpoint has to hold.

Every layer says once which tensors it has: name, shape, and how the published code initialises them. What
stands behind (a Source) makes of it a loaded model, a randomly initialised one, or the list that a file is
checked against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tts_plugin.errors import ConfigError

WEIGHTS_FILE = "BiCodec/model.safetensors"

Shape = tuple[int, ...]
Init = Callable[[Shape, torch.Generator], Tensor]

_CPU = torch.device("cpu")
_FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors writes them
_SHOWN = 5  # problems told in one message


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor of a checkpoint. optional: may be absent; counter: an integer, not a weight."""

    shape: Shape
    optional: bool = False
    counter: bool = False


class Source(Protocol):
    """Gives tensors by key, float32 (a counter: int64)."""

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        """The tensor called `key`. used: False if nothing will read its values: a placeholder will do."""
        ...


@dataclass(frozen=True, slots=True)
class Weights:
    """A place in a source: the prefix of its keys, and the dtype and device that tensors are wanted in."""

    source: Source
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU
    prefix: str = ""
    used: bool = True

    def at(self, *names: str | int) -> Weights:
        """The place `names` further down."""
        return replace(self, prefix=self.prefix + "".join(f"{name}." for name in names))

    def as_float32(self) -> Weights:
        return replace(self, dtype=torch.float32)

    def on_cpu(self) -> Weights:
        return replace(self, device=_CPU)

    def unused(self) -> Weights:
        """The same place, for tensors that a checkpoint has but nothing here computes with."""
        return replace(self, used=False)

    def take(self, name: str, *shape: int, init: Init) -> Tensor:
        return self._placed(self._raw(name, shape, init))

    def take_normed(self, *shape: int, init: Init) -> Tensor:
        """`weight` from `weight_v` and `weight_g`: each slice along the first dimension has length g."""
        direction = self._raw("weight_v", shape, init)
        lengths = (shape[0],) + (1,) * (len(shape) - 1)
        length = self._raw("weight_g", lengths, lambda _, __: _slice_lengths(direction))
        if not self.used:
            return direction
        tiny = torch.finfo(torch.float32).tiny
        return self._placed(direction * (length / _slice_lengths(direction).clamp_min(tiny)))

    def note_counter(self, name: str) -> None:
        """A count of training steps that a checkpoint may have; never read."""
        spec = Spec((), optional=True, counter=True)
        self.source.tensor(self.prefix + name, spec, constant(0), used=False)

    def _raw(self, name: str, shape: Shape, init: Init) -> Tensor:
        return self.source.tensor(self.prefix + name, Spec(shape), init, used=self.used)

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous() if self.used else tensor


class Listing:
    """A source without values that notes what is asked for."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        self.specs[key] = spec
        return placeholder(spec.shape)


class Drawn:
    """A source of freshly initialised values; `tensors` keeps them all, as a checkpoint would."""

    def __init__(self, seed: int) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        drawn = init(spec.shape, self._generator)
        self.tensors[key] = drawn.to(torch.int64 if spec.counter else torch.float32)
        return self.tensors[key]


class Stored:
    """A source of tensors that are in memory already, by key."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        return self._tensors[key].float() if used else placeholder(spec.shape)


class _SafeSlice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _SafeFile(Protocol):
    """safetensors' own class, which has no types."""

    def keys(self) -> list[str]: ...
    def get_tensor(self, key: str) -> Tensor: ...
    def get_slice(self, key: str) -> _SafeSlice: ...


class CheckpointFile:
    """A source that reads a safetensors file; `problems_of` says first whether it has what is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ConfigError(f"{path} is missing: the codec's weights are read from safetensors only")
        try:
            self._file = cast(_SafeFile, safe_open(path, framework="pt"))
            self._keys = frozenset(self._file.keys())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} cannot be read as safetensors (cut short?): {error}") from error

    def problems_of(self, specs: Mapping[str, Spec]) -> list[str]:
        """What is wrong with keys, shapes and types, in words; keys that are not asked for are fine."""
        return [problem for key, spec in specs.items() if (problem := self._problem(key, spec))]

    def demand(self, specs: Mapping[str, Spec]) -> None:
        """ConfigError if there is any problem."""
        if problems := self.problems_of(specs):
            raise ConfigError(f"{self.path}: {told(problems)}")

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        if not used:
            return placeholder(spec.shape)
        return self._file.get_tensor(key).float()

    def _problem(self, key: str, spec: Spec) -> str | None:
        if key not in self._keys:
            return None if spec.optional else f'missing tensor "{key}" of shape {list(spec.shape)}'
        part = self._file.get_slice(key)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        if shape != spec.shape:
            return f'tensor "{key}" should have shape {list(spec.shape)}, not {list(shape)}'
        if not spec.counter and kind not in _FLOATS:
            return f'tensor "{key}" should hold floating-point numbers, not {kind}'
        return None


def placeholder(shape: Shape) -> Tensor:
    """Zeros that take no memory (they are one zero; "meta" tensors would take a second to import)."""
    return torch.zeros(()).expand(shape)


def told(problems: Iterable[str]) -> str:
    """The first problems in one line, and how many more there are."""
    every = list(problems)
    more = f" (and {len(every) - _SHOWN} more)" if len(every) > _SHOWN else ""
    return "; ".join(every[:_SHOWN]) + more


def constant(value: float) -> Init:
    return lambda shape, _: torch.full(shape, value)


def normal(deviation: float) -> Init:
    return lambda shape, generator: torch.randn(shape, generator=generator) * deviation


def uniform(bound: float) -> Init:
    return lambda shape, generator: (torch.rand(shape, generator=generator) * 2 - 1) * bound


def fan_in(shape: Shape) -> Init:
    """PyTorch's own for linear and convolution layers, weight and bias alike. shape: of the weight."""
    return uniform(1 / sqrt(prod(shape[1:])))


def _slice_lengths(tensor: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.dim())), keepdim=True)
    return lengths
