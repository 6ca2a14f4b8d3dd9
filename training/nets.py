"""The codec in training: the very networks of the product, built over weights that can be learnt.

The product builds its layers from a source of tensors. Here the source holds parameters, and the networks are
built anew for every step, so weight norm and all else that is folded once there is part of the graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

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
_ECAPA = "speaker_encoder.speaker_encoder."
_NORM = re.compile(r"\.bns?\.(\d+\.)?weight$")
_NORM_GAIN = 2.4  # keeps the variance through a convolution as drawn and a ReLU
_QUERIES = "speaker_encoder.perceiver_sampler.latents"
_APART = 50.0  # queries as alike as they are drawn stay alike, and all tokens of a speaker become one
_EVEN = 0.2
_BLUR = 0.14  # a dimension, of a direction before it is rounded
_FAINT = 10.0  # one by the root mean square of the mel bands


class Learnt:
    """A source of parameters by the checkpoint's own keys. rest: tensors of it that nothing computes with."""

    def __init__(self, sizes: CodecSizes, seed: int, device: torch.device) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self.rest = draw(sizes, seed=seed)
        self._device = device
        # with bands as faint as they are, and norms that do not yet know what they normalise, the speaker
        # encoder would hear little but its own biases
        for key, value in self.rest.items():
            if key.startswith(_ECAPA) and _NORM.search(key):
                value.fill_(_NORM_GAIN)
        self.rest[f"{_ECAPA}layer1.conv.weight"] *= _FAINT
        self.rest[_QUERIES] *= _APART
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
        for key in self.rest:
            self.rest[key] = state[key]

    def under(self, *places: str) -> list[nn.Parameter]:
        """The parameters whose keys begin with one of `places`."""
        return [value for key, value in self.parameters.items() if key.startswith(places)]


@dataclass(frozen=True, slots=True)
class Quantised:
    """vectors: [B, C, T], what the codes stand for. codes: [B, T]. loss: draws directions and codes to each
    other, and directions apart. directions: [B * T, D], before they are rounded."""

    vectors: Tensor
    codes: Tensor
    loss: Tensor
    directions: Tensor


class Nets:
    """One step's networks; each is built when it is first asked for."""

    def __init__(self, source: Learnt, sizes: CodecSizes, device: torch.device) -> None:
        self._weights = Weights(source, device=device)
        self._sizes = sizes

    @cached_property
    def encoder(self) -> SemanticEncoder:
        return SemanticEncoder(self._weights.at("encoder"), self._sizes.encoder)

    @cached_property
    def codebook(self) -> Codebook:
        quantizer = self._sizes.quantizer
        return Codebook(
            self._weights.at("quantizer"),
            quantizer.input_dim,
            quantizer.codebook_size,
            quantizer.codebook_dim,
        )

    @cached_property
    def speaker(self) -> SpeakerEncoder:
        return SpeakerEncoder(self._weights.at("speaker_encoder"), self._sizes.speaker_encoder)

    @cached_property
    def prenet(self) -> Prenet:
        return Prenet(self._weights.at("prenet"), self._sizes.prenet)

    @cached_property
    def generator(self) -> Generator:
        return Generator(self._weights.at("decoder"), self._sizes.decoder)

    def all(self) -> tuple[SemanticEncoder, Codebook, SpeakerEncoder, Prenet, Generator]:
        return self.encoder, self.codebook, self.speaker, self.prenet, self.generator

    def steering(self, mel: Tensor) -> Tensor:
        """Mel [B, bands, frames] -> speaker vectors [B, D]; rounding passes its gradient straight through."""
        return self.speaker.vector(self.speaker.latents(mel))

    def quantised(self, features: Tensor, *, rounded: bool = True) -> Quantised:
        """Features [B, T, F] through their codes. rounded: False: through the directions themselves, blurred
        about as much as rounding will blur them."""
        aimed = F.normalize(self.codebook.narrowed(self.encoder(features)).float(), dim=1)
        directions = aimed.transpose(1, 2).flatten(0, 1)
        with torch.no_grad():
            codes = self.codebook.nearest_to(aimed)
        loss = _EVEN * uneven(directions)
        if rounded:
            drawn = F.embedding(codes, self.codebook.codes).transpose(1, 2)
            loss = loss + F.mse_loss(drawn, aimed.detach()) + 0.25 * F.mse_loss(aimed, drawn.detach())
            passed = aimed + (drawn - aimed).detach()
        else:
            passed = F.normalize(aimed + _BLUR * torch.randn_like(aimed), dim=1)
        return Quantised(self.codebook.widened(passed), codes, loss, directions.detach())

    def frames(self, vectors: Tensor, steering: Tensor) -> Tensor:
        """What the wave generator reads, [B, C, T]."""
        return self.prenet(vectors, steering) + steering[..., None]


def uneven(directions: Tensor) -> Tensor:
    """How far directions [N, D] are from using all dimensions alike: 0 if they do. Left alone they fall into
    half of the dimensions, and codes that lie close together there cannot tell much apart."""
    size = directions.shape[1]
    spread = size * directions.T @ directions / len(directions)
    return (spread - torch.eye(size, device=directions.device)).square().sum() / size
