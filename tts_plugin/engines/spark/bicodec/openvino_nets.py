"""OpenVinoNets: the decode path on a CPU through OpenVINO, in shapes of which there are few.

A shape that was never seen costs 0.1 s or so once, so windows are brought to one of some sizes: more tokens
are generated than were asked for and dropped, to the left where true tokens are, at the beginning to the
right, where the row's length makes an edge of what was added. Samples are those of the window as asked for.
"""

from __future__ import annotations

import threading
from typing import Any

import openvino as ov
import torch
import torch.nn.functional as F
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import CodecSizes
from tts_plugin.engines.spark.bicodec.nets import nets_of
from tts_plugin.engines.spark.bicodec.openvino_graph import Graphs
from tts_plugin.engines.spark.bicodec.weights import Listing, Weights

_STEPS = (4, 8, 12, 16, 20, 24, 28, 32, 40, 50)  # tokens generated at once; beyond, a multiple of the last
_PRENET_STEP = 8  # tokens: its length is a multiple
_LOOK_AHEAD = 16  # tokens of a usual window


class OpenVinoNets:
    """Nets of float32 tensors. One row at a time: rows side by side gain little on a CPU
    (docs/benchmarks.md), and so a row's samples are the same to the bit whatever else is decoded.
    Threads may share it, and take turns.

    bfloat16: computes in it where the processor can (38 dB below the speech at full size). threads: None
    takes all cores.
    """

    rows = 1

    def __init__(
        self, graphs: Graphs, sizes: CodecSizes, *, bfloat16: bool = False, threads: int | None = None
    ) -> None:
        core = ov.Core()
        told: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            # pinned, its threads wait for cores on which the language model's run
            "ENABLE_CPU_PINNING": False,
        }
        if threads is not None:
            told["INFERENCE_NUM_THREADS"] = threads
        if bfloat16 and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            told["INFERENCE_PRECISION_HINT"] = "bf16"
        self._prepare = core.compile_model(graphs.prenet, "CPU", told).create_infer_request()
        self._generate = core.compile_model(graphs.generator, "CPU", told).create_infer_request()
        self._turns = threading.Lock()  # a request that two threads run at once gives one the other's numbers
        self._sizes = sizes
        self._prenet, self._generator = nets_of(Weights(Listing()).unused(), sizes)

    def frames(self, vectors: Tensor, steering: Tensor, lengths: Tensor | None = None) -> Tensor:
        tokens = vectors.shape[-1]
        missing = -tokens % _PRENET_STEP
        padded = F.pad(vectors, (0, missing))
        return self._run(self._prepare, padded, steering, torch.tensor([tokens]))[..., :tokens]

    def wave(
        self, frames: Tensor, lengths: Tensor | None = None, emit: tuple[int, int] | None = None
    ) -> Tensor:
        tokens, reach = frames.shape[-1], self._generator.reach
        first, last = emit or (0, tokens)
        size = _step(last - first)
        start = last - size
        if start < reach:  # there is no room to the left, so what is too much is generated to the right
            start, size = 0, _step(last)
        begin, end = max(0, start - reach), start + size + reach
        piece = F.pad(frames[..., begin : min(end, tokens)], (0, max(0, end - tokens)))
        wave = self._generated(piece, start - begin, size, min(end, tokens) - begin)
        hop = wave.shape[-1] // size
        return wave[:, (first - start) * hop : (last - start) * hop]

    def warm_up(self) -> None:
        """Every shape of a window of at most `_STEPS[-1]` tokens."""
        sizes, reach = self._sizes, self._generator.reach
        steering = torch.zeros(1, sizes.speaker_encoder.out_dim)
        longest = self._prenet.reach + reach + _STEPS[-1] + _LOOK_AHEAD
        for tokens in range(_PRENET_STEP, longest + 1, _PRENET_STEP):
            self.frames(torch.zeros(1, sizes.prenet.input_channels, tokens), steering)
        for size in _STEPS:
            for left in (0, reach):
                tokens = left + size + reach
                self._generated(torch.zeros(1, sizes.decoder.input_channel, tokens), left, size, tokens)

    def _generated(self, piece: Tensor, left: int, size: int, own: int) -> Tensor:
        """The samples of `size` tokens after `left` of context, of a piece of which `own` tokens are true."""
        spans = torch.tensor(self._generator.spans(left, left + size, piece.shape[-1]))
        return self._run(self._generate, piece, spans, torch.tensor([own]))

    def _run(self, request: Any, *inputs: Tensor) -> Tensor:
        with self._turns:
            results = request.infer([one.contiguous().numpy() for one in inputs], share_inputs=True)
            return torch.from_numpy(results[0].copy())  # the next call writes where it is now


def _step(tokens: int) -> int:
    """The least size that holds so many."""
    largest = _STEPS[-1]
    return next((step for step in _STEPS if step >= tokens), -(-tokens // largest) * largest)
