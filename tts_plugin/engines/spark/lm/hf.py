"""HfLM: the language model run by transformers, one step per call to its own thread."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch.nn import functional
from transformers import DynamicCache, Qwen2ForCausalLM
from transformers.utils import logging

from tts_plugin.config import SparkSettings
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.engines.spark.lm.hf_static import StaticCaches, StaticSteps
from tts_plugin.engines.spark.lm.protocol import unheard
from tts_plugin.engines.spark.sampling import Logits, checked, draw, generator
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import ConfigError, SynthesisFailed, did_you_mean
from tts_plugin.worker import SerialWorker

P = ParamSpec("P")
T = TypeVar("T")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HALF = ("float16", "fp16", "half")
# A prompt is read in pieces of this many tokens, so that a long one holds up others, and a cancel, no longer.
PREFILL_TOKENS = 128
_WARM_UP_TOKENS = 2
_CHECK = "see: sparkvoice model check"


def dtype_named(name: str | None, device: str) -> torch.dtype:
    """The dtype called `name`; None: float32 on a CPU, bfloat16 on a GPU. float16 is a ConfigError."""
    if name is None:
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    if name in _HALF:
        raise ConfigError(
            f"dtype {name} is refused: in float16 this model is known to speak garbage or nothing; "
            "use bfloat16 or float32"
        )
    if name not in DTYPES:
        raise ConfigError(f'no dtype "{name}"{did_you_mean(name, DTYPES)}')
    return DTYPES[name]


def load_qwen2(model_dir: Path, *, dtype: torch.dtype, device: str) -> Qwen2ForCausalLM:
    """The model in `model_dir`/LLM: from safetensors, from this folder only, and with every tensor.

    ConfigError says in words what is missing or does not fit.
    """
    folder = model_dir / "LLM"
    _require_qwen2(folder)
    try:
        # Any: with output_loading_info it is a pair, which its types do not say
        with _no_progress_bar():
            answer: Any = Qwen2ForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # so that they are reported: below they are errors
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{folder} cannot be loaded: {error}; {_CHECK}") from error
    model, report = answer
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(f"{folder} lacks {len(missing)} tensors, the first is {missing[0]}; {_CHECK}")
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, due = mismatched[0]
        raise ConfigError(f"{folder}: {name} has shape {list(found)}, due is {list(due)}; {_CHECK}")
    loaded: Qwen2ForCausalLM = model.to(device).eval()
    return loaded


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers types it not
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _require_qwen2(folder: Path) -> None:
    config = folder / "config.json"
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{config} cannot be read ({error}): SPARK_TTS_MODEL should name a Spark-TTS model directory"
        ) from error
    if kind != "qwen2":
        raise ConfigError(f'{config} is of a "{kind}" model; the language model of Spark-TTS is a "qwen2"')


class Steps(Protocol):
    """The model's steps for one request, with what it has read so far."""

    def hidden(self, ids: Sequence[int]) -> torch.Tensor:
        """Run `ids` after those before; the last position's state, 1-D."""
        ...


class _GrowingSteps:
    """Steps whose cache is as long as what was read."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def hidden(self, ids: Sequence[int]) -> torch.Tensor:
        # By position, because the cache's name differs between releases (past_key_values, cache).
        out = self._model.model(torch.tensor([ids], device=self._model.device), None, None, self._cache)
        state: torch.Tensor = out.last_hidden_state[0, -1]
        return state


class _Loaded:
    """The model in memory, and the rows of its head that a phase of the output may draw from."""

    def __init__(self, model: Qwen2ForCausalLM, ids: Vocabulary, static_tokens: int | None) -> None:
        head = model.lm_head.weight.detach()
        self._require_rows(len(head), ids)
        self.model = model
        self.tokens = len(head)
        context: int = model.config.max_position_embeddings
        self.context = min(context, static_tokens or context)
        self._static = StaticCaches(model, self.context) if static_tokens else None
        self.device = head.device
        # Only these rows exist for speech: nothing else can be drawn, and nothing else is computed.
        speech = head[ids.semantic_first : ids.semantic_first + ids.semantic_count]
        self.speech = torch.cat((speech, head[ids.eos : ids.eos + 1]))
        self.pitches = head[ids.pitch_value_first : ids.pitch_value_first + ids.pitch_value_count]
        self.speeds = head[ids.speed_value_first : ids.speed_value_first + ids.speed_value_count]
        self.globals = head[ids.global_first : ids.global_first + ids.global_count]

    def take(self) -> Steps:
        """For a new request."""
        return self._static.take() if self._static else _GrowingSteps(self.model)

    def give_back(self, steps: Steps | None) -> None:
        if self._static and isinstance(steps, StaticSteps):
            self._static.give_back(steps)

    @torch.inference_mode()
    def logits(self, state: torch.Tensor, rows: torch.Tensor) -> Logits:
        # linear, not rows @ state: twice as fast on a CPU
        return np.asarray(functional.linear(state[None], rows)[0].float().cpu().numpy())

    @staticmethod
    def _require_rows(rows: int, ids: Vocabulary) -> None:
        last = max(
            ids.eos,
            ids.semantic_first + ids.semantic_count - 1,
            ids.global_first + ids.global_count - 1,
            ids.pitch_value_first + ids.pitch_value_count - 1,
            ids.speed_value_first + ids.speed_value_count - 1,
        )
        if last >= rows:
            raise ConfigError(
                f"the tokenizer has token {last}, the language model only {rows} rows: not of one model"
            )


@dataclass(slots=True)
class _Request:
    """What one request owns: its steps (None before the first) and its random numbers. seen: indices drawn
    from the current rows. begun: to be called at its first step."""

    sampling: Sampling
    numbers: np.random.Generator
    begun: Callable[[], None] = unheard
    steps: Steps | None = None
    tokens: int = 0
    seen: set[int] = field(default_factory=set)


class HfLM:
    """A SemanticLM on transformers. Requests take turns, a step each; each has its own cache.

    load: makes the model; called once, on the LM's thread. static_tokens: of prompt and output, in caches
    of a fixed size, on a GPU with CUDA graphs; None: caches that grow.
    """

    def __init__(
        self, load: Callable[[], Qwen2ForCausalLM], ids: Vocabulary, *, static_tokens: int | None = None
    ) -> None:
        self.steps = 0
        self._load = load
        self._ids = ids
        self._static_tokens = static_tokens
        self._loaded: _Loaded | None = None
        self._worker = SerialWorker("spark-lm")
        self._gate = Gate()

    @classmethod
    def open(
        cls,
        model_dir: Path,
        ids: Vocabulary,
        *,
        dtype: str | None = None,
        device: str = "cpu",
        static_tokens: int | None = None,
    ) -> HfLM:
        """The LM of `model_dir`, loaded on first use. dtype: float32, bfloat16, None as `dtype_named`."""
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f'device "{device}" is not there: torch finds no GPU; use device "cpu"')
        chosen = dtype_named(dtype, device)
        load = partial(load_qwen2, model_dir, dtype=chosen, device=device)
        return cls(load, ids, static_tokens=static_tokens)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        begun: Callable[[], None] = unheard,
    ) -> AsyncGenerator[list[int]]:
        ids = self._ids
        # A transcript's prompt goes on from the clip's codes and holds it already.
        feed = list(prompt) if ids.start_semantic in prompt else [*prompt, ids.start_semantic]
        async with self._request(sampling, seed) as (loaded, request):
            request.begun = begun
            while True:
                code = await self._next(loaded, request, feed, loaded.speech)
                if code == ids.semantic_count:  # the row after the codes: end-of-speech
                    return
                yield [code]
                feed = [ids.semantic_first + code]

    async def create_globals(
        self, prompt: Sequence[int], sampling: Sampling, seed: int | None
    ) -> tuple[int, ...]:
        ids = self._ids
        async with self._request(sampling, seed) as (loaded, request):
            pitch = await self._next(loaded, request, [*prompt, ids.start_acoustic], loaded.pitches)
            request.seen.clear()
            speed = await self._next(loaded, request, [ids.pitch_value_first + pitch], loaded.speeds)
            request.seen.clear()
            feed = [ids.speed_value_first + speed, ids.end_acoustic, ids.start_global]
            codes: list[int] = []
            for _ in range(GLOBAL_TOKENS):
                codes.append(await self._next(loaded, request, feed, loaded.globals))
                feed = [ids.global_first + codes[-1]]
            return tuple(codes)

    def hold(self) -> AbstractContextManager[None]:
        return self._gate.hold()

    async def warm_up(self) -> None:
        async with self._request(Sampling(), 0) as (loaded, request):
            feed = [self._ids.start_semantic] * PREFILL_TOKENS
            for _ in range(_WARM_UP_TOKENS):
                await self._next(loaded, request, feed, loaded.speech)
                feed = [self._ids.semantic_first]

    async def aclose(self) -> None:
        self._worker.close()
        self._loaded = None

    @asynccontextmanager
    async def _request(
        self, sampling: Sampling, seed: int | None
    ) -> AsyncGenerator[tuple[_Loaded, _Request]]:
        checked(sampling)
        loaded = self._loaded
        if loaded is None:
            loaded = await self._run(self._load_once)
        request = _Request(sampling, generator(seed))
        try:
            yield loaded, request
        finally:
            loaded.give_back(request.steps)

    async def _next(self, loaded: _Loaded, request: _Request, feed: Sequence[int], rows: torch.Tensor) -> int:
        """Read `feed`, then draw one of `rows`; every piece of it waits its turn."""
        self._require_fits(loaded, request, feed)
        request.tokens += len(feed)
        last = (len(feed) - 1) // PREFILL_TOKENS * PREFILL_TOKENS
        for at in range(0, last, PREFILL_TOKENS):
            await self._gate.opened()
            await self._run(self._read, loaded, request, feed[at : at + PREFILL_TOKENS])
        await self._gate.opened()
        return await self._run(self._draw, loaded, request, feed[last:], rows)

    def _require_fits(self, loaded: _Loaded, request: _Request, feed: Sequence[int]) -> None:
        if strange := [token for token in feed if not 0 <= token < loaded.tokens]:
            raise SynthesisFailed(
                f"the prompt holds token {strange[0]}, the language model knows 0 to {loaded.tokens - 1}: "
                "tokenizer and model are not of one model"
            )
        if request.tokens + len(feed) > loaded.context:
            raise SynthesisFailed(
                f"the speech did not end within the model's {loaded.context} tokens: split the text"
            )

    # on the worker from here

    def _load_once(self) -> _Loaded:
        if self._loaded is None:
            self._loaded = _Loaded(self._load(), self._ids, self._static_tokens)
        return self._loaded

    def _read(self, loaded: _Loaded, request: _Request, feed: Sequence[int]) -> torch.Tensor:
        self.steps += 1
        request.begun()
        request.begun = unheard
        if request.steps is None:
            request.steps = loaded.take()
        return request.steps.hidden(feed)

    def _draw(self, loaded: _Loaded, request: _Request, feed: Sequence[int], rows: torch.Tensor) -> int:
        logits = loaded.logits(self._read(loaded, request, feed), rows)
        index = draw(logits, request.sampling, request.seen, request.numbers)
        request.seen.add(index)
        return index

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`call` on the worker, with its failures in our own words."""
        try:
            return await self._worker.run(call, *args, **kwargs)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # torch raises these
            raise SynthesisFailed(f"the language model failed: {error}") from error


def build(checkpoint: Checkpoint, settings: SparkSettings) -> HfLM:
    """The LM of a checkpoint as the settings ask for it."""
    return HfLM.open(
        checkpoint.path,
        checkpoint.vocabulary,
        dtype=settings.dtype,
        device=settings.device,
        static_tokens=settings.hf.cache_tokens if settings.hf.static_cache else None,
    )
