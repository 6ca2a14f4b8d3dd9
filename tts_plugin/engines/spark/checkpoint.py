"""Checkpoint: a model directory that has been looked over, with all that is read from it but the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from tts_plugin.engines.spark.bicodec import CodecSizes, layout, read_sizes
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import ModelFiles, TensorFile, differences
from tts_plugin.engines.spark.prompt import Prompts
from tts_plugin.engines.spark.tokenizer import encoded, read_tokenizer
from tts_plugin.engines.spark.vocabulary import BadVocabulary, Vocabulary
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import BadYaml, read_yaml, shown, validated

T = TypeVar("T")
Features = Literal["wav2vec2", "mel"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """rate: Hz. hop: samples a semantic token. globals_: tokens of a voice. ref_s: how much of a
    reference clip the speaker was taken from in training. rows: of the language model's embedding."""

    rate: int
    hop: int
    globals_: int
    ref_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What stands in a model directory.

    revision: changes with the codec's weights. is_noise: they are random. tokenizer: encodes text, knows no
    control token. lm, codec: the headers of the weights. features: what the semantic encoder hears, the mel
    bands being the codec's own.
    """

    path: Path
    vocabulary: Vocabulary
    sizes: Sizes
    revision: str
    is_noise: bool
    tokenizer: Tokenizer
    lm: TensorFile
    codec: TensorFile
    features: Features

    @classmethod
    def open(cls, model_dir: Path) -> Checkpoint:
        """Look over the directory, weights excepted; ConfigError tells what is wrong with it."""
        checkpoint, problems = examine(model_dir)
        if checkpoint is None:
            more = len(problems) - 1
            hint = f" (and {more} more, see: sparkvoice model check {shown(model_dir)})" if more else ""
            raise ConfigError(f"{problems[0]}{hint}")
        return checkpoint

    @property
    def prompts(self) -> Prompts:
        return Prompts(self.vocabulary, self.encode)

    def encode(self, text: str) -> list[int]:
        """Ids of text tokens, whatever `text` holds: a control token's name is spelt out."""
        return encoded(self.tokenizer, text)


def examine(model_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint, or None and everything wrong with it, in words; ConfigError if it is none at all."""
    files = ModelFiles(model_dir)
    files.require()
    problems: list[str] = []

    def tried(read: Callable[[Path], T], path: Path) -> T | None:
        try:
            return read(path)
        except (BadVocabulary, BadYaml) as error:
            problems.extend(map(str, error.problems))
        except ConfigError as error:
            problems.append(str(error))
        return None

    main = tried(_MainConfig.read, files.config)
    sizes = tried(read_sizes, model_dir)
    codec = tried(TensorFile.read, files.codec)
    lm_config = tried(LmConfig.read, files.lm_config)
    lm = tried(TensorFile.read, files.lm)
    read = tried(read_tokenizer, files.tokenizer)
    vocabulary = tried(lambda _: Vocabulary.read(read[1]), files.tokenizer) if read else None

    if sizes and codec:
        specs = layout(sizes).items()
        problems += differences(codec, {key: spec.shape for key, spec in specs if not spec.optional})
    if lm_config and lm:
        problems += differences(lm, lm_config.layout())
    if main and sizes:
        problems += _disagreements(main, sizes)
    if vocabulary and sizes:
        problems += _unlike_codec(vocabulary, sizes)
    if vocabulary and lm_config:
        problems += _unlike_lm(vocabulary, lm_config)
    if problems or not (main and sizes and codec and lm_config and lm and read and vocabulary):
        return None, problems
    found = Sizes(
        rate=main.sample_rate,
        hop=sizes.decoder.hop,
        globals_=sizes.speaker_encoder.tokens,
        ref_s=main.ref_segment_duration,
        rows=lm_config.vocab_size,
    )
    return (
        Checkpoint(
            path=model_dir,
            vocabulary=vocabulary,
            sizes=found,
            revision=codec.fingerprint(),
            is_noise=main.random_weights,
            tokenizer=read[0],
            lm=lm,
            codec=codec,
            features=main.semantic_features,
        ),
        [],
    )


class _MainConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)  # it is the publisher's and holds more

    sample_rate: Annotated[int, Field(gt=0)]
    latent_hop_length: Annotated[int, Field(gt=0)]
    ref_segment_duration: Annotated[float, Field(gt=0)]
    random_weights: bool = False
    semantic_features: Features = "wav2vec2"  # ours: the published file does not say

    @classmethod
    def read(cls, path: Path) -> _MainConfig:
        return validated(cls, read_yaml(path))


def _disagreements(main: _MainConfig, codec: CodecSizes) -> list[str]:
    pairs = (
        ("sample_rate", main.sample_rate, "mel_params.sample_rate", codec.mel_params.sample_rate),
        ("latent_hop_length", main.latent_hop_length, "product of decoder.rates", codec.decoder.hop),
    )
    problems = [
        f"config.yaml: {name} is {value}, but BiCodec/config.yaml has {other} for the {of}"
        for name, value, of, other in pairs
        if value != other
    ]
    heard, bands = codec.encoder.input_channels, codec.mel_params.num_mels
    if main.semantic_features == "mel" and heard != bands:
        problems.append(
            f"config.yaml: semantic_features is mel, but in BiCodec/config.yaml there are {bands} bands "
            f"(mel_params.num_mels) for the {heard} channels of the encoder (encoder.input_channels)"
        )
    if main.semantic_features == "mel" and codec.mel_params.hop_length != codec.decoder.hop:
        problems.append(
            f"config.yaml: semantic_features is mel, but in BiCodec/config.yaml mel_params.hop_length is "
            f"{codec.mel_params.hop_length}, and a token is {codec.decoder.hop} samples"
        )
    return problems


def _unlike_codec(vocabulary: Vocabulary, codec: CodecSizes) -> list[str]:
    pairs = (
        ("bicodec_global", vocabulary.global_count, codec.speaker_encoder.codes),
        ("bicodec_semantic", vocabulary.semantic_count, codec.quantizer.codebook_size),
    )
    return [
        f"tokenizer: expected {expected} <|{family}_N|> tokens, as many as the codec has codes, found {found}"
        for family, found, expected in pairs
        if found != expected
    ]


def _unlike_lm(vocabulary: Vocabulary, lm: LmConfig) -> list[str]:
    problems = []
    if vocabulary.id_count > lm.vocab_size:
        problems.append(
            f"tokenizer: ids go up to {vocabulary.id_count - 1}, but the language model has only "
            f"{lm.vocab_size} rows (vocab_size)"
        )
    ends = [lm.eos_token_id] if isinstance(lm.eos_token_id, int) else lm.eos_token_id
    if vocabulary.eos not in ends:
        problems.append(
            f"tokenizer: <|im_end|> is id {vocabulary.eos}, but LLM/config.json ends with {lm.eos_token_id}"
        )
    return problems
