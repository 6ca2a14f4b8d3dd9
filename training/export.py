"""Writes what was trained as a model directory of the published layout, in bfloat16."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from training.lm import LmTraining
from training.nets import Learnt
from training.sizes import CODEC, REF_S
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.model_files import ModelFiles

_MAIN = {
    "sample_rate": CODEC.mel_params.sample_rate,
    "latent_hop_length": CODEC.decoder.hop,
    "ref_segment_duration": REF_S,
    "volume_normalize": True,
    "semantic_features": "mel",  # of the codec's own front end, where the published model has wav2vec2
}


def export(codec: Learnt, lm: LmTraining, folder: Path) -> Checkpoint:
    """Write `folder` and read it back."""
    files = ModelFiles(folder)
    files.codec.parent.mkdir(parents=True, exist_ok=True)
    files.lm.parent.mkdir(parents=True, exist_ok=True)
    files.config.write_text(yaml.safe_dump(_MAIN, sort_keys=False))
    files.codec_config.write_text(yaml.safe_dump(CODEC.as_yaml(), sort_keys=False))
    save_file(halved(codec.state()), files.codec, metadata={"format": "pt"})
    shutil.copyfile(lm.words.path, files.tokenizer)
    config = lm.model.config.to_dict() | {"torch_dtype": "bfloat16"}
    files.lm_config.write_text(json.dumps(config, indent=2, default=str) + "\n")
    weights = {key: tensor.detach().cpu() for key, tensor in lm.model.state_dict().items()}
    del weights["lm_head.weight"]  # tied: the embedding is the head
    save_file(halved(weights), files.lm, metadata={"format": "pt"})
    return Checkpoint.open(folder)


def halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Floats as bfloat16: half the file, and the codes still come out of the same float32 arithmetic."""
    return {
        key: tensor.to(torch.bfloat16).contiguous() if tensor.is_floating_point() else tensor
        for key, tensor in tensors.items()
    }
