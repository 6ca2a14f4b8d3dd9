"""The sizes of a codec: what BiCodec/config.yaml says of it, read strictly, and two sets known by heart.

The file is the publisher's, so keys that are not needed here are left alone; a key that is needed must be
there, have the right type and fit the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tts_plugin.errors import ConfigError, did_you_mean
from tts_plugin.strict_yaml import read_yaml, validated

CONFIG_FILE = "BiCodec/config.yaml"
SECTION = "audio_tokenizer"
RES2_PARTS = 8  # channel groups of a Res2 block

# test_overrides.json carries a note to its reader beside the two widths
_OVERRIDES = ("ecapa_channels", "ecapa_out_channels")
_IGNORED_OVERRIDES = ("note",)

Size = Annotated[int, Field(gt=0)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1, strict=False)]
Hz = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class MelSizes:
    """The mel spectrogram that the speaker encoder hears. Lengths in samples, frequencies in Hz."""

    sample_rate: Size
    n_fft: Size
    win_length: Size
    hop_length: Size
    mel_fmin: Hz
    mel_fmax: Hz | None  # None: half the sample rate
    num_mels: Size

    def __post_init__(self) -> None:
        if self.win_length > self.n_fft:
            raise ValueError(f"win_length {self.win_length} is longer than n_fft {self.n_fft}")
        if not self.mel_fmin < self.highest <= self.sample_rate / 2:
            raise ValueError(f"mel_fmin {self.mel_fmin} and mel_fmax {self.highest} are no band to hear")

    @property
    def highest(self) -> float:
        """Upper edge of the highest band, Hz."""
        return self.sample_rate / 2 if self.mel_fmax is None else self.mel_fmax


@dataclass(frozen=True, slots=True)
class NetSizes:
    """A ConvNeXt network that maps frames to frames. sample_ratios: one short stage each, all 1."""

    input_channels: Size
    vocos_dim: Size
    vocos_intermediate_dim: Size
    vocos_num_layers: Size
    out_channels: Size
    sample_ratios: Sizes = (1, 1)

    def __post_init__(self) -> None:
        _all_ones(self.sample_ratios)


@dataclass(frozen=True, slots=True)
class PrenetSizes:
    """As NetSizes; condition_dim: width of the speaker vector that steers it, None for none."""

    input_channels: Size
    vocos_dim: Size
    vocos_intermediate_dim: Size
    vocos_num_layers: Size
    out_channels: Size
    condition_dim: Size | None = None
    sample_ratios: Sizes = (1, 1)
    use_tanh_at_final: bool = False

    def __post_init__(self) -> None:
        _all_ones(self.sample_ratios)


@dataclass(frozen=True, slots=True)
class QuantizerSizes:
    """The semantic codebook."""

    input_dim: Size
    codebook_size: Size
    codebook_dim: Size


@dataclass(frozen=True, slots=True)
class SpeakerSizes:
    """From mel to global tokens to speaker vector.

    The last two are not in the published file: there they are always 512 and 1536.
    """

    input_dim: Size
    out_dim: Size
    latent_dim: Size
    token_num: Size
    fsq_levels: Sizes
    fsq_num_quantizers: Size
    ecapa_channels: Size = 512
    ecapa_out_channels: Size = 1536

    def __post_init__(self) -> None:
        if self.ecapa_channels % RES2_PARTS:
            raise ValueError(f"ecapa_channels {self.ecapa_channels} is no multiple of {RES2_PARTS}")
        if min(self.fsq_levels) < 2:
            raise ValueError("a level of fsq_levels is less than 2")

    @property
    def codes(self) -> int:
        """Number of different global tokens."""
        return prod(self.fsq_levels)

    @property
    def tokens(self) -> int:
        """Global tokens of one voice."""
        return self.token_num * self.fsq_num_quantizers


@dataclass(frozen=True, slots=True)
class GeneratorSizes:
    """The wave generator. rates: how much each block lengthens its input; their product is the hop."""

    input_channel: Size
    channels: Size
    rates: Sizes
    kernel_sizes: Sizes
    d_out: Size = 1

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.kernel_sizes):
            raise ValueError(f"{len(self.rates)} rates but {len(self.kernel_sizes)} kernel_sizes")
        for rate, kernel in zip(self.rates, self.kernel_sizes, strict=True):
            if kernel < rate or (kernel - rate) % 2:
                raise ValueError(f"a kernel of {kernel} does not lengthen exactly {rate} times")
        if self.channels % 2 ** len(self.rates):
            raise ValueError(f"{self.channels} channels cannot be halved {len(self.rates)} times")
        if self.d_out != 1:
            raise ValueError(f"d_out {self.d_out}: only one channel of sound is made here")

    @property
    def hop(self) -> int:
        """Samples a token."""
        return prod(self.rates)


@dataclass(frozen=True, slots=True)
class CodecSizes:
    """Everything above, checked to fit together."""

    mel_params: MelSizes
    encoder: NetSizes
    quantizer: QuantizerSizes
    speaker_encoder: SpeakerSizes
    prenet: PrenetSizes
    postnet: PrenetSizes
    decoder: GeneratorSizes

    def __post_init__(self) -> None:
        prenet, speaker = self.prenet, self.speaker_encoder
        for what, one, other in (
            (
                "encoder.out_channels, quantizer.input_dim",
                self.encoder.out_channels,
                self.quantizer.input_dim,
            ),
            ("quantizer.input_dim, prenet.input_channels", self.quantizer.input_dim, prenet.input_channels),
            ("speaker_encoder.out_dim, prenet.condition_dim", speaker.out_dim, prenet.condition_dim),
            ("speaker_encoder.out_dim, prenet.out_channels", speaker.out_dim, prenet.out_channels),
            ("prenet.out_channels, decoder.input_channel", prenet.out_channels, self.decoder.input_channel),
            ("mel_params.num_mels, speaker_encoder.input_dim", self.mel_params.num_mels, speaker.input_dim),
        ):
            if one != other:
                raise ValueError(f"{what}: should be equal, not {one} and {other}")

    def overridden(self, widths: Mapping[str, Any] | None) -> CodecSizes:
        """The same with the ECAPA widths `ecapa_channels` and `ecapa_out_channels` replaced."""
        wanted = {key: value for key, value in (widths or {}).items() if key not in _IGNORED_OVERRIDES}
        for key, value in wanted.items():
            if key not in _OVERRIDES:
                raise ConfigError(f'no override "{key}"{did_you_mean(key, _OVERRIDES)}')
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"override {key} should be a positive whole number, not {value!r}")
        try:
            return replace(self, speaker_encoder=replace(self.speaker_encoder, **wanted))
        except ValueError as error:
            raise ConfigError(f"override: {error}") from error

    def as_yaml(self) -> dict[str, Any]:
        """What `read_sizes` reads back, as plain data for a YAML writer."""
        return {SECTION: _plain(asdict(self))}


@dataclass(frozen=True, slots=True)
class _File:
    audio_tokenizer: CodecSizes = field()


def read_sizes(model_dir: Path) -> CodecSizes:
    """The sizes in `model_dir`/BiCodec/config.yaml; ConfigError names file, line and key."""
    path = model_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"{model_dir} is no Spark-TTS model: it has no {CONFIG_FILE}")
    return validated(_File, read_yaml(path)).audio_tokenizer


def _all_ones(ratios: Iterable[int]) -> None:
    if set(ratios) != {1}:
        raise ValueError(f"sample_ratios {list(ratios)}: only 1 is supported (one frame a token)")


def _plain(value: Any) -> Any:  # Any: nested data of a YAML file
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


# SparkAudio/Spark-TTS-0.5B
PUBLISHED = CodecSizes(
    mel_params=MelSizes(16000, 1024, 640, 320, 10.0, None, 128),
    encoder=NetSizes(1024, 384, 2048, 12, 1024),
    quantizer=QuantizerSizes(1024, 8192, 8),
    speaker_encoder=SpeakerSizes(128, 1024, 128, 32, (4, 4, 4, 4, 4, 4), 1),
    prenet=PrenetSizes(1024, 384, 2048, 12, 1024, condition_dim=1024),
    postnet=PrenetSizes(1024, 384, 2048, 6, 1024),
    decoder=GeneratorSizes(1024, 1536, (8, 5, 4, 2), (16, 11, 8, 4)),
)

# same tokens, same rates, same inputs; narrow and shallow, for tests
TINY = CodecSizes(
    mel_params=MelSizes(16000, 1024, 640, 320, 10.0, None, 20),
    encoder=NetSizes(1024, 16, 32, 2, 32),
    quantizer=QuantizerSizes(32, 8192, 8),
    speaker_encoder=SpeakerSizes(20, 32, 16, 32, (4, 4, 4, 4, 4, 4), 1, 16, 24),
    prenet=PrenetSizes(32, 16, 32, 3, 32, condition_dim=32),
    postnet=PrenetSizes(32, 16, 32, 2, 32),
    decoder=GeneratorSizes(32, 32, (8, 5, 4, 2), (16, 11, 8, 4)),
)
