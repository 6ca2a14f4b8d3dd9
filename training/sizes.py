"""The sizes of spark-mini: the published architecture, small enough to be trained on two CPU cores."""

from __future__ import annotations

from dataclasses import dataclass

from tts_plugin.engines.spark.bicodec.config import (
    CodecSizes,
    GeneratorSizes,
    MelSizes,
    NetSizes,
    PrenetSizes,
    QuantizerSizes,
    SpeakerSizes,
)

REF_S = 3.0  # of a clip that the speaker is taken from

CODEC = CodecSizes(
    mel_params=MelSizes(16000, 1024, 640, 320, 10.0, None, 80),
    # it hears the mel bands themselves, where the published one hears wav2vec2
    encoder=NetSizes(80, 160, 448, 4, 128),
    quantizer=QuantizerSizes(128, 1024, 8),
    speaker_encoder=SpeakerSizes(80, 128, 64, 16, (4, 4, 4, 4, 4), 1, 128, 256),
    prenet=PrenetSizes(128, 192, 512, 6, 128, condition_dim=128),
    postnet=PrenetSizes(128, 16, 16, 1, 128),  # served in training only, and not in ours
    decoder=GeneratorSizes(128, 192, (8, 5, 4, 2), (16, 11, 8, 4)),
)


@dataclass(frozen=True, slots=True)
class LmSizes:
    """Of a Qwen2."""

    hidden: int = 256
    inner: int = 704
    layers: int = 6
    heads: int = 4
    shared_heads: int = 2
    positions: int = 2048


LM = LmSizes()
