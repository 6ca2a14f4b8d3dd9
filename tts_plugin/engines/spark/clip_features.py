"""What the semantic encoder hears of a transcribed clip: wav2vec2's features, or the codec's own mel bands.

Which of them, the checkpoint says. Only enrolling with a transcript needs them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec import BiCodec
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.engines.spark.reference import Samples, volume_normalise
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown


def require_features(checkpoint: Checkpoint) -> None:
    """ConfigError if they are wav2vec2's and it is not in the model directory."""
    folder = ModelFiles(checkpoint.path).wav2vec2
    if checkpoint.features == "wav2vec2" and not folder.is_dir():
        raise ConfigError(
            f"{shown(folder)} is not there, which a transcript needs: "
            f"sparkvoice model fetch {shown(checkpoint.path)} --transcripts; or leave the transcript out"
        )


def clip_features(wave: Samples, checkpoint: Checkpoint, codec: BiCodec) -> Tensor:
    """Float32 features [1, T, width], one a token, of a clip at the codec's rate. Blocks; wav2vec2 takes
    1.3 GB and seconds. ConfigError if they cannot be had."""
    if checkpoint.features == "mel":
        return codec.mel_features(torch.from_numpy(volume_normalise(wave)).float()[None])
    require_features(checkpoint)
    # transformers is large, and only these features need it
    from tts_plugin.engines.spark.speech_features import speech_features

    return speech_features(wave, ModelFiles(checkpoint.path).wav2vec2)
