"""BiCodec: tokens to sound, and sound to tokens.

Decoding is local: the samples of a token depend on `reach` tokens to either side and on nothing else. So a
piece cut out of an utterance with that much of it around decodes to the samples of the whole, to float32's
rounding (1e-7 on a CPU); nearer its edges it differs the more, the less context there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.encoder import SemanticEncoder
from tts_plugin.engines.spark.bicodec.generator import Generator, keep_of
from tts_plugin.engines.spark.bicodec.mel import Mel
from tts_plugin.engines.spark.bicodec.quantizers import Codebook
from tts_plugin.engines.spark.bicodec.speaker import SpeakerEncoder
from tts_plugin.engines.spark.bicodec.weights import Weights
from tts_plugin.errors import BadRequest

PAD_CODE = 0  # any code will do: what stands after a row's end is zeroed before every convolution


@dataclass(frozen=True, slots=True)
class CodecWindow:
    """One window of one utterance.

    semantic: int64 [T], the codes of the window with its context. d_vector: [D], from `BiCodec.speaker`.
    emit_from, emit_to: which of these tokens are wanted as samples, 0 <= emit_from < emit_to <= T.
    """

    semantic: Tensor
    d_vector: Tensor
    emit_from: int
    emit_to: int


class BiCodec:
    """The codec of one checkpoint, inference only.

    Takes and returns CPU tensors; blocks while it computes, so call it on a worker. dtype, device: of the
    prenet and the wave generator. Everything before a token is decided and up to the speaker's vector runs
    in float32 on the CPU (a 6 s clip: 40 ms of one core), so that tokens depend on neither.

    rate: Hz. hop: samples a token. prenet_reach, generator_reach: tokens that each looks to either side;
    reach: their sum. semantic_codes, global_codes: how many different tokens there are of each kind.
    global_count: global tokens a voice. feature_width: channels of `encode_semantic`'s input.
    shortest_reference: least samples that `encode_global` takes.
    """

    def __init__(self, weights: Weights, sizes: CodecSizes) -> None:
        exact = weights.as_float32().on_cpu()
        self._encoder = SemanticEncoder(exact.at("encoder"), sizes.encoder)
        self._generator = Generator(weights.at("decoder"), sizes.decoder)
        quantizer = sizes.quantizer
        self._codebook = Codebook(
            exact.at("quantizer"), quantizer.input_dim, quantizer.codebook_size, quantizer.codebook_dim
        )
        self._speaker = SpeakerEncoder(exact.at("speaker_encoder"), sizes.speaker_encoder)
        self._prenet = Prenet(weights.at("prenet"), sizes.prenet)
        Prenet(weights.unused().at("postnet"), sizes.postnet)  # served in training only
        self._mel = Mel(sizes.mel_params, exact.device)

        self.sizes = sizes
        self.dtype = weights.dtype
        self.device = weights.device
        self.rate = sizes.mel_params.sample_rate
        self.hop = sizes.decoder.hop
        self.prenet_reach = self._prenet.reach
        self.generator_reach = self._generator.reach
        self.reach = self.prenet_reach + self.generator_reach
        self.semantic_codes = quantizer.codebook_size
        self.global_codes = sizes.speaker_encoder.codes
        self.global_count = sizes.speaker_encoder.tokens
        self.feature_width = sizes.encoder.input_channels
        self.shortest_reference = self._mel.shortest

    def decode(self, semantic: Tensor, global_tokens: Tensor) -> Tensor:
        """One utterance a row: codes [B, T], global tokens [B, global_count] -> float32 [B, hop * T]."""
        return self.decode_window(semantic, self.speaker(global_tokens), 0, semantic.shape[-1])

    def decode_window(self, semantic: Tensor, d_vector: Tensor, emit_from: int, emit_to: int) -> Tensor:
        """The samples of tokens emit_from .. emit_to - 1 of windows of one shape: float32 [B, hop * tokens].

        semantic: [B, T]; d_vector: [B, D]. What lies before and after is context. A window's edge counts as
        the utterance's own beginning or end, so it is exact there; anywhere else samples are exact (1e-5)
        for tokens with `reach` tokens of context on that side. The prenet runs on the whole window; the wave
        generator, 95 % of the work, runs on the emitted tokens and `generator_reach` to either side.
        """
        with torch.inference_mode():
            codes = self._codes(semantic, "semantic", 2, self.semantic_codes)
            steering = self._steering(d_vector, len(codes))
            _check_emitted(emit_from, emit_to, codes.shape[1])
            if emit_from == emit_to or not len(codes):
                return torch.zeros(len(codes), (emit_to - emit_from) * self.hop)
            return self._generator(self._frames(codes, steering), emit=(emit_from, emit_to)).cpu()

    def decode_windows(self, windows: Sequence[CodecWindow]) -> list[Tensor]:
        """Windows of any shapes as one batch; for each the samples of its emitted tokens, float32 [hop * n].

        A row's samples are those that `decode_window` gives for it alone (1e-5): rows are padded at their
        end, and every convolution sees zeros there, as at a shorter input's edge. Work and memory are those
        of the longest row times the number of rows, so batch windows of like lengths.
        """
        if not windows:
            return []
        with torch.inference_mode():
            rows = [self._codes(window.semantic, "semantic", 1, self.semantic_codes) for window in windows]
            steering = self._steering(torch.stack([window.d_vector for window in windows]), len(rows))
            for window, row in zip(windows, rows, strict=True):
                _check_emitted(window.emit_from, window.emit_to, len(row), least=1)
            codes = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_CODE)
            frames = self._frames(codes, steering, self._lengths([len(row) for row in rows]))

            firsts = [max(0, window.emit_from - self.generator_reach) for window in windows]
            lasts = [
                min(len(row), window.emit_to + self.generator_reach)
                for window, row in zip(windows, rows, strict=True)
            ]
            pieces = [
                frames[at, :, first:last].T
                for at, (first, last) in enumerate(zip(firsts, lasts, strict=True))
            ]
            batch = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True).transpose(1, 2)
            emitted = [
                (window.emit_from - first, window.emit_to - first)
                for window, first in zip(windows, firsts, strict=True)
            ]
            start, stop = min(first for first, _ in emitted), max(last for _, last in emitted)
            wave = self._generator(batch, self._lengths([len(piece) for piece in pieces]), (start, stop)).cpu()
            return [
                wave[at, (first - start) * self.hop : (last - start) * self.hop]
                for at, (first, last) in enumerate(emitted)
            ]

    def speaker(self, global_tokens: Tensor) -> Tensor:
        """Global tokens [B, global_count] to the vector that steers the decoder, float32 [B, D]."""
        with torch.inference_mode():
            tokens = self._codes(global_tokens, "global", 2, self.global_codes)
            if tokens.shape[1] != self.global_count:
                raise BadRequest(f"a voice has {self.global_count} global tokens, not {tokens.shape[1]}")
            return self._speaker.decode(tokens)

    def encode_global(self, wave: Tensor) -> Tensor:
        """Float samples [B, N] at `rate`, used as they are, to the int64 global tokens [B, global_count]."""
        with torch.inference_mode():
            if wave.dim() != 2 or not wave.is_floating_point():
                raise BadRequest(f"a reference clip is float samples [B, N], not {_shown(wave)}")
            if wave.shape[1] < self.shortest_reference:
                raise BadRequest(
                    f"a reference clip needs at least {self.shortest_reference} samples, not {wave.shape[1]}"
                )
            return self._speaker.encode(self._mel(self._finite(wave, "reference clip")))

    def encode_semantic(self, features: Tensor) -> Tensor:
        """Speech features [B, T, feature_width] to int64 codes [B, T]."""
        with torch.inference_mode():
            if features.dim() != 3 or features.shape[2] != self.feature_width:
                raise BadRequest(f"features are [B, T, {self.feature_width}], not {_shown(features)}")
            if features.shape[1] == 0:
                return torch.zeros(features.shape[:2], dtype=torch.int64)
            return self._codebook.nearest(self._encoder(self._finite(features, "features")))

    def _frames(self, codes: Tensor, steering: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Codes [B, T] -> what the wave generator reads, [B, C, T]."""
        vectors = self._codebook.look_up(codes).to(self.device, self.dtype)
        return self._prenet(vectors, steering, keep_of(vectors, lengths)) + steering[..., None]

    def _codes(self, tokens: Tensor, kind: str, dimensions: int, count: int) -> Tensor:
        """As int64, checked: an index out of range would be an error far from its cause."""
        if tokens.dim() != dimensions or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise BadRequest(f"{kind} tokens are integers in {dimensions} dimensions, not {_shown(tokens)}")
        if tokens.numel() and (tokens.min() < 0 or tokens.max() >= count):
            wrong = next(int(token) for token in tokens.flatten() if not 0 <= int(token) < count)
            raise BadRequest(f"{wrong} is no {kind} token: they are 0 to {count - 1}")
        return tokens.to("cpu", torch.int64)

    def _steering(self, d_vector: Tensor, rows: int) -> Tensor:
        wanted = (rows, self.sizes.speaker_encoder.out_dim)
        if d_vector.shape != wanted:
            raise BadRequest(f"speaker vectors should be {list(wanted)}, not {_shown(d_vector)}")
        return d_vector.to(self.device, self.dtype)

    def _lengths(self, lengths: list[int]) -> Tensor | None:
        """None if all are equal: then nothing is padding."""
        return torch.tensor(lengths, device=self.device) if len(set(lengths)) > 1 else None

    def _finite(self, values: Tensor, what: str) -> Tensor:
        if not values.isfinite().all():
            raise BadRequest(f"the {what} holds a value that is no number")
        return values.to("cpu", torch.float32)


def _check_emitted(first: int, last: int, tokens: int, least: int = 0) -> None:
    if not 0 <= first <= last - least <= tokens - least:
        raise BadRequest(f"tokens {first} to {last - 1} cannot be emitted from a window of {tokens}")


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
