"""The semantic encoder: frames of speech features to the vectors that are looked up in the codebook."""

from __future__ import annotations

from torch import Tensor

from tts_plugin.engines.spark.bicodec.backbone import Backbone, Stages
from tts_plugin.engines.spark.bicodec.config import NetSizes
from tts_plugin.engines.spark.bicodec.layers import Linear
from tts_plugin.engines.spark.bicodec.weights import Weights


class SemanticEncoder:
    """[B, T, features] -> [B, C, T]; a frame is one token (20 ms)."""

    def __init__(self, weights: Weights, sizes: NetSizes) -> None:
        width, inner = sizes.vocos_dim, sizes.vocos_intermediate_dim
        self._backbone = Backbone(
            weights.at("encoder"), sizes.input_channels, width, inner, sizes.vocos_num_layers
        )
        self._stages = Stages(weights.at("downsample"), width, inner, len(sizes.sample_ratios))
        self._last = Linear(weights.at("project"), width, sizes.out_channels)

    def __call__(self, features: Tensor) -> Tensor:
        x = self._stages(self._backbone(features.transpose(1, 2)))
        return self._last(x).transpose(1, 2)
