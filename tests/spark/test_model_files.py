"""A model directory is looked over before it is loaded, and what is wrong with it is said in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import Qwen2ForCausalLM

from tts_plugin.config import SparkSettings
from tts_plugin.engines.spark.bicodec import load_bicodec
from tts_plugin.engines.spark.checkpoint import Checkpoint, examine
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import TensorFile, configured
from tts_plugin.engines.spark.random_model import write_model
from tts_plugin.engines.spark.random_tokenizer import random_tokenizer
from tts_plugin.errors import ConfigError

LM, CODEC, TOKENIZER = "LLM/model.safetensors", "BiCodec/model.safetensors", "LLM/tokenizer.json"
Arrays = dict[str, Any]  # numpy arrays by key


def problems(model: Path) -> list[str]:
    checkpoint, found = examine(model)
    assert (checkpoint is None) == bool(found)
    return found


def rewrite(path: Path, change: Callable[[Arrays], Any]) -> None:
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)


def rewrite_json(path: Path, change: Callable[[Any], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


# --- a whole one


def test_a_random_model_opens_and_says_what_it_is(tiny_model: Path) -> None:
    checkpoint = Checkpoint.open(tiny_model)
    v, sizes = checkpoint.vocabulary, checkpoint.sizes
    assert (v.global_count, v.semantic_count) == (4096, 8192)
    assert (sizes.rate, sizes.hop, sizes.globals_, sizes.ref_s) == (16_000, 320, 32, 6.0)
    assert sizes.rows > v.id_count  # as published: rows that mean nothing
    prompt = checkpoint.prompts.clone("Hello <|im_end|>.", range(32))
    assert prompt[:2] == [v.task_tts, v.start_content]
    assert v.eos not in prompt


def test_its_language_model_loads_in_transformers_whole_and_tied(tiny_model: Path) -> None:
    # Any: with output_loading_info it is a pair, which its types do not say
    pair: Any = Qwen2ForCausalLM.from_pretrained(
        tiny_model / "LLM", dtype=torch.float32, output_loading_info=True
    )
    lm, told = pair
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert lm.lm_head.weight.data_ptr() == lm.model.embed_tokens.weight.data_ptr()
    logits = lm(torch.tensor([Checkpoint.open(tiny_model).prompts.clone("Hello.", range(32))])).logits
    assert logits.shape[-1] == lm.config.vocab_size
    assert logits.isfinite().all()


def test_its_codec_loads(tiny_model: Path) -> None:
    codec = load_bicodec(tiny_model, dtype="float32", device="cpu")
    assert codec.decode(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 32, dtype=torch.long)).shape == (
        1,
        960,
    )


def test_the_layout_of_the_published_language_model_is_its_290_tensors_of_507_million_numbers() -> None:
    published = LmConfig(
        model_type="qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=166_000,
        tie_word_embeddings=True,
        eos_token_id=151_645,
    )
    layout = published.layout()
    assert len(layout) == 290
    # the published file is 2,026,568,968 bytes: 4 a number, and a header
    assert 0 < 2_026_568_968 - 4 * sum(int(np.prod(shape)) for shape in layout.values()) < 50_000


def test_the_revision_stays_until_the_codec_changes(tiny_model: Path, tmp_path: Path) -> None:
    first = Checkpoint.open(tiny_model).revision
    assert Checkpoint.open(Path(shutil.copytree(tiny_model, tmp_path / "copy"))).revision == first
    assert write_model(tmp_path / "other", seed=1).revision != first


# --- no model directory at all


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "BiCodec/config.yaml",
        CODEC,
        "LLM/config.json",
        LM,
        TOKENIZER,
    ],
)
def test_a_missing_file_is_named(name: str, model: Path) -> None:
    (model / name).unlink()
    with pytest.raises(
        ConfigError, match=rf"is not a model directory: it lacks {name}; get the published one: "
    ):
        Checkpoint.open(model)


def test_a_directory_that_is_not_there_or_is_a_file_is_named(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere is not there; .*sparkvoice model fetch DIR"):
        Checkpoint.open(model / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.yaml is a file, not a model directory"):
        Checkpoint.open(model / "config.yaml")


def test_the_directory_above_or_below_is_pointed_to(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"it lacks .*; did you mean \S*model\?$"):
        Checkpoint.open(model / "LLM")
    with pytest.raises(ConfigError, match=r"it lacks .*; did you mean \S*model\?$"):
        Checkpoint.open(model.parent)


def test_without_a_model_named_it_is_said_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"set SPARK_TTS_MODEL or engine\.spark\.model"):
        configured(SparkSettings())
    assert configured(SparkSettings(model=Path("here"))) == Path("here")


# --- weights


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def entry(begin: int, end: int, dtype: str = "F32", shape: str = "[2]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a safetensors file (it is empty)"),
        (b"\x05", "is not a safetensors file"),
        (b"PK\x03\x04" + bytes(60), "is not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a git-lfs pointer"),
        (safetensors(b'{"a":' + b" " * 40)[:30], "is cut off: 30 bytes of 53"),
        (safetensors(f'{{"a":{entry(0, 8)}}}'.encode(), bytes(5)), "is cut off: "),
        (safetensors(f'{{"a":{entry(0, 8)}}}'.encode(), bytes(9)), "has 1 bytes too many"),
        (safetensors(b'{"a":'), "its header is broken"),
        (safetensors(b'{"a":3}'), "its header is broken"),
        (safetensors(f'{{"a":{entry(0, 9)}}}'.encode(), bytes(9)), "a takes 9 bytes, which is not F32 [2]"),
        (safetensors(f'{{"a":{entry(4, 12)}}}'.encode(), bytes(12)), "overlap or leave a hole at byte 0"),
        (
            safetensors(f'{{"a":{entry(0, 8)},"b":{entry(0, 8)}}}'.encode(), bytes(8)),
            "overlap or leave a hole at byte 8",
        ),
        (safetensors(f'{{"a":{entry(0, 8, "F17")}}}'.encode(), bytes(8)), "its header is broken"),
    ],
)
def test_a_broken_weights_file_is_told_from_a_whole_one(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        TensorFile.read(path)
    assert said in str(caught.value)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("name", [LM, CODEC])
def test_a_download_that_was_cut_off_is_named(name: str, model: Path) -> None:
    path = model / name
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole - 1000)
    (said,) = problems(model)
    assert said.endswith(
        f"{name} is cut off: {whole - 1000:,} bytes of {whole:,}; delete it and fetch it again"
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (LM, "model.layers.1.mlp.up_proj.weight"),
        (LM, "model.norm.weight"),
        (CODEC, "prenet.linear.bias"),
        (CODEC, "speaker_encoder.perceiver_sampler.latents"),
    ],
)
def test_a_tensor_that_is_missing_or_misshapen_is_named(name: str, key: str, model: Path) -> None:
    rewrite(model / name, lambda arrays: arrays.update({key: arrays[key][:-1]}))
    (said,) = problems(model)
    assert f"{name}: {key} should be [" in said
    rewrite(model / name, lambda arrays: arrays.pop(key))
    (said,) = problems(model)
    assert said.endswith(f"tensors are missing: {key}")
    assert said.partition(": ")[2].startswith("1 of ")


def test_a_file_of_another_model_does_not_drown_the_reader_in_keys(model: Path) -> None:
    save_file({"other": np.zeros(2, np.float32)}, model / LM)
    (said,) = problems(model)
    assert "26 of 26 tensors are missing: model.embed_tokens.weight, " in said
    assert said.endswith("and 22 more")


def test_tensors_and_counters_that_nobody_asked_for_do_not_matter(model: Path) -> None:
    def change(arrays: Arrays) -> None:
        arrays["extra"] = np.zeros(3, np.int64)
        for key in [key for key in arrays if key.endswith("num_batches_tracked")]:
            del arrays[key]

    rewrite(model / CODEC, change)
    assert problems(model) == []


@pytest.mark.parametrize("name", [LM, CODEC])
def test_half_precision_weights_are_refused_with_the_reason(name: str, model: Path) -> None:
    rewrite(
        model / name, lambda arrays: arrays.update({key: a.astype(np.float16) for key, a in arrays.items()})
    )
    (said,) = problems(model)
    assert "tensors are float16, in which this model speaks garbage: take the published file" in said


def test_weights_that_are_no_floats_are_refused(model: Path) -> None:
    rewrite(model / LM, lambda arrays: arrays.update({"model.norm.weight": np.ones(64, np.int32)}))
    assert problems(model)[0].endswith("tensors should be F32 or BF16, but model.norm.weight is I32")


# --- tokenizer and configs


def test_a_tokenizer_with_too_few_codes_is_named_by_family_expected_and_found(model: Path) -> None:
    random_tokenizer(4096, 8191).save(str(model / TOKENIZER))
    (said,) = problems(model)
    assert said == (
        "tokenizer: expected 8192 <|bicodec_semantic_N|> tokens, as many as the codec has codes, found 8191"
    )


def test_a_tokenizer_of_another_model_is_named_by_what_it_lacks(model: Path) -> None:
    rewrite_json(model / TOKENIZER, lambda data: data["added_tokens"].__delitem__(slice(22, None)))
    assert "the tokenizer has no <|bicodec_semantic_N|> tokens" in problems(model)


def test_a_tokenizer_larger_than_the_language_model_is_named(model: Path) -> None:
    random_tokenizer(4096, 8192, words=5_000).save(str(model / TOKENIZER))
    assert [said.partition(", but")[0] for said in problems(model)] == [
        "tokenizer: ids go up to 18514",
        "tokenizer: <|im_end|> is id 5002",
    ]


def test_a_tokenizer_that_cannot_spell_everything_is_named(model: Path) -> None:
    def change(data: Any) -> None:
        words = data["model"]["vocab"]
        words["zz"] = words.pop("ä")  # how a byte-level tokenizer writes the byte E4
        data["model"]["merges"] = []

    rewrite_json(model / TOKENIZER, change)
    (said,) = problems(model)
    assert "tokenizer.json loses text: " in said


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"added_tokens":[],"model":{"vocab":{}}}', "\xff"])
def test_a_file_that_is_no_tokenizer_is_named(content: str, model: Path) -> None:
    (model / TOKENIZER).write_text(content, encoding="latin-1")
    (said,) = problems(model)
    assert "tokenizer.json is not a tokenizer: " in said


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "config.yaml",
            "sample_rate: 16000",
            "sample_rate: 24000",
            "config.yaml: sample_rate is 24000, but ",
        ),
        (
            "config.yaml",
            "latent_hop_length: 320",
            "latent_hop_length: 160",
            "config.yaml: latent_hop_length is 160",
        ),
        ("config.yaml", "ref_segment_duration: 6", "ref: 6", 'missing key "ref_segment_duration"'),
        (
            "config.yaml",
            "volume_normalize: true",
            "semantic_features: mel",
            "there are 20 bands (mel_params.num_mels) for the 1024 channels of the encoder",
        ),
        (
            "config.yaml",
            "volume_normalize: true",
            "semantic_features: hubert",
            "semantic_features should be 'wav2vec2' or 'mel'",
        ),
        (
            "BiCodec/config.yaml",
            "codebook_size: 8192",
            "codebook_size: many",
            "codebook_size should be a valid",
        ),
        ("LLM/config.json", '"qwen2"', '"llama"', "LLM/config.json: model_type: Input should be 'qwen2'"),
        ("LLM/config.json", '"hidden_size": 64,', "", "LLM/config.json: hidden_size: Field required"),
        ("LLM/config.json", "{", "", "LLM/config.json: not JSON: "),
        ("LLM/config.json", '"eos_token_id": 572', '"eos_token_id": 3', "but LLM/config.json ends with 3"),
    ],
)
def test_a_config_that_does_not_fit_is_named(name: str, old: str, new: str, said: str, model: Path) -> None:
    text = (model / name).read_text()
    assert old in text
    (model / name).write_text(text.replace(old, new, 1))
    assert any(said in problem for problem in problems(model)), problems(model)


def test_everything_wrong_is_listed_and_opening_tells_the_first_and_how_to_see_the_rest(model: Path) -> None:
    (model / LM).write_bytes(b"")
    (model / TOKENIZER).write_text("{}")
    rewrite(model / CODEC, lambda arrays: arrays.pop("prenet.linear.bias"))
    assert len(problems(model)) == 3
    with pytest.raises(
        ConfigError, match=r"is empty\) \(and 2 more, see: sparkvoice model check \S*model\)$"
    ):
        Checkpoint.open(model)
