"""Nets: the two networks of the decode path, by whatever runs them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.generator import Generator, keep_of
from tts_plugin.engines.spark.bicodec.weights import Weights


class Nets(Protocol):
    """Prenet and wave generator. rows: windows that are worth computing at once; more is never given."""

    rows: int

    def frames(self, vectors: Tensor, steering: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Looked-up codes [B, C, T] and speaker vectors [B, D], float32 on the CPU, to what `wave` reads.

        lengths: tokens of each row that are its own, int64 [B]; None: all of them.
        """
        ...

    def wave(
        self, frames: Tensor, lengths: Tensor | None = None, emit: tuple[int, int] | None = None
    ) -> Tensor:
        """Frames [B, C, T] to the float32 samples of tokens emit[0] .. emit[1] - 1, on the CPU; None: all."""
        ...

    def warm_up(self) -> None:
        """Compute what is only slow the first time."""
        ...


class TorchNets:
    """In torch, in the dtype and on the device of the weights."""

    rows = 8

    def __init__(self, weights: Weights, prenet: Prenet, generator: Generator) -> None:
        self._dtype = weights.dtype
        self._device = weights.device
        self._prenet = prenet
        self._generator = generator

    def frames(self, vectors: Tensor, steering: Tensor, lengths: Tensor | None = None) -> Tensor:
        vectors = vectors.to(self._device, self._dtype)
        return steered(self._prenet, vectors, steering.to(self._device, self._dtype), self._here(lengths))

    def wave(
        self, frames: Tensor, lengths: Tensor | None = None, emit: tuple[int, int] | None = None
    ) -> Tensor:
        if emit is None:
            return self._generator(frames, self._here(lengths)).cpu()
        return self._generator(frames, self._here(lengths), emit).cpu()

    def warm_up(self) -> None:
        pass

    def _here(self, lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else lengths.to(self._device)


def steered(prenet: Prenet, vectors: Tensor, steering: Tensor, lengths: Tensor | None) -> Tensor:
    """What the wave generator reads: the prenet's output and the speaker, added to every frame."""
    return prenet(vectors, steering, keep_of(vectors, lengths)) + steering[..., None]


def nets_of(weights: Weights, sizes: CodecSizes) -> tuple[Prenet, Generator]:
    return Prenet(weights.at("prenet"), sizes.prenet), Generator(weights.at("decoder"), sizes.decoder)
