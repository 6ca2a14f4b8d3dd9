"""OpenVinoLM: the language model on a CPU through OpenVINO, all requests in one step."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tts_plugin.config import OpenVinoSettings, SparkSettings, cache_folder
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.batcher import Batcher
from tts_plugin.engines.spark.lm.gate import Gate
from tts_plugin.engines.spark.lm.openvino_net import Net, Past, Piece, Reads
from tts_plugin.engines.spark.lm.openvino_weights import Source, compressed
from tts_plugin.engines.spark.lm.protocol import unheard
from tts_plugin.engines.spark.lm_config import LmConfig
from tts_plugin.engines.spark.model_files import ModelFiles
from tts_plugin.engines.spark.sampling import checked, draw, generator
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import ConfigError, SynthesisFailed
from tts_plugin.worker import SerialWorker

logger = logging.getLogger(__name__)

# Of prompts, in one step: a long one is read in pieces of this many tokens, and several at once wait for
# each other, so that nobody who speaks waits longer for a step.
PREFILL_TOKENS = 128
_WARM_UP_TOKENS = 2

Family = Literal["speech", "global", "pitch_value", "speed_value"]


class _Heart:
    """The net in use, replaced when it breaks. rows: of the heads that are not in the net."""

    def __init__(self, net: Reads) -> None:
        self.net = net
        self.broken = ""
        self._rows: dict[Family, NDArray[np.float32]] = {}

    def rows(self, family: Family) -> NDArray[np.float32]:
        if family not in self._rows:
            self._rows[family] = self.net.rows(family)
        return self._rows[family]


@dataclass(eq=False, slots=True)
class _Request:
    """What one request owns. seen: indices drawn from the current family. begun: to be called at its first
    step."""

    heart: _Heart
    sampling: Sampling
    numbers: np.random.Generator
    begun: Callable[[], None] = unheard
    past: Past = field(default_factory=Past)
    asked: int = 0
    seen: set[int] = field(default_factory=set)


@dataclass(eq=False, frozen=True, slots=True)
class _Job:
    """A step of one request: read `ids`, then draw from `family` (None: nothing yet)."""

    request: _Request
    ids: Sequence[int]
    family: Family | None


class OpenVinoLM:
    """A SemanticLM on OpenVINO: whoever asks for the next code gets it from the same step.

    load: makes the net; called on the LM's thread, and again after a failure. context: tokens of one
    request, at most. tokens: ids that the model knows.
    """

    def __init__(self, load: Callable[[], Reads], ids: Vocabulary, *, tokens: int, context: int) -> None:
        self.steps = 0
        self._load = load
        self._ids = ids
        self._tokens = tokens
        self._context = context
        self._heart: _Heart | None = None
        self._worker = SerialWorker("spark-lm")
        self._gate = Gate()
        self._batcher: Batcher[_Job, int] = Batcher(self._worker, self._step, self._take, self._gate)

    @classmethod
    def open(cls, files: ModelFiles, ids: Vocabulary, settings: OpenVinoSettings) -> OpenVinoLM:
        """The LM of the model directory; its weights are compressed at first use, if they never were."""
        config = LmConfig.read(files.lm_config)
        _require_rows(config.vocab_size, ids)
        if settings.weights == "int4":
            logger.warning(
                "int4 weights of the language model are not exact enough to be told the same: "
                "listen before you use them; int8 is the default"
            )
        source = Source(files, config, ids, settings.weights)

        def load() -> Net:
            return Net(source, compressed(source, cache_folder()), properties(settings))

        return cls(load, ids, tokens=config.vocab_size, context=config.max_position_embeddings)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        begun: Callable[[], None] = unheard,
    ) -> AsyncGenerator[list[int]]:
        ids = self._ids
        request = await self._begin(sampling, seed)
        request.begun = begun
        try:
            # A transcript's prompt goes on from the clip's codes and holds it already.
            feed = list(prompt) if ids.start_semantic in prompt else [*prompt, ids.start_semantic]
            while True:
                code = await self._next(request, feed, "speech")
                if code == ids.semantic_count:  # the row after the codes: end-of-speech
                    return
                yield [code]
                feed = [ids.semantic_first + code]
        finally:
            request.heart.net.free(request.past)

    async def create_globals(
        self, prompt: Sequence[int], sampling: Sampling, seed: int | None
    ) -> tuple[int, ...]:
        ids = self._ids
        request = await self._begin(sampling, seed)
        try:
            pitch = await self._next(request, [*prompt, ids.start_acoustic], "pitch_value")
            request.seen.clear()
            speed = await self._next(request, [ids.pitch_value_first + pitch], "speed_value")
            request.seen.clear()
            feed = [ids.speed_value_first + speed, ids.end_acoustic, ids.start_global]
            codes: list[int] = []
            for _ in range(GLOBAL_TOKENS):
                codes.append(await self._next(request, feed, "global"))
                feed = [ids.global_first + codes[-1]]
            return tuple(codes)
        finally:
            request.heart.net.free(request.past)

    def hold(self) -> AbstractContextManager[None]:
        return self._gate.hold()

    async def warm_up(self) -> None:
        request = await self._begin(Sampling(), 0)
        try:
            feed = [self._ids.start_semantic] * PREFILL_TOKENS
            for _ in range(_WARM_UP_TOKENS):
                await self._next(request, feed, "speech")
                feed = [self._ids.semantic_first]
        finally:
            request.heart.net.free(request.past)

    async def aclose(self) -> None:
        self._worker.close()
        await self._batcher.aclose()
        self._heart = None

    async def _begin(self, sampling: Sampling, seed: int | None) -> _Request:
        checked(sampling)
        heart = self._heart
        if heart is None:
            heart = await self._worker.run(self._load_once)
        return _Request(heart, sampling, generator(seed))

    async def _next(self, request: _Request, feed: Sequence[int], family: Family) -> int:
        """Read `feed`, then draw one of `family`; every piece of it is a step of its own."""
        self._require_fits(request, feed)
        request.asked += len(feed)
        last = (len(feed) - 1) // PREFILL_TOKENS * PREFILL_TOKENS
        for at in range(0, last, PREFILL_TOKENS):
            await self._ask(_Job(request, feed[at : at + PREFILL_TOKENS], None))
        return await self._ask(_Job(request, feed[last:], family))

    async def _ask(self, job: _Job) -> int:
        if job.request.heart.broken:
            raise _broken(job.request.heart)
        return await self._batcher.ask(job)

    def _take(self, jobs: Sequence[_Job]) -> Sequence[_Job]:
        taken = _fit(jobs)
        self.steps += len(taken)  # here, where a reader that leaves can see it: the thread begins later
        return taken

    def _require_fits(self, request: _Request, feed: Sequence[int]) -> None:
        if strange := [token for token in feed if not 0 <= token < self._tokens]:
            raise SynthesisFailed(
                f"the prompt holds token {strange[0]}, the language model knows 0 to {self._tokens - 1}: "
                "tokenizer and model are not of one model"
            )
        if request.asked + len(feed) > self._context:
            raise SynthesisFailed(
                f"the speech did not end within the model's {self._context} tokens: split the text"
            )

    # on the worker from here

    def _load_once(self) -> _Heart:
        if self._heart is None:
            try:
                self._heart = _Heart(self._load())
            except (RuntimeError, MemoryError) as error:  # OpenVINO raises these
                raise SynthesisFailed(f"the language model cannot be loaded: {error}") from error
        return self._heart

    def _step(self, jobs: Sequence[_Job]) -> list[int | Exception]:
        """One step of all; those whose net has broken since they asked are told so."""
        live = [job for job in jobs if not job.request.heart.broken]
        answers: dict[int, int | Exception] = {}
        if live:
            for job in live:
                job.request.begun()
                job.request.begun = unheard
            heart = live[0].request.heart  # of all: a new one comes only after the old one broke
            try:
                read = heart.net.read([Piece(job.request.past, job.ids) for job in live])
                answers = {
                    id(job): _drawn(job, read.logits[at], read.states[at]) for at, job in enumerate(live)
                }
            except (RuntimeError, ValueError, IndexError, MemoryError) as error:
                # What the pages hold now is unknown, so nobody goes on with them.
                heart.broken = str(error) or type(error).__name__
                self._heart = None
                logger.error("the language model failed and will be loaded anew: %s", error)
        return [answers.get(id(job), _broken(job.request.heart)) for job in jobs]


def _drawn(job: _Job, logits: NDArray[np.float32], state: NDArray[np.float32]) -> int | Exception:
    request = job.request
    if job.family is None:
        return 0
    if job.family != "speech":
        logits = request.heart.rows(job.family) @ state
    try:
        index = draw(logits, request.sampling, request.seen, request.numbers)
    except SynthesisFailed as error:
        return error
    request.seen.add(index)
    return index


def _fit(jobs: Sequence[_Job]) -> list[_Job]:
    """All who speak, and of prompts, in order, what a step may read."""
    taken, prompts = list[_Job](), 0
    for job in jobs:
        tokens = len(job.ids) if len(job.ids) > 1 else 0
        if not tokens or not prompts or prompts + tokens <= PREFILL_TOKENS:
            taken.append(job)
            prompts += tokens
    return taken


def _broken(heart: _Heart) -> SynthesisFailed:
    return SynthesisFailed(f"the language model failed: {heart.broken}; ask again, it is loaded anew")


def _require_rows(rows: int, ids: Vocabulary) -> None:
    if ids.id_count > rows:
        raise ConfigError(
            f"the tokenizer has token {ids.id_count - 1}, the language model only {rows} rows: "
            "not of one model"
        )


def properties(settings: OpenVinoSettings) -> dict[str, Any]:
    """What OpenVINO is told of the settings."""
    told: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        # bfloat16, the default where the processor has it, is slower, and less exact than asked for
        "INFERENCE_PRECISION_HINT": "f32",
        # activations become int8 in groups of this many: faster than the default 32, and as exact
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64,
        "ENABLE_CPU_PINNING": settings.pin,
    }
    if settings.threads is not None:
        told["INFERENCE_NUM_THREADS"] = settings.threads
    return told


def build(checkpoint: Checkpoint, settings: SparkSettings) -> OpenVinoLM:
    """The LM of a checkpoint as the settings ask for it."""
    return OpenVinoLM.open(ModelFiles(checkpoint.path), checkpoint.vocabulary, settings.openvino)
