"""SpeechQwen2: vLLM's Qwen2 with a head that has rows for speech only, in each phase of the output those
that may come.

vLLM's own means for that, a list of allowed ids per request, ends at 1024 of them in its newer runner, and
there are 8193. Here the restriction is part of the model, so it holds on either runner, whatever is sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.utils import PPMissingLayer

from tts_plugin.engines.spark.lm.vllm_phases import Phases

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class SpeechQwen2(Qwen2ForCausalLM):  # type: ignore[misc]  # untyped where vLLM is not installed
    """Which rows may come follows from the token before, so `forward` hands each position's phase on beside
    its state, as further columns. Logits are as wide as the vocabulary, -inf where there is no row: ids
    mean the same to the model, to vLLM's sampler and to us. Runs on one device (no tensor parallelism)."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if get_tensor_model_parallel_world_size() != 1:
            raise ValueError("the speech-only head is not split: run with tensor_parallel_size=1")
        self.lm_head = PPMissingLayer()  # 166,000 rows of which 13,000 could ever be needed
        config = self.config
        phases = Phases(**config.sparkvoice_phases)
        rows = torch.tensor(phases.rows)
        place = self.model.embed_tokens.weight
        self._width, self._rows = config.hidden_size, config.vocab_size
        self.register_buffer("head_ids", rows.to(place.device), persistent=False)
        self.register_buffer("head", torch.zeros_like(place[:1]).repeat(len(rows), 1), persistent=False)
        self.register_buffer("closed", torch.tensor(phases.closed).to(place), persistent=False)
        marks = functional.one_hot(torch.tensor(phases.after(config.vocab_size)), len(phases.closed))
        self.register_buffer("marks", marks.to(place), persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States with the phase of each position in the last columns, [tokens, hidden + phases]."""
        if input_ids is None:
            raise ValueError("phases follow from token ids: this model takes no embeddings")
        states = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        return torch.cat((states, functional.embedding(input_ids, self.marks)), dim=-1)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary], -inf for all that must not come after that position."""
        state, mark = hidden_states[:, : self._width], hidden_states[:, self._width :]
        speech = functional.linear(state, self.head)
        speech.masked_fill_(mark @ self.closed > 0.5, float("-inf"))
        return speech.new_full((len(speech), self._rows), float("-inf")).index_copy_(1, self.head_ids, speech)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        source = _EMBEDDING if self.config.tie_word_embeddings else _HEAD
        found = False

        def passed_on() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal found
            for name, tensor in weights:
                if name == source:
                    self.head.copy_(tensor[self.head_ids.to(tensor.device)])
                    found = True
                if name != _HEAD:
                    yield name, tensor

        loaded: set[str] = super().load_weights(passed_on())
        if not found:
            raise ValueError(f"the checkpoint has no {source}, which the speech head is taken from")
        return loaded
