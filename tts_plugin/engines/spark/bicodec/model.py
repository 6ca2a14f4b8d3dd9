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
from torch.nn.utils.rnn import pad_sequence

from tts_plugin.engines.spark.bicodec.backbone import Prenet
from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.encoder import SemanticEncoder
from tts_plugin.engines.spark.bicodec.mel import Mel
from tts_plugin.engines.spark.bicodec.nets import Nets, TorchNets, nets_of
from tts_plugin.engines.spark.bicodec.quantizers import Codebook
from tts_plugin.engines.spark.bicodec.shapes import ROWS, TOKENS, rounded
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

    Takes and returns CPU tensors; blocks while it computes, so call it on a worker. nets: what runs the
    prenet and the wave generator; None: torch, in the dtype and on the device of the weights. Everything
    before a token is decided and up to the speaker's vector runs in float32 on the CPU (a 6 s clip: 40 ms of
    one core), so that tokens depend on neither.

    fixed_shapes: whether `decode_windows` pads its batches to the few sizes of shapes.py; None: on a GPU,
    where it was not run yet.

    rate: Hz. hop: samples a token. prenet_reach, generator_reach: tokens that each looks to either side;
    reach: their sum. semantic_codes, global_codes: how many different tokens there are of each kind.
    global_count: global tokens a voice. feature_width: channels of `encode_semantic`'s input.
    shortest_reference: least samples that `encode_global` takes. rows: windows that are worth decoding at
    once.
    """

    def __init__(
        self,
        weights: Weights,
        sizes: CodecSizes,
        nets: Nets | None = None,
        *,
        fixed_shapes: bool | None = None,
    ) -> None:
        exact = weights.as_float32().on_cpu()
        self._encoder = SemanticEncoder(exact.at("encoder"), sizes.encoder)
        prenet, generator = nets_of(weights if nets is None else weights.unused(), sizes)
        self._nets = TorchNets(weights, prenet, generator) if nets is None else nets
        quantizer = sizes.quantizer
        self._codebook = Codebook(
            exact.at("quantizer"), quantizer.input_dim, quantizer.codebook_size, quantizer.codebook_dim
        )
        self._speaker = SpeakerEncoder(exact.at("speaker_encoder"), sizes.speaker_encoder)
        Prenet(weights.unused().at("postnet"), sizes.postnet)  # served in training only
        self._mel = Mel(sizes.mel_params, exact.device)

        self.sizes = sizes
        self.rows = self._nets.rows
        on_gpu = nets is None and weights.device.type == "cuda"
        self.fixed_shapes = on_gpu if fixed_shapes is None else fixed_shapes
        self.rate = sizes.mel_params.sample_rate
        self.hop = sizes.decoder.hop
        self.prenet_reach = prenet.reach
        self.generator_reach = generator.reach
        self.reach = self.prenet_reach + self.generator_reach
        self.semantic_codes = quantizer.codebook_size
        self.global_codes = sizes.speaker_encoder.codes
        self.global_count = sizes.speaker_encoder.tokens
        self.feature_width = sizes.encoder.input_channels
        self.shortest_reference = self._mel.shortest

    def warm_up(self) -> None:
        """Decode once what is only slow the first time; seconds, with OpenVINO."""
        self._nets.warm_up()

    def decode(self, semantic: Tensor, global_tokens: Tensor) -> Tensor:
        """One utterance a row: codes [B, T], global tokens [B, global_count] -> float32 [B, hop * T]."""
        return self.decode_window(semantic, self.speaker(global_tokens), 0, semantic.shape[-1])

    def decode_window(self, semantic: Tensor, d_vector: Tensor, emit_from: int, emit_to: int) -> Tensor:
        """The samples of tokens emit_from .. emit_to - 1 of windows of one shape: float32 [B, hop * tokens].

        semantic: [B, T]; d_vector: [B, D]. What lies before and after is context. A window's edge counts as
        the utterance's own beginning or end, so it is exact there; anywhere else samples are exact (1e-5)
        for tokens with `reach` tokens of context on that side. The prenet runs on the whole window, the wave
        generator, most of the work, on little more than the emitted tokens.
        """
        with torch.inference_mode():
            codes = self._codes(semantic, "semantic", 2, self.semantic_codes)
            steering = self._steering(d_vector, len(codes))
            _check_emitted(emit_from, emit_to, codes.shape[1])
            if emit_from == emit_to or not len(codes):
                return torch.zeros(len(codes), (emit_to - emit_from) * self.hop)
            return torch.stack(self._waves(list(codes), steering, [(emit_from, emit_to)] * len(codes)))

    def decode_windows(self, windows: Sequence[CodecWindow]) -> list[Tensor]:
        """Windows of any shapes, `rows` of them at once; for each the samples of its emitted tokens, float32
        [hop * n].

        A row's samples are those that `decode_window` gives for it alone (1e-5; to the bit where `rows` is
        1): rows are padded at their end, and every convolution sees zeros there, as at a shorter input's
        edge. Work and memory are those of the longest row times the number of rows, so batch windows of like
        lengths.
        """
        if not windows:
            return []
        with torch.inference_mode():
            rows = [self._codes(window.semantic, "semantic", 1, self.semantic_codes) for window in windows]
            steering = self._steering(torch.stack([window.d_vector for window in windows]), len(rows))
            for window, row in zip(windows, rows, strict=True):
                _check_emitted(window.emit_from, window.emit_to, len(row), least=1)
            return self._waves(rows, steering, [(window.emit_from, window.emit_to) for window in windows])

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
            return self._speaker.encode(self._mel(self._reference(wave)))

    def mel_features(self, wave: Tensor) -> Tensor:
        """Float samples [B, N] at `rate`, used as they are, to features [B, N // hop, bands], where it is mel
        bands that `encode_semantic` takes. BadRequest for less than `shortest_reference`."""
        with torch.inference_mode():
            return self._mel.features(self._reference(wave))

    def encode_semantic(self, features: Tensor) -> Tensor:
        """Speech features [B, T, feature_width] to int64 codes [B, T]."""
        with torch.inference_mode():
            if features.dim() != 3 or features.shape[2] != self.feature_width:
                raise BadRequest(f"features are [B, T, {self.feature_width}], not {_shown(features)}")
            if features.shape[1] == 0:
                return torch.zeros(features.shape[:2], dtype=torch.int64)
            return self._codebook.nearest(self._encoder(self._finite(features, "features")))

    def _waves(self, rows: list[Tensor], steering: Tensor, emitted: list[tuple[int, int]]) -> list[Tensor]:
        """The samples of the tokens `emitted` of each row of codes [T]."""
        waves: list[Tensor] = []
        for at in range(0, len(rows), self.rows):
            here = slice(at, at + self.rows)
            waves += self._together(rows[here], steering[here], emitted[here])
        return waves

    def _together(self, rows: list[Tensor], steering: Tensor, emitted: list[tuple[int, int]]) -> list[Tensor]:
        codes, lengths = self._batch(rows, PAD_CODE)
        frames = self._nets.frames(
            self._codebook.look_up(codes), self._for_rows(steering, len(codes)), lengths
        )
        if lengths is None and len(set(emitted)) == 1:
            return list(self._nets.wave(frames, None, emitted[0]))
        reach = self.generator_reach  # otherwise rows are moved, so that what they emit is side by side
        begins = [max(0, first - reach) for first, _ in emitted]
        pieces = [
            frames[at, :, begin : min(len(rows[at]), emitted[at][1] + reach)].T
            for at, begin in enumerate(begins)
        ]
        wanted = [(first - begin, last - begin) for (first, last), begin in zip(emitted, begins, strict=True)]
        batch, lengths = self._batch(pieces, 0)
        emit = None if self.fixed_shapes else (min(one for one, _ in wanted), max(one for _, one in wanted))
        start = 0 if emit is None else emit[0]
        wave = self._nets.wave(batch.transpose(1, 2), lengths, emit)
        return [
            wave[at, (first - start) * self.hop : (last - start) * self.hop]
            for at, (first, last) in enumerate(wanted)
        ]

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
        return d_vector.to("cpu", torch.float32)

    def _batch(self, rows: list[Tensor], padding: int) -> tuple[Tensor, Tensor | None]:
        """Rows [T, ...] as one tensor [B, T, ...], and how long each is; None if nothing is padding."""
        lengths = [len(row) for row in rows]
        batch = pad_sequence(rows, batch_first=True, padding_value=padding)
        if self.fixed_shapes:
            count, longest = rounded(len(rows), ROWS), rounded(max(lengths), TOKENS)
            wide = batch.new_full((count, longest, *batch.shape[2:]), padding)
            wide[: len(rows), : batch.shape[1]] = batch
            lengths += [longest] * (count - len(rows))  # rows that nobody reads
            return wide, torch.tensor(lengths)
        return batch, torch.tensor(lengths) if len(set(lengths)) > 1 else None

    def _for_rows(self, steering: Tensor, count: int) -> Tensor:
        """With zeros for the rows that nobody reads, [count, D]."""
        return torch.nn.functional.pad(steering, (0, 0, 0, count - len(steering)))

    def _reference(self, wave: Tensor) -> Tensor:
        if wave.dim() != 2 or not wave.is_floating_point():
            raise BadRequest(f"a reference clip is float samples [B, N], not {_shown(wave)}")
        if wave.shape[1] < self.shortest_reference:
            raise BadRequest(
                f"a reference clip needs at least {self.shortest_reference} samples, not {wave.shape[1]}"
            )
        return self._finite(wave, "reference clip")

    def _finite(self, values: Tensor, what: str) -> Tensor:
        if not values.isfinite().all():
            raise BadRequest(f"the {what} holds a value that is no number")
        return values.to("cpu", torch.float32)


def _check_emitted(first: int, last: int, tokens: int, least: int = 0) -> None:
    if not 0 <= first <= last - least <= tokens - least:
        raise BadRequest(f"tokens {first} to {last - 1} cannot be emitted from a window of {tokens}")


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
