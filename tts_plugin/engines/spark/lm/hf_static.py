"""StaticCaches: caches of a fixed size that requests take in turns, on a GPU each with a graph of a step.

A step of this model is 24 layers of small kernels, and launching them one by one takes a GPU's host longer
than running them; a graph launches them at once. It needs every tensor at a place that stays, so a cache is
kept and used again. The graphs were not run yet: no GPU was at hand (deploy/gpu_check.sh runs them).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Qwen2ForCausalLM, StaticCache

_WARM_UP_STEPS = 3  # before a capture, so that libraries have allocated what they keep


class StaticCaches:
    """tokens: of prompt and output together, in each. One thread uses them, the LM's."""

    def __init__(self, model: Qwen2ForCausalLM, tokens: int) -> None:
        self._model = model
        self._tokens = tokens
        self._free: list[StaticSteps] = []

    def take(self) -> StaticSteps:
        """One that nobody uses, empty."""
        steps = self._free.pop() if self._free else StaticSteps(self._model, self._tokens)
        steps.reset()
        return steps

    def give_back(self, steps: StaticSteps) -> None:
        """It may be taken again; a step that still runs on it ends before the next one of its thread."""
        self._free.append(steps)


class StaticSteps:
    """The steps of one request on a cache that stays where it is."""

    def __init__(self, model: Qwen2ForCausalLM, tokens: int) -> None:
        self._model = model
        self._device = model.device
        self._cache = StaticCache(config=model.config, max_cache_len=tokens)
        self._columns = torch.arange(tokens, device=self._device)
        self._at = 0
        self._token = torch.zeros((1, 1), dtype=torch.int64, device=self._device)
        self._position = torch.zeros((1, 1), dtype=torch.int64, device=self._device)
        self._state: torch.Tensor | None = None
        self._graph = self._captured() if self._device.type == "cuda" else None

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget the request before."""
        self._cache.reset()  # type: ignore[no-untyped-call]
        self._at = 0

    @torch.inference_mode()
    def hidden(self, ids: Sequence[int]) -> torch.Tensor:
        """Run `ids` after those before; the last position's state, 1-D, valid until the next call."""
        first, self._at = self._at, self._at + len(ids)
        if len(ids) > 1:
            positions = torch.arange(first, self._at, device=self._device)[None]
            return self._run(torch.tensor([list(ids)], device=self._device), positions)
        self._token.fill_(ids[0])
        self._position.fill_(first)
        if self._graph is None or self._state is None:
            return self._run(self._token, self._position)
        self._graph.replay()
        return self._state

    def _run(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # made here from tensors only: transformers would decide by numbers, which a graph cannot see change
        seen = (self._columns <= positions[0, :, None])[None, None]
        # by position, because the cache's name differs between releases (past_key_values, cache)
        out = self._model.model(ids, {"full_attention": seen}, positions, self._cache)
        state: torch.Tensor = out.last_hidden_state[0, -1]
        return state

    @torch.inference_mode()
    def _captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                self._run(self._token, self._position)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: the codec's thread may use the GPU meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._state = self._run(self._token, self._position)
        return graph
