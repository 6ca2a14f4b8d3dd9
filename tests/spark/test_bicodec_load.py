"""Loading is strict about what is needed, indifferent to what is not, and says in words what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.spark.codecs import DATA, TINY_DIR, WIDTHS, golden, tiny
from tts_plugin.engines.spark.bicodec import (
    PUBLISHED,
    BiCodec,
    layout,
    load_bicodec,
    read_sizes,
)
from tts_plugin.engines.spark.bicodec.config import CONFIG_FILE
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE
from tts_plugin.errors import ConfigError

IO = golden("tiny/io.npz")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    shutil.copytree(TINY_DIR / "BiCodec", tmp_path / "BiCodec")
    return tmp_path


def load(model_dir: Path) -> BiCodec:
    return load_bicodec(model_dir, dtype="float32", device="cpu", overrides=WIDTHS)


def change(model_dir: Path, without: tuple[str, ...] = (), **tensors: Tensor) -> None:
    """Rewrite the weights: keys that end in one of `without` are dropped, `tensors` added (`__` is a dot)."""
    path = model_dir / WEIGHTS_FILE
    kept = {key: value for key, value in load_file(path).items() if not key.endswith(without or ("\0",))}
    save_file(kept | {key.replace("__", "."): value for key, value in tensors.items()}, path)


def configure(model_dir: Path, section: str, key: str, value: object) -> None:
    path = model_dir / CONFIG_FILE
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if value is None:
        del data["audio_tokenizer"][section][key]
    else:
        data["audio_tokenizer"][section][key] = value
    path.write_text(yaml.safe_dump(data), encoding="utf-8")


def sounds_right(codec: BiCodec) -> bool:
    wave = codec.decode(IO["semantic_tokens"], IO["global_tokens"].squeeze(1))
    return torch.equal(wave, tiny().decode(IO["semantic_tokens"], IO["global_tokens"].squeeze(1)))


def test_every_published_key_is_asked_for_in_its_shape_and_no_other() -> None:
    told = json.loads((DATA / "bicodec_full_keys.json").read_text(encoding="utf-8"))
    published = {
        entry["key"]: (tuple(entry["shape"]), entry["dtype"])
        for entry in told["keys"]
        if entry["in_checkpoint"]
    }
    ours = {
        key: (spec.shape, "int64" if spec.counter else "float32") for key, spec in layout(PUBLISHED).items()
    }
    assert ours == published
    size = sum(torch.Size(shape).numel() * (8 if kind == "int64" else 4) for shape, kind in ours.values())
    assert size == told["total_bytes_in_checkpoint"]


def test_only_counters_may_be_absent() -> None:
    optional = [key for key, spec in layout(PUBLISHED).items() if spec.optional]
    assert optional
    assert all(key.endswith("num_batches_tracked") for key in optional)


def test_a_checkpoint_without_counters_loads(model_dir: Path) -> None:
    change(model_dir, without=("num_batches_tracked",))
    assert sounds_right(load(model_dir))


def test_further_tensors_and_the_mel_tables_are_ignored(model_dir: Path) -> None:
    change(model_dir, unheard__of=torch.ones(3), mel_transformer__spectrogram__window=torch.ones(7))
    assert sounds_right(load(model_dir))


@pytest.mark.parametrize(
    "key",
    [
        "quantizer.codebook.weight",
        "quantizer.cluster_size",
        "decoder.model.1.block.1.weight_g",
        "prenet.vocos_backbone.convnext.2.norm.scale.bias",
        "postnet.linear.weight",  # unused, and demanded all the same: a file without it is another model's
        "speaker_encoder.speaker_encoder.pool.linear1.weight",
    ],
)
def test_a_missing_tensor_is_named(model_dir: Path, key: str) -> None:
    change(model_dir, without=(key,))
    with pytest.raises(ConfigError) as caught:
        load(model_dir)
    assert str(model_dir / WEIGHTS_FILE) in str(caught.value)
    assert f'missing tensor "{key}" of shape [' in str(caught.value)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(model_dir: Path) -> None:
    change(model_dir, decoder__model__0__weight_v=torch.ones(32, 24, 5))
    with pytest.raises(ConfigError) as caught:
        load(model_dir)
    assert '"decoder.model.0.weight_v" should have shape [32, 24, 7], not [32, 24, 5]' in str(caught.value)


def test_a_tensor_of_integers_is_refused(model_dir: Path) -> None:
    change(model_dir, prenet__linear__bias=torch.ones(24, dtype=torch.int32))
    with pytest.raises(
        ConfigError, match=r'"prenet\.linear\.bias" should hold floating-point numbers, not I32'
    ):
        load(model_dir)


def test_a_checkpoint_in_half_precision_is_read_as_float32(model_dir: Path) -> None:
    path = model_dir / WEIGHTS_FILE
    halves = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in load_file(path).items()
    }
    save_file(halves, path)
    codec = load(model_dir)
    wave = codec.decode(IO["semantic_tokens"], IO["global_tokens"].squeeze(1))
    assert wave.dtype == torch.float32
    assert wave.isfinite().all()


def test_many_problems_are_counted(model_dir: Path) -> None:
    change(model_dir, without=(".alpha",))
    missing = 4 * 7 + 1
    with pytest.raises(ConfigError, match=rf"\(and {missing - 5} more\)"):
        load(model_dir)


def test_the_published_widths_do_not_fit_the_tiny_fixture() -> None:
    with pytest.raises(ConfigError, match=r"should have shape \[512, 20, 5\], not \[16, 20, 5\]"):
        load_bicodec(TINY_DIR, dtype="float32", device="cpu")


def test_a_directory_without_a_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no Spark-TTS model: it has no BiCodec/config\.yaml"):
        load(tmp_path)


def test_a_config_of_something_else_is_refused(model_dir: Path) -> None:
    (model_dir / CONFIG_FILE).write_text("sample_rate: 16000\n", encoding="utf-8")
    with pytest.raises(ConfigError, match='missing key "audio_tokenizer"'):
        load(model_dir)


def test_weights_that_are_missing_or_cut_short_are_refused(model_dir: Path) -> None:
    path = model_dir / WEIGHTS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        load(model_dir)
    path.unlink()
    with pytest.raises(ConfigError, match="is missing: the codec's weights are read from safetensors only"):
        load(model_dir)


@pytest.mark.parametrize("dtype", ["float16", "fp16", torch.float16])
def test_float16_is_refused_with_what_to_use(dtype: str | torch.dtype) -> None:
    with pytest.raises(ConfigError, match="use bfloat16 on a GPU, float32 on a CPU"):
        load_bicodec(TINY_DIR, dtype=dtype, device="cpu", overrides=WIDTHS)


def test_another_dtype_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match='did you mean "bfloat16"'):
        load_bicodec(TINY_DIR, dtype="bfloat", device="cpu", overrides=WIDTHS)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f'device "{device}" cannot be used here'):
        load_bicodec(TINY_DIR, dtype="float32", device=device, overrides=WIDTHS)


@pytest.mark.parametrize("widths", [{"ecapa_chanels": 16}, {"ecapa_channels": "16"}, {"ecapa_channels": 12}])
def test_bad_overrides_are_refused(widths: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="override"):
        load_bicodec(TINY_DIR, dtype="float32", device="cpu", overrides=widths)


def test_bfloat16_decodes_nearly_the_same_and_encodes_exactly_the_same() -> None:
    codec = load_bicodec(TINY_DIR, dtype="bfloat16", device="cpu", overrides=WIDTHS)
    exact = tiny().decode(IO["long_semantic"], IO["long_global"].squeeze(1))
    wave = codec.decode(IO["long_semantic"], IO["long_global"].squeeze(1))
    assert wave.dtype == torch.float32
    assert 10 * torch.log10(exact.square().mean() / (wave - exact).square().mean()) > 25
    assert torch.equal(codec.encode_global(IO["ref_wav"]), IO["global_tokens"].squeeze(1).long())
    assert torch.equal(codec.encode_semantic(IO["feat"]), IO["semantic_tokens"])


def test_unknown_keys_of_the_config_are_left_alone(model_dir: Path) -> None:
    configure(model_dir, "decoder", "new_key", 3)
    assert sounds_right(load(model_dir))


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("quantizer", "codebook_dim", None, 'missing key "audio_tokenizer.quantizer.codebook_dim"'),
        ("decoder", "channels", "32", 'audio_tokenizer.decoder.channels should be a valid integer, not "32"'),
        ("decoder", "rates", [], "audio_tokenizer.decoder.rates"),
        ("decoder", "rates", [8, 5, 4], "3 rates but 4 kernel_sizes"),
        ("decoder", "kernel_sizes", [16, 10, 8, 4], "a kernel of 10 does not lengthen exactly 5 times"),
        ("decoder", "channels", 40, "40 channels cannot be halved 4 times"),
        ("decoder", "d_out", 2, "only one channel of sound"),
        ("prenet", "sample_ratios", [1, 2], "only 1 is supported"),
        ("prenet", "out_channels", 25, "prenet.out_channels: should be equal, not 24 and 25"),
        ("prenet", "condition_dim", None, "prenet.condition_dim: should be equal, not 24 and None"),
        ("speaker_encoder", "fsq_levels", [4, 1], "a level of fsq_levels is less than 2"),
        ("mel_params", "win_length", 2048, "win_length 2048 is longer than n_fft 1024"),
        ("mel_params", "mel_fmax", 9000, "are no band to hear"),
    ],
)
def test_a_config_that_cannot_be_used_is_told_in_words(
    model_dir: Path, section: str, key: str, value: object, said: str
) -> None:
    configure(model_dir, section, key, value)
    with pytest.raises(ConfigError) as caught:
        read_sizes(model_dir)
    assert CONFIG_FILE in str(caught.value)
    assert said in str(caught.value)
