"""From a recording to a voice: the tokens, the features of a transcribed clip, and the command."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
import torch
import yaml
from safetensors.torch import save_file
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForPreTraining, Wav2Vec2Model

from tests.spark.test_clip import SPEECH, repeated, saved
from tests.spark.test_speakers import CountedCodec
from tts_plugin.cli import main
from tts_plugin.config import cache_folder
from tts_plugin.engine import ENGINES
from tts_plugin.engines.spark.bicodec import TINY, BiCodec, random_bicodec, read_sizes
from tts_plugin.engines.spark.bicodec.config import CONFIG_FILE
from tts_plugin.engines.spark.bicodec.random_weights import draw
from tts_plugin.engines.spark.bicodec.weights import WEIGHTS_FILE, CheckpointFile, Stored, Weights
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.clip import examine_clip
from tts_plugin.engines.spark.clip_features import require_features
from tts_plugin.engines.spark.enroll import enrolled
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.engines.spark.new_voice import _write
from tts_plugin.engines.spark.reference import volume_normalise
from tts_plugin.engines.spark.speakers import Speakers
from tts_plugin.engines.spark.speech_features import speech_features
from tts_plugin.engines.spark.voice import SparkVoice
from tts_plugin.errors import BadRequest, ConfigError
from tts_plugin.voices import VoiceRegistry
from tts_plugin.worker import SerialWorker

DATA = Path(__file__).parents[1] / "data"
CLIP = DATA / "librivox_sense_0890.wav"
SAID = "Unless to be rather cold hearted and rather selfish is to be ill disposed."
WIDTH = 16  # of the little wav2vec2 here


NARROW = dataclasses.replace(TINY, encoder=dataclasses.replace(TINY.encoder, input_channels=WIDTH))


# --- tokens


class Listener(BiCodec):
    """Keeps what the speaker encoder was given last."""

    heard = torch.zeros(0)

    def encode_global(self, wave: torch.Tensor) -> torch.Tensor:
        self.heard = wave
        return super().encode_global(wave)


@pytest.fixture
def listener() -> Listener:
    return Listener(Weights(Stored(draw(TINY)), torch.float32, torch.device("cpu")), TINY)


def test_the_speaker_is_taken_from_the_first_seconds_whatever_their_level_and_rate(
    listener: Listener, tmp_path: Path
) -> None:
    tokens = enrolled(SPEECH, listener, 4.0)
    heard = listener.heard.clone()
    assert heard.shape == (1, 64_000)
    np.testing.assert_array_equal(heard[0], volume_normalise(SPEECH)[:64_000].astype(np.float32))
    assert tokens.global_tokens == tuple(listener.encode_global(heard)[0].tolist())
    assert len(tokens.global_tokens) == 32
    assert tokens.semantic_tokens == ()

    enrolled(SPEECH * 0.5, listener, 4.0)
    # not exactly: what was faint before it was raised does not count as signal
    torch.testing.assert_close(listener.heard, heard, atol=1e-3, rtol=0.15)
    wide = np.stack((soxr.resample(SPEECH, 16_000, 48_000),) * 2, 1)
    enrolled(examine_clip(saved(tmp_path, wide, rate=48_000)).wave, listener, 4.0)
    torch.testing.assert_close(listener.heard, heard, atol=0.02, rtol=0)


def test_a_short_clip_is_repeated_until_it_fills_the_encoder(listener: Listener) -> None:
    enrolled(SPEECH[:40_000], listener, 6.01)
    assert listener.heard.shape == (1, 96_000)  # whole tokens of 20 ms
    torch.testing.assert_close(listener.heard[0, 40_000:80_000], listener.heard[0, :40_000])


# --- features


def config(**changes: object) -> Wav2Vec2Config:
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 18,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "conv_dim": (8,) * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "do_stable_layer_norm": True,
        "feat_extract_norm": "layer",
        "conv_bias": True,
        "codevector_dim": 8,
        "proj_codevector_dim": 8,
        "num_codevectors_per_group": 4,
    }
    settings: Any = sizes | changes  # as a JSON file would give them
    return Wav2Vec2Config(**settings)


def old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As files from before torch 2.1 call a weight-normed weight's parts; the published one is such."""
    return {
        key.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor.clone()
        for key, tensor in state.items()
    }


@pytest.fixture
def hears_mel(model: Path) -> Path:
    """A checkpoint whose semantic encoder hears the codec's own mel bands."""
    encoder = dataclasses.replace(TINY.encoder, input_channels=TINY.mel_params.num_mels)
    sizes = dataclasses.replace(TINY, encoder=encoder)
    (model / CONFIG_FILE).write_text(yaml.safe_dump(sizes.as_yaml()))
    save_file(draw(sizes), model / WEIGHTS_FILE)
    with ModelFiles(model).config.open("a") as file:
        file.write("semantic_features: mel\n")
    return model


@pytest.fixture(scope="module")
def pretraining() -> Wav2Vec2ForPreTraining:
    torch.manual_seed(0)
    model: Any = Wav2Vec2ForPreTraining(config())  # its eval() has no types
    model.eval()
    made: Wav2Vec2ForPreTraining = model
    return made


def written(folder: Path, model: torch.nn.Module, kind: str, *, old: bool = True) -> Path:
    folder.mkdir(parents=True)
    config().save_pretrained(folder)
    state = model.state_dict()
    state = old_names(state) if old else {key: tensor.clone() for key, tensor in state.items()}
    if kind == "safetensors":
        save_file(state, folder / "model.safetensors")
    else:
        torch.save(state, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_the_features_are_the_mean_of_three_blocks_of_the_whole_model(
    tmp_path: Path, pretraining: Wav2Vec2ForPreTraining, kind: str, old: bool
) -> None:
    folder = written(tmp_path / "w2v", pretraining, kind, old=old)
    features = speech_features(SPEECH[:48_000] * 0.3, folder)
    assert features.shape == (1, (48_000 - 400) // 320 + 1, WIDTH)
    assert features.dtype == torch.float32

    extractor: Any = Wav2Vec2FeatureExtractor  # has no types
    published = extractor(do_normalize=True, return_attention_mask=True)
    wave = published(volume_normalise(SPEECH[:48_000] * 0.3), sampling_rate=16_000, return_tensors="pt")
    whole: Wav2Vec2Model = pretraining.wav2vec2
    with torch.inference_mode():
        out = whole(wave.input_values.float(), output_hidden_states=True)
    assert len(out.hidden_states) == 19
    mean = (out.hidden_states[11] + out.hidden_states[14] + out.hidden_states[16]) / 3
    torch.testing.assert_close(features, mean, atol=1e-4, rtol=1e-4)


def test_a_transcribed_clip_has_a_code_for_every_feature(
    tmp_path: Path, pretraining: Wav2Vec2ForPreTraining
) -> None:
    codec = random_bicodec(NARROW)
    features = speech_features(SPEECH, written(tmp_path / "w2v", pretraining, "bin"))
    tokens = enrolled(SPEECH, codec, 6.0, features)
    assert tokens.global_tokens == enrolled(SPEECH, codec, 6.0).global_tokens
    assert list(tokens.semantic_tokens) == codec.encode_semantic(features)[0].tolist()
    assert len(tokens.semantic_tokens) == 264
    with pytest.raises(ConfigError, match="not of one model"):
        enrolled(SPEECH, random_bicodec(TINY), 6.0, features)


class Harm:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_without_wav2vec2_a_transcript_is_refused_unless_the_checkpoint_hears_mel_bands(
    tiny_model: Path, hears_mel: Path
) -> None:
    with pytest.raises(ConfigError, match=r"wav2vec2.* is not there.*model fetch .*--transcripts; or leave"):
        require_features(Checkpoint.open(tiny_model))
    require_features(Checkpoint.open(hears_mel))


def test_weights_that_cannot_be_used_are_told_in_words_and_run_no_code(
    tmp_path: Path, pretraining: Wav2Vec2ForPreTraining
) -> None:
    folder = written(tmp_path / "w2v", pretraining, "bin")
    weights = folder / "pytorch_model.bin"

    weights.write_bytes(pickle.dumps({"a": Harm(tmp_path / "harm")}, protocol=2))
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read as weights"):
        speech_features(SPEECH, folder)
    torch.save({"a": Harm(tmp_path / "harm")}, weights)
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read as weights"):
        speech_features(SPEECH, folder)
    assert not (tmp_path / "harm").exists()

    state = old_names(pretraining.state_dict())
    key = "wav2vec2.encoder.layers.15.final_layer_norm.bias"
    torch.save({**state, key: torch.zeros(3)}, weights)
    with pytest.raises(ConfigError, match=r"15.final_layer_norm.bias should be \[16\], found \[3\]"):
        speech_features(SPEECH, folder)
    torch.save({name: tensor for name, tensor in state.items() if name != key}, weights)
    with pytest.raises(ConfigError, match=r"lacks encoder.layers.15.final_layer_norm.bias"):
        speech_features(SPEECH, folder)
    torch.save([1], weights)
    with pytest.raises(ConfigError, match="does not hold tensors by name"):
        speech_features(SPEECH, folder)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read as weights: .*No such file"):
        speech_features(SPEECH, folder)
    config(num_hidden_layers=12).save_pretrained(folder)
    with pytest.raises(ConfigError, match="has 12 layers, 16 are needed"):
        speech_features(SPEECH, folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        speech_features(SPEECH, folder)


# --- the command


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VOICE", "VOICES", "TOKEN", "URL"):
        monkeypatch.delenv(f"SPARKVOICE_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def enroll(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run the command, which must work; what it printed."""
    monkeypatch.setenv("SPARK_TTS_MODEL", str(tiny_model))

    def run(*argv: str | Path) -> str:
        code = main(["voices", "enroll", *map(str, argv)])
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), err
        return out

    return run


@pytest.fixture
def refused(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run the command, which must end with 2, one line, and every file as it was; the line."""
    monkeypatch.setenv("SPARK_TTS_MODEL", str(tiny_model))

    def state() -> list[tuple[Path, bytes | None]]:
        return [(path, path.read_bytes() if path.is_file() else None) for path in sorted(tmp_path.rglob("*"))]

    def run(*argv: str | Path) -> str:
        before = state()
        assert main(["voices", "enroll", *map(str, argv)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert state() == before
        return err

    return run


def voice(voice_id: str = "ava", folder: str = "voices") -> SparkVoice:
    registry = VoiceRegistry([Path(folder)], ENGINES)
    assert registry.problems == ()
    found = registry.get(voice_id)
    assert isinstance(found, SparkVoice)
    return found


def kept(voice_id: str = "ava") -> dict[str, list[int]]:
    """The tokens in the voice's token file."""
    tokens: dict[str, list[int]] = json.loads(Path(f"voices/{voice_id}.tokens.json").read_text())["tokens"]
    return tokens


def files(folder: str = "voices") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_voice_is_written_with_its_clip_and_its_tokens(enroll: Callable[..., str]) -> None:
    out = enroll(
        *(CLIP, "--id", "ava", "--language", "en-GB", "--licence", "CC0-1.0", "--name", "Ava: the first"),
        *("--consent-by", "Ava Li", "--consent-date", "2025-01-31"),
    )
    assert out.splitlines()[-1].startswith("voices/ava.yaml: voice ava from 5.3 s in ")
    assert files() == ["ava.tokens.json", "ava.wav", "ava.yaml"]
    assert Path("voices/ava.wav").read_bytes() == CLIP.read_bytes()
    assert Path("voices/ava.yaml").read_text().splitlines() == [
        "id: ava",
        'name: "Ava: the first"',
        "engine: spark",
        "language: en-GB",
        "licence: CC0-1.0",
        'consent: {"by": "Ava Li", "date": "2025-01-31"}',
        "clip: ava.wav",
    ]
    found = voice()
    assert found.clip == Path("voices/ava.wav").resolve()
    assert json.loads(Path("voices/ava.tokens.json").read_text())["origin"]["ref_s"] == 6.0


def test_the_engine_finds_the_tokens_that_the_command_has_kept(
    enroll: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    enroll(CLIP, "--id", "ava")
    checkpoint = Checkpoint.open(tiny_model)
    weights = Weights(CheckpointFile(tiny_model / WEIGHTS_FILE), torch.float32, torch.device("cpu"))
    codec, worker = CountedCodec(weights, read_sizes(tiny_model)), SerialWorker("test codec")
    speakers = Speakers(checkpoint, codec, ScriptedLM([Script(())]), worker, cache=tmp_path / "cache")
    speaker = asyncio.run(speakers.of(voice()))
    worker.close()
    assert codec.encodes == 0
    assert (
        list(speaker.global_tokens)
        == json.loads(Path("voices/ava.tokens.json").read_text())["tokens"]["global_tokens"]
    )


def test_an_inline_voice_is_one_small_file(enroll: Callable[..., str]) -> None:
    enroll(CLIP, "--id", "ava", "--inline", "--folder", "portable")
    assert files("portable") == ["ava.yaml"]
    assert Path("portable/ava.yaml").stat().st_size < 350
    found = voice(folder="portable")
    assert found.clip is None
    enroll(CLIP, "--id", "ava")
    assert list(found.global_tokens) == kept()["global_tokens"]


def test_a_clip_that_is_in_the_folder_already_stays_where_it_is(enroll: Callable[..., str]) -> None:
    Path("voices/clips").mkdir(parents=True)
    shutil.copy(CLIP, "voices/clips/take 7.wav")
    enroll("voices/clips/take 7.wav", "--id", "ava")
    assert files() == ["ava.tokens.json", "ava.yaml", "clips"]
    assert voice().clip == Path("voices/clips/take 7.wav").resolve()


def test_a_transcript_brings_the_codes_of_the_clip(
    model: Path,
    pretraining: Wav2Vec2ForPreTraining,
    enroll: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (model / CONFIG_FILE).write_text(yaml.safe_dump(NARROW.as_yaml()))
    save_file(draw(NARROW), model / WEIGHTS_FILE)
    written(ModelFiles(model).wav2vec2, pretraining, "bin")
    monkeypatch.setenv("SPARK_TTS_MODEL", str(model))

    enroll(CLIP, "--id", "ava", "--transcript", f" {SAID}\n")
    enroll(CLIP, "--id", "eva", "--transcript", SAID, "--inline")
    assert voice("ava").transcript == voice("eva").transcript == SAID
    assert list(voice("eva").semantic_tokens) == kept()["semantic_tokens"]
    assert list(voice("eva").global_tokens) == kept()["global_tokens"]
    assert len(kept()["semantic_tokens"]) == 264


def test_where_the_checkpoint_hears_mel_bands_a_transcript_needs_nothing_else(
    hears_mel: Path, enroll: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_TTS_MODEL", str(hears_mel))
    enroll(CLIP, "--id", "ava", "--transcript", SAID)
    assert len(kept()["semantic_tokens"]) == 265  # 84,800 samples, a code for every 320

    checkpoint = Checkpoint.open(hears_mel)
    weights = Weights(CheckpointFile(hears_mel / WEIGHTS_FILE), torch.float32, torch.device("cpu"))
    codec = BiCodec(weights, read_sizes(hears_mel))
    clip = examine_clip(CLIP, rate=codec.rate, used_s=checkpoint.sizes.ref_s, transcribed=True)
    bands = codec.mel_features(torch.from_numpy(volume_normalise(clip.wave)).float()[None])
    assert bands.shape == (1, 265, TINY.mel_params.num_mels)
    assert kept()["semantic_tokens"] == codec.encode_semantic(bands)[0].tolist()


def test_a_voice_that_is_there_is_replaced_only_by_force(
    enroll: Callable[..., str], refused: Callable[..., str]
) -> None:
    enroll(CLIP, "--id", "ava")
    assert "voices/ava.yaml is there already: --force replaces it" in refused(CLIP, "--id", "ava")
    enroll(DATA / "goforward.wav", "--id", "ava", "--force")
    assert Path("voices/ava.wav").read_bytes() == (DATA / "goforward.wav").read_bytes()
    Path("voices/ava.yaml").rename("voices/other.yaml")
    assert 'another file in voices has a voice "ava"' in refused(CLIP, "--id", "ava")
    Path("voices/eva.wav").write_bytes(b"somebody else's")
    assert "voices/eva.wav is there already and another clip" in refused(CLIP, "--id", "eva")
    Path("voices/dir.yaml").mkdir()
    assert "cannot write voices/dir.yaml: it is no file" in refused(CLIP, "--id", "dir", "--force")


def test_findings_are_printed_and_warnings_do_not_stop(enroll: Callable[..., str], tmp_path: Path) -> None:
    out = enroll(saved(tmp_path, repeated(9)), "--id", "ava")
    assert "a.wav is longer than used: only the first 6 s of 9 s make the speaker (warning)\n" in out
    assert "nothing says that the speaker agreed: --consent-by NAME" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["no.wav", "--id", "ava"], "no.wav cannot be read: No such file or directory"),
        (["short.wav", "--id", "ava"], "short.wav is too short: 0.10 s"),
        (["text.wav", "--id", "ava"], "text.wav cannot be read as sound"),
        (["ok.wav"], "the following arguments are required: --id"),
        (["ok.wav", "--id", "../ava"], 'voice ../ava: id: "../ava" should be 1 to 64 of'),
        (["ok.wav", "--id", "ava", "--language", "english"], 'voice ava: language: "english" should be'),
        (["ok.wav", "--id", "ava", "--licence", ""], "voice ava: licence: should have at least 1 character"),
        (["ok.wav", "--id", "ava", "--consent-by", "A"], "--consent-by and --consent-date belong together"),
        (
            ["ok.wav", "--id", "ava", "--consent-by", "A", "--consent-date", "today"],
            "voice ava: consent.date should be a valid date",
        ),
        (["ok.wav", "--id", "ava", "--transcript", " "], "the transcript is empty"),
        (["ok.wav", "--id", "ava", "--transcript", "Hello."], "--transcripts; or leave the transcript out"),
        (["ok.wav", "--id", "ava", "--folder", "text.wav"], "text.wav is not a folder"),
        (["ok.wav", "--id", "ava", "--folder", "text.wav/x"], "cannot write "),
        (["ok.wav", "--id", "ava", "--name", "x" * 70_000], "hold what a voice file cannot"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    refused: Callable[..., str], tmp_path: Path, argv: list[str], words: str
) -> None:
    saved(tmp_path, SPEECH[:1600], "short.wav")
    saved(tmp_path, SPEECH, "ok.wav")
    (tmp_path / "text.wav").write_text("not sound")
    assert words in refused(*argv)


def test_without_a_model_it_says_how_to_get_one(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_TTS_MODEL")
    assert "set SPARK_TTS_MODEL" in refused(CLIP, "--id", "ava")


@pytest.mark.parametrize("name", ["no", "1e3", "- x", ' é: "{b} # \\\t\u2028\x7f\U0001f600 '])
def test_any_name_reads_back_as_it_was_given(enroll: Callable[..., str], name: str) -> None:
    enroll(CLIP, "--id", "ava", "--inline", f"--name={name}")
    assert voice().name == name


# --- voices check


def test_voices_check_judges_the_clips(capsys: pytest.CaptureFixture[str]) -> None:
    Path("voices").mkdir()
    saved(Path("voices"), repeated(9), "ava.wav")
    head = "engine: spark\nlanguage: en\nlicence: CC0-1.0\n"
    Path("voices/ava.yaml").write_text(f"id: ava\n{head}clip: ava.wav\n")
    assert main(["voices", "check"]) == 0
    assert capsys.readouterr().out == (
        "voice ava: voices/ava.wav is longer than used: only the first 6 s of 9 s make the speaker "
        "(warning)\n"
        "3 voices, no problems, 1 warning\n"
    )
    Path("voices/ben.yaml").write_text(f"id: ben\n{head}clip: ben.wav\n")
    assert main(["voices", "check"]) == 1
    assert "voice ben: voices/ben.wav cannot be read: No such file or directory\n" in capsys.readouterr().out
    assert main(["voices", "check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [problem["file"] for problem in report["problems"]] == ["voice ben"]
    assert [warning["file"] for warning in report["warnings"]] == ["voice ava"]


def test_voices_check_needs_no_torch() -> None:
    Path("voices").mkdir()
    saved(Path("voices"), SPEECH, "ava.wav")
    text = "id: ava\nengine: spark\nlanguage: en\nlicence: CC0-1.0\nclip: ava.wav\n"
    Path("voices/ava.yaml").write_text(text)
    code = (
        "import sys; from tts_plugin.cli import main\n"
        "assert main(['voices', 'check']) == 0\n"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(DATA.parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "3 voices, no problems\n[]\n"


def test_the_cache_folder_is_where_the_platform_keeps_caches() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/sparkvoice")
    assert cache_folder({"XDG_CACHE_HOME": "x"}) == cache_folder({})
    assert cache_folder({}).is_relative_to(Path.home())


def test_of_two_who_enrol_one_id_at_once_the_second_changes_nothing(tmp_path: Path) -> None:
    yaml, clip = tmp_path / "me.yaml", tmp_path / "me.wav"
    _write({clip: b"first", yaml: b"id: me\n"}, claim=yaml)
    with pytest.raises(BadRequest, match="is there already"):
        _write({clip: b"second", yaml: b"id: you\n"}, claim=yaml)
    assert (clip.read_bytes(), yaml.read_bytes()) == (b"first", b"id: me\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["me.wav", "me.yaml"]
    _write({clip: b"second", yaml: b"id: me\n"}, claim=None)
    assert clip.read_bytes() == b"second"
