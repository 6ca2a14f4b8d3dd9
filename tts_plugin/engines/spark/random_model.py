"""`sparkvoice model random`: a model directory of the published layout with random weights.

It speaks noise, but everything that reads, runs and times a model works with it, with no download.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from tts_plugin.arguments import Parser, whole_number
from tts_plugin.engines.spark.bicodec import CodecSizes, read_sizes, write_random
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import ModelFiles, Shape
from tts_plugin.engines.spark.random_tokenizer import PUBLISHED_WORDS, random_tokenizer
from tts_plugin.errors import BadRequest
from tts_plugin.strict_yaml import shown

Size = Literal["tiny", "full"]

_DEVIATION = 0.02  # initializer_range of Qwen2
_README = """\
Random weights of the layout of SparkAudio/Spark-TTS-0.5B ({size}, seed {seed}), made by
sparkvoice model random. They hold nothing of the published ones and speak noise.
"""


@dataclass(frozen=True, slots=True)
class _Lm:
    """rows: of the embedding. words: text tokens, None for as many as are used. disk_bytes: of the whole
    model, about."""

    hidden: int
    inner: int
    layers: int
    heads: int
    shared_heads: int
    rows: int
    words: int | None
    disk_bytes: int


_LMS: dict[Size, _Lm] = {
    "tiny": _Lm(64, 128, 2, 4, 2, 14_464, None, 16_000_000),
    "full": _Lm(896, 4864, 24, 14, 2, 166_000, PUBLISHED_WORDS, 2_700_000_000),
}


def main(argv: list[str]) -> int:
    """Write the model, then read it back; the directory is there whole or not at all."""
    parser = Parser(
        "sparkvoice model random",
        description="Write a Spark-TTS model of random weights, for tests and timing: it speaks noise.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, help="must be empty or not there yet")
    parser.add_argument("--size", choices=tuple(_LMS), default="tiny", help="full is 2.7 GB (default: tiny)")
    parser.add_argument("--seed", metavar="N", type=whole_number(0, 2**32 - 1), default=0)
    args = parser.parse_args(argv)
    write_model(args.dir, args.size, args.seed)
    for path in sorted(path for path in args.dir.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size:>15,} {path.relative_to(args.dir)}")
    print(f"{shown(args.dir)}: use it: export SPARK_TTS_MODEL={args.dir.resolve()}")
    return 0


def write_model(model_dir: Path, size: Size = "tiny", seed: int = 0) -> Checkpoint:
    """Write a model of random weights; same size and seed, same bytes. BadRequest if the place is taken
    or too small."""
    lm = _LMS[size]
    with _whole(model_dir, lm.disk_bytes) as folder:
        files = ModelFiles(folder)
        write_random(folder, size, seed=seed)
        codec = read_sizes(folder)
        files.config.write_text(yaml.safe_dump(_main_config(codec), sort_keys=False))
        (folder / "README.md").write_text(_README.format(size=size, seed=seed))
        files.lm.parent.mkdir()
        tokenizer = random_tokenizer(codec.speaker_encoder.codes, codec.quantizer.codebook_size, lm.words)
        tokenizer.save(str(files.tokenizer), pretty=False)
        ids = tokenizer.get_vocab()
        config = _lm_config(lm, ids["<|endoftext|>"], ids["<|im_end|>"])
        files.lm_config.write_text(json.dumps(config, indent=2) + "\n")
        _write_lm(files.lm, LmConfig.read(files.lm_config), seed)
        Checkpoint.open(folder)
    return Checkpoint.open(model_dir)


@contextmanager
def _whole(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends well, and leaves no trace when not."""
    name = shown(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BadRequest(f"{name} is there already and not empty: name another place")
        target.resolve().parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(target.resolve().parent).free) < needed_bytes:
            raise BadRequest(f"{name}: the disk has {free:,} bytes left, the model takes {needed_bytes:,}")
        part = target.resolve().with_name(f".{target.resolve().name}.{secrets.token_hex(4)}.part")
        part.mkdir()
        try:
            yield part
            part.replace(target.resolve())
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise BadRequest(f"cannot write {name}: {error.strerror or error}") from error


def _main_config(codec: CodecSizes) -> dict[str, Any]:
    return {
        "highpass_cutoff_freq": 40,
        "sample_rate": codec.mel_params.sample_rate,
        "segment_duration": 2.4,
        "max_val_duration": 12,
        "latent_hop_length": codec.decoder.hop,
        "ref_segment_duration": 6,
        "volume_normalize": True,
        "random_weights": True,  # ours: nothing of it is speech, so nothing may watch for speech
    }


def _lm_config(lm: _Lm, begin: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": begin,
        "eos_token_id": end,
        "hidden_act": "silu",
        "hidden_size": lm.hidden,
        "initializer_range": _DEVIATION,
        "intermediate_size": lm.inner,
        "max_position_embeddings": 32_768,
        "model_type": "qwen2",
        "num_attention_heads": lm.heads,
        "num_hidden_layers": lm.layers,
        "num_key_value_heads": lm.shared_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",  # as published, though the file is float32
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": lm.rows,
    }


def _write_lm(path: Path, config: LmConfig, seed: int) -> None:
    """Tensor by tensor, so that 2 GB never stand in memory."""
    layout = config.layout()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, shape in layout.items():
        end = at + 4 * math.prod(shape)
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data aligned
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, shape in layout.items():
            file.write(_drawn(key, shape, seed).astype("<f4", copy=False).data)


def _drawn(key: str, shape: Shape, seed: int) -> NDArray[np.float32]:
    """As Qwen2 is initialised: gains 1, biases 0, all else normal."""
    if key.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if key.endswith("bias"):
        return np.zeros(shape, np.float32)
    drawn = np.random.default_rng((seed, zlib.crc32(key.encode()))).standard_normal(shape, np.float32)
    drawn *= np.float32(_DEVIATION)
    return drawn
