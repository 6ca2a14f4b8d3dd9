"""A Qwen2 of two layers and 100,000 weights with a vocabulary of its own, for tests of the real backend."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tts_plugin.config import OpenVinoSettings
from tts_plugin.engines.spark.lm.hf import HfLM
from tts_plugin.engines.spark.lm.openvino import OpenVinoLM, properties
from tts_plugin.engines.spark.lm.openvino_net import Net, Reads
from tts_plugin.engines.spark.lm.openvino_weights import Source, Weights, compressed
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.engines.spark.vocabulary import Vocabulary

WORDS = 50  # text ids 0 .. 49
SEMANTIC = 40
GLOBAL = 24
_CONTROLS = (
    "im_end task_tts task_controllable_tts start_content end_content start_style_label end_style_label "
    "start_acoustic_token end_acoustic_token start_global_token end_global_token start_semantic_token "
    "end_semantic_token"
)
_FAMILIES = {
    "bicodec_global": GLOBAL,
    "bicodec_semantic": SEMANTIC,
    "gender": 2,
    "pitch_label": 5,
    "speed_label": 5,
    "pitch_value": 9,
    "speed_value": 7,
}


Told = Mapping[str, str | int]
# Only the weights are compressed: what a step computes does not depend on who else is in it.
EXACT: Told = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


def vocabulary() -> Vocabulary:
    families = [f"{family}_{number}" for family, count in _FAMILIES.items() for number in range(count)]
    names = [f"<|{name}|>" for name in (*_CONTROLS.split(), *families)]
    return Vocabulary.read({name: WORDS + at for at, name in enumerate(names)})


@cache
def model(tied: bool = True, hidden: int = 32) -> Qwen2ForCausalLM:
    """The same weights every time; large ones, so that no two logits are close. Do not change it."""
    ids = vocabulary()
    config = Qwen2Config(
        vocab_size=ids.id_count + 6,  # rows of padding, as published
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3 * (32 / hidden) ** 0.5,  # logits as far apart at any width
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=ids.eos,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made = Qwen2ForCausalLM(config)
    made.train(False)
    return made


def saved(folder: Path, *, tied: bool = True, hidden: int = 32) -> Path:
    """A model directory with only its LLM part."""
    model(tied, hidden).save_pretrained(folder / "LLM")
    return folder


def lm() -> HfLM:
    return HfLM(model, vocabulary())


def net() -> Net:
    """The same model compiled by OpenVINO, for one LM: after that is closed, its thread may read on."""
    return opened(_folder(), _folder())


@cache
def _folder() -> Path:
    folder = Path(mkdtemp())
    atexit.register(rmtree, folder, ignore_errors=True)
    return saved(folder)


def opened(model_dir: Path, cache_dir: Path, weights: Weights = "int8", told: Told | None = EXACT) -> Net:
    """told: what OpenVINO is told besides the threads; None: as the engine does."""
    files = ModelFiles(model_dir)
    source = Source(files, LmConfig.read(files.lm_config), vocabulary(), weights)
    place = compressed(source, cache_dir, lambda *_: None)
    usual = properties(OpenVinoSettings(threads=1))
    return Net(source, place, usual if told is None else {"INFERENCE_NUM_THREADS": 1, **told})


def openvino_lm(load: Callable[[], Reads] | None = None) -> OpenVinoLM:
    """load: None for a net that is there already, so that no test waits for it."""
    if load is None:
        ready = net()
        return openvino_lm(lambda: ready)
    ids = vocabulary()
    return OpenVinoLM(load, ids, tokens=ids.id_count + 6, context=512)


def static_lm() -> HfLM:
    return HfLM(model, vocabulary(), static_tokens=512)
