"""The speaker encoder: mel spectrogram to global tokens, and these to the vector that steers the decoder."""

from __future__ import annotations

from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import SpeakerSizes
from tts_plugin.engines.spark.bicodec.ecapa import Ecapa
from tts_plugin.engines.spark.bicodec.layers import Linear
from tts_plugin.engines.spark.bicodec.perceiver import Perceiver
from tts_plugin.engines.spark.bicodec.quantizers import ResidualGrid
from tts_plugin.engines.spark.bicodec.weights import Weights


class SpeakerEncoder:
    """Global tokens are [B, quantisers * tokens], all tokens of the first quantiser first."""

    def __init__(self, weights: Weights, sizes: SpeakerSizes) -> None:
        self._ecapa = Ecapa(weights.at("speaker_encoder"), sizes)
        self._perceiver = Perceiver(
            weights.at("perceiver_sampler"), sizes.ecapa_out_channels, sizes.latent_dim, sizes.token_num
        )
        self._grid = ResidualGrid(
            weights.at("quantizer"), sizes.latent_dim, sizes.fsq_levels, sizes.fsq_num_quantizers
        )
        self._project = Linear(weights.at("project"), sizes.latent_dim * sizes.token_num, sizes.out_dim)
        self._tokens = sizes.token_num

    def latents(self, mel: Tensor) -> Tensor:
        """[B, bands, frames] -> what is quantised, [B, tokens, width]."""
        return self._perceiver(self._ecapa(mel).transpose(1, 2))

    def encode(self, mel: Tensor) -> Tensor:
        """[B, bands, frames] -> int64 global tokens."""
        return self._grid.encode(self.latents(mel)).transpose(1, 2).flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        """int64 global tokens -> speaker vector [B, out_dim]."""
        codes = tokens.reshape(len(tokens), -1, self._tokens).transpose(1, 2)
        return self._steering(self._grid.decode(codes))

    def vector(self, latents: Tensor) -> Tensor:
        """What is quantised -> speaker vector, as by way of the tokens; differentiable, one quantiser."""
        return self._steering(self._grid.passed(latents))

    def _steering(self, quantised: Tensor) -> Tensor:
        # channel-major: all tokens of the first channel, then of the second
        return self._project(quantised.transpose(1, 2).flatten(1))
