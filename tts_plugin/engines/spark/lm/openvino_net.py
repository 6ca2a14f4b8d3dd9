"""Net: the language model compiled by OpenVINO, with the pages that hold what each sequence has read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from tts_plugin.engines.spark.lm.openvino_graph import INPUTS, build_graph
from tts_plugin.engines.spark.lm.openvino_weights import EMBEDDING, Source
from tts_plugin.engines.spark.mapped import MappedTensors

_PAGES = 64  # at first; doubled whenever they are used up
_PAGE_TOKENS = 32  # of a page, as this plugin has it on every CPU


@dataclass(eq=False, slots=True)
class Past:
    """What one request has read: `tokens` of them, in `pages`."""

    pages: list[int] = field(default_factory=list)
    tokens: int = 0


class Piece(NamedTuple):
    """`ids` to read after what `sequence` holds."""

    sequence: Past
    ids: Sequence[int]


class Read(NamedTuple):
    """A row a piece, of its last token. logits: float32, the semantic codes and end-of-speech.
    states: what any head is multiplied by."""

    logits: NDArray[np.float32]
    states: NDArray[np.float32]


class Reads(Protocol):
    """What a language model needs of its net."""

    def read(self, pieces: Sequence[Piece]) -> Read: ...

    def free(self, sequence: Past) -> None: ...

    def rows(self, family: str) -> NDArray[np.float32]: ...


class Net:
    """One thread reads; any may free. weights: of `source`, compressed. properties: as OpenVINO has them."""

    def __init__(self, source: Source, weights: Path, properties: dict[str, Any]) -> None:
        config = source.config
        self._embedding = MappedTensors(source.files.lm)
        self._weights = MappedTensors(weights)
        compiled = ov.Core().compile_model(build_graph(config, self._weights), "CPU", properties)
        self._weights.forget()  # most of it was copied into the order that the processor likes
        self._request = compiled.create_infer_request()
        self._caches = compiled.inputs[len(INPUTS) :]
        self._pages = 0
        self._free: list[int] = []
        self._freed: deque[Past] = deque()
        self._grow(_PAGES)
        self._spare = Past([self._free.pop()])
        width = config.hidden_size // config.num_attention_heads
        exponents = np.arange(0, width, 2, dtype=np.float64) / width
        angles = np.arange(config.max_position_embeddings)[:, None] / config.theta**exponents
        self._angles = np.concatenate((angles, angles), axis=1, dtype=np.float32)[:, None]

    @property
    def pages(self) -> int:
        """How many there are for sequences."""
        return self._pages - len(self._spare.pages)

    @property
    def free_pages(self) -> int:
        """How many of them no live sequence holds."""
        return len(self._free) + sum(len(sequence.pages) for sequence in self._freed)

    def read(self, pieces: Sequence[Piece], every: bool = False) -> Read:
        """Read all pieces at once. every: a row a token, not only of the last ones."""
        self._collect([piece.sequence for piece in pieces])
        tokens = sum(len(piece.ids) for piece in pieces)
        if tokens == 1:
            # One row alone is computed otherwise than the same row among others, by up to 2 % of the largest
            # logit; two and more are equal bit for bit. So it gets company, and equal seeds equal codes.
            self._spare.tokens = 0
            pieces = [*pieces, Piece(self._spare, pieces[0].ids)]
        ids = [token for piece in pieces for token in piece.ids]
        lengths = np.array([len(piece.ids) for piece in pieces])
        past = np.array([piece.sequence.tokens for piece in pieces])
        for piece in pieces:
            self._extend(piece.sequence, len(piece.ids))
        pages = [piece.sequence.pages for piece in pieces]
        ends = np.cumsum(lengths)
        positions = np.concatenate([np.arange(p, p + n) for p, n in zip(past, lengths, strict=True)])
        angles = self._angles[positions]
        feed = {
            "wanted": np.arange(tokens) if every else ends[ends <= tokens] - 1,
            "past": past,
            "begins": [0, *ends],
            "blocks": [page for one in pages for page in one],
            "block_begins": np.cumsum([0, *map(len, pages)]),
            "longest": (past + lengths).max(),
        }
        arrays: dict[str, NDArray[Any]] = {name: np.asarray(value, np.int32) for name, value in feed.items()}
        arrays["embedded"] = self._embedding.floats(EMBEDDING, np.array(ids))
        arrays |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        self._request.infer({at: arrays[name] for at, name in enumerate(INPUTS)})
        logits, states = (self._request.get_output_tensor(at).data.copy() for at in (0, 1))
        return Read(logits, states)

    def free(self, sequence: Past) -> None:
        """Its pages are used again from the next read on."""
        self._freed.append(sequence)

    def rows(self, family: str) -> NDArray[np.float32]:
        """The head of a family of tokens other than speech: "global", "pitch_value", "speed_value"."""
        return self._weights.floats(family)

    def _extend(self, sequence: Past, tokens: int) -> None:
        sequence.tokens += tokens
        while len(sequence.pages) * _PAGE_TOKENS < sequence.tokens:
            if not self._free:
                self._grow(2 * self._pages)
            sequence.pages.append(self._free.pop())

    def _collect(self, used: Sequence[Past]) -> None:
        """Take back the pages of what was freed. One that is freed as its read begins gets pages in that
        read yet, which nobody would free any more, so it is taken back by the next."""
        for _ in range(len(self._freed)):
            sequence = self._freed.popleft()
            if sequence in used:
                self._freed.append(sequence)
            else:
                self._free += sequence.pages
                sequence.pages = []

    def _grow(self, pages: int) -> None:
        for port in self._caches:
            shape = [pages, *(length.get_length() for length in list(port.get_partial_shape())[1:])]
            grown = ov.Tensor(port.get_element_type(), ov.Shape(shape))
            if self._pages:
                old = self._request.get_tensor(port)
                grown.data[: self._pages] = old.data
            self._request.set_tensor(port, grown)
        self._free += range(self._pages, pages)
        self._pages = pages
