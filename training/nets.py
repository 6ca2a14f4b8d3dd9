"""The codec in training: the very networks of the product, built over weights that can be learnt.

The product builds its layers from a source of tensors. Here the source holds parameters, and the networks are
built anew for every step, so weight norm and all else that is folded once there is part of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.encoder import SemanticEncoder
from tts_plugin.engines.spark.bicodec.generator import Generator
from tts_plugin.engines.spark.bicodec.quantizers import Codebook
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.speaker import SpeakerEncoder
from tts_plugin.engines.spark.bicodec.weights import Init, Spec, Weights, placeholder

CODES = "quantizer.codebook.weight"


class Learnt:
    """A source of parameters by the checkpoint's own keys. rest: tensors of it that nothing computes with."""

    def __init__(self, sizes: CodecSizes, seed: int, device: torch.device) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self.rest = draw(sizes, seed=seed)
        self._device = device
        self.rest[CODES] = F.normalize(self.rest[CODES])  # a code is used as stored, so it stays a direction

    def tensor(self, key: str, spec: Spec, init: Init, *, used: bool) -> Tensor:
        if not used:
            return placeholder(spec.shape)
        if key not in self.parameters:
            self.parameters[key] = nn.Parameter(self.rest.pop(key).to(self._device))
        return self.parameters[key]

    def state(self) -> dict[str, Tensor]:
        """The whole checkpoint, detached."""
        learnt = {key: value.detach().cpu().contiguous() for key, value in self.parameters.items()}
        return {**self.rest, **learnt}

    def load(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for key, value in self.parameters.items():
                value.copy_(state[key])


@dataclass(frozen=True, slots=True)
class Nets:
    """One step's networks."""

    encoder: SemanticEncoder
    codebook: Codebook
    speaker: SpeakerEncoder
    prenet: Prenet
    generator: Generator

    @classmethod
    def over(cls, source: Learnt, sizes: CodecSizes, device: torch.device) -> Nets:
        weights = Weights(source, device=device)
        quantizer = sizes.quantizer
        return cls(
            SemanticEncoder(weights.at("encoder"), sizes.encoder),
            Codebook(
                weights.at("quantizer"), quantizer.input_dim, quantizer.codebook_size, quantizer.codebook_dim
            ),
            SpeakerEncoder(weights.at("speaker_encoder"), sizes.speaker_encoder),
            Prenet(weights.at("prenet"), sizes.prenet),
            Generator(weights.at("decoder"), sizes.decoder),
        )

    def steering(self, mel: Tensor) -> Tensor:
        """Mel [B, bands, frames] -> speaker vectors [B, D]; rounding passes its gradient straight through."""
        return self.speaker.vector(self.speaker.latents(mel))

    def quantised(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features [B, T, F] -> vectors [B, C, T] through their codes, the codes, the loss that draws vectors
        and codes to each other, and the directions [B * T, D] before they are rounded."""
        aimed = F.normalize(self.codebook.narrowed(self.encoder(features)).float(), dim=1)
        with torch.no_grad():
            codes = self.codebook.nearest_to(aimed)
        drawn = F.embedding(codes, self.codebook.codes).transpose(1, 2)
        loss = F.mse_loss(drawn, aimed.detach()) + 0.25 * F.mse_loss(aimed, drawn.detach())
        passed = aimed + (drawn - aimed).detach()
        return self.codebook.widened(passed), codes, loss, aimed.detach().transpose(1, 2).flatten(0, 1)

    def frames(self, vectors: Tensor, steering: Tensor) -> Tensor:
        """What the wave generator reads, [B, C, T]."""
        return self.prenet(vectors, steering) + steering[..., None]
