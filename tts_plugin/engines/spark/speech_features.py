"""What the published semantic encoder hears: the features of speech that wav2vec2 finds in a clip.

Only enrolling with a transcript needs them, so the network is loaded for one clip and let go.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import Wav2Vec2Config, Wav2Vec2Model

from tts_plugin.engines.spark.reference import Samples, volume_normalise
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown

_BLOCKS = (11, 14, 16)  # whose outputs are averaged; what is above the last one is not even loaded
_LEAST_VARIANCE = 1e-7  # of the features' published normalisation
_PREFIX = "wav2vec2."  # in a file of the whole pre-training model
# the two parts of a weight-normed weight: as old files have them, as newer torch calls them
_RENAMED = {
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}


def speech_features(wave: Samples, folder: Path) -> Tensor:
    """Float32 features [1, T, width], 50 a second, of a clip at 16 kHz. Loads 1.3 GB and blocks for seconds.

    folder: config.json with model.safetensors or pytorch_model.bin. ConfigError if they cannot be used.
    """
    model = _loaded(folder)
    outputs: list[Tensor] = []
    hooks = [
        model.encoder.layers[block - 1].register_forward_hook(
            # older releases answer with a tuple
            lambda _, __, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        )
        for block in _BLOCKS
    ]
    heard = torch.from_numpy(volume_normalise(wave)).float()
    heard = (heard - heard.mean()) / torch.sqrt(heard.var(correction=0) + _LEAST_VARIANCE)
    try:
        with torch.inference_mode():
            model(heard[None])
    except RuntimeError as error:  # torch's word for a clip shorter than the network's first step
        raise ConfigError(f"wav2vec2 cannot read this clip: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(outputs).mean(dim=0).clone()


def _loaded(folder: Path) -> Wav2Vec2Model:
    try:
        config = Wav2Vec2Config.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown(folder / 'config.json')} cannot be read: {error}") from error
    if config.num_hidden_layers < max(_BLOCKS):
        raise ConfigError(
            f"{shown(folder)} has {config.num_hidden_layers} layers, {max(_BLOCKS)} are needed: it is no "
            "wav2vec2-large-xlsr-53"
        )
    config.num_hidden_layers = max(_BLOCKS)
    with torch.device("meta"):  # the random values of 300 M weights would take seconds
        model = Wav2Vec2Model(config)
    path, found = _weights(folder)
    wanted = model.state_dict()
    named = {_name(key, wanted): tensor for key, tensor in found.items()}
    for key, tensor in wanted.items():
        if key not in named:
            raise ConfigError(f"{shown(path)} lacks {key}: fetch it again")
        if named[key].shape != tensor.shape:
            shapes = f"{list(tensor.shape)}, found {list(named[key].shape)}"
            raise ConfigError(f"{shown(path)}: {key} should be {shapes}: fetch it again")
    model.load_state_dict({key: named[key].to(torch.float32) for key in wanted}, assign=True)
    torch.nn.Module.eval(model)  # as its own class has it, it is untyped
    return model


def _weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file and its tensors; nothing but tensors is ever unpickled."""
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    path = safe if safe.is_file() else pickled
    try:
        if path == safe:
            return path, load_file(path)
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"{shown(path)} cannot be read as weights: {why}") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigError(f"{shown(path)} does not hold tensors by name: fetch it again")
    return path, state


def _name(key: str, wanted: dict[str, Tensor]) -> str:
    """A file's name of a tensor as this release of transformers calls it."""
    key = key.removeprefix(_PREFIX)
    for old, new in _RENAMED.items():
        for one, other in ((old, new), (new, old)):
            renamed = key.removesuffix(one) + other
            if key.endswith(one) and key not in wanted and renamed in wanted:
                return renamed
    return key
