"""VllmLM: the language model run by vLLM in a process of its own, all requests in one batch."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial

from tts_plugin.config import SparkSettings
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.lm.protocol import unheard
from tts_plugin.engines.spark.lm.vllm_engine import VllmEngine, require_vllm, start
from tts_plugin.engines.spark.sampling import checked
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.engines.spark.voice import GLOBAL_TOKENS
from tts_plugin.errors import EngineUnavailable, SynthesisFailed
from tts_plugin.worker import SerialWorker

_WARM_UP_TOKENS = 2
_SEEDS = 2**63  # vLLM takes them as int64
_CLOSED = "this language model is closed: open another engine"


class VllmLM:
    """A SemanticLM on vLLM. It steps all requests together and does not wait for their readers, so up to the
    end of the speech may have been made when a reader closes: see `orphans`.

    Codes are drawn by vLLM's sampler, so a seed says other codes here than on other backends; the
    repetition penalty counts the codes in the prompt too. `begun` comes with the first code, since vLLM
    does not tell when the wait for others is over. A process that dies takes its requests along, as
    EngineUnavailable, and the next request starts another.

    start: makes the engine; called on a thread of its own, on first use.
    """

    def __init__(self, start: Callable[[], VllmEngine], ids: Vocabulary) -> None:
        self._start = start
        self._ids = ids
        self._engine: VllmEngine | None = None
        self._begun_with = (0, 0)  # tokens and orphans of the engine when it became ours
        self._ended_with = (0, 0)  # those of the engines before
        self._closed = False
        self._worker = SerialWorker("spark-lm")

    @property
    def steps(self) -> int:
        """Tokens that came out of vLLM: one a step and request; pieces of a long prompt are not told."""
        return self._counts()[0]

    @property
    def orphans(self) -> int:
        """Tokens made for readers that had closed by then."""
        return self._counts()[1]

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        begun: Callable[[], None] = unheard,
    ) -> AsyncGenerator[list[int]]:
        ids = self._ids
        checked(sampling)
        # A transcript's prompt goes on from the clip's codes and holds it already.
        feed = list(prompt) if ids.start_semantic in prompt else [*prompt, ids.start_semantic]
        engine = await self._running()
        room = self._room(engine, feed)
        said = 0
        async with aclosing(self._stream(engine, feed, sampling, seed, room, ids.eos)) as groups:
            async for group in groups:
                if not said:
                    begun()
                said += len(group)
                yield [token - ids.semantic_first for token in group]
        if said >= room:
            raise SynthesisFailed(
                f"the speech did not end within the model's {engine.context} tokens: split the text"
            )

    async def create_globals(
        self, prompt: Sequence[int], sampling: Sampling, seed: int | None
    ) -> tuple[int, ...]:
        ids = self._ids
        checked(sampling)
        engine = await self._running()
        feed = [*prompt, ids.start_acoustic]
        # each phase ends where the next begins, with what the model may not choose
        for most, then in ((1, []), (1, [ids.end_acoustic, ids.start_global]), (GLOBAL_TOKENS, [])):
            self._room(engine, feed)
            async with aclosing(self._stream(engine, feed, sampling, seed, most, None)) as groups:
                drawn = [token async for group in groups for token in group]
            feed += drawn + then
        return tuple(token - ids.global_first for token in drawn)

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()  # its steps run in another process, on the GPU

    async def warm_up(self) -> None:
        engine = await self._running()
        feed = [self._ids.start_semantic]
        async with aclosing(self._stream(engine, feed, Sampling(), 0, _WARM_UP_TOKENS, None)) as groups:
            async for _ in groups:
                pass

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._engine is not None:
            await self._engine.abort()
        await self._worker.run(self._stop)  # behind a start that runs
        self._worker.close()

    async def _stream(
        self,
        engine: VllmEngine,
        feed: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        most: int,
        stop: int | None,
    ) -> AsyncGenerator[list[int]]:
        number = secrets.randbits(62) if seed is None else abs(seed) % _SEEDS
        async with aclosing(engine.stream(feed, sampling, number, most=most, stop=stop)) as groups:
            async for group in groups:
                yield group

    async def _running(self) -> VllmEngine:
        """The engine, started if there is none that lives."""
        engine = self._engine
        if not self._closed and (engine is None or engine.dead):
            engine = await self._worker.run(self._started)
        if self._closed or engine is None:
            raise EngineUnavailable(_CLOSED)
        return engine

    def _room(self, engine: VllmEngine, feed: Sequence[int]) -> int:
        """Tokens that fit after `feed`; SynthesisFailed if it cannot be read."""
        if strange := [token for token in feed if not 0 <= token < engine.rows]:
            raise SynthesisFailed(
                f"the prompt holds token {strange[0]}, the language model knows 0 to {engine.rows - 1}: "
                "tokenizer and model are not of one model"
            )
        if len(feed) >= engine.context:
            raise SynthesisFailed(
                f"the speech did not end within the model's {engine.context} tokens: split the text"
            )
        return engine.context - len(feed)

    def _counts(self) -> tuple[int, int]:
        tokens, orphans = self._ended_with
        if self._engine is not None:
            tokens += self._engine.tokens - self._begun_with[0]
            orphans += self._engine.orphans - self._begun_with[1]
        return tokens, orphans

    # on the worker from here

    def _started(self) -> VllmEngine:
        if self._engine is not None and self._engine.dead:
            self._stop()
        if self._engine is None:
            engine = self._start()
            self._begun_with = (engine.tokens, engine.orphans)
            self._engine = engine
        return self._engine

    def _stop(self) -> None:
        if self._engine is not None:
            self._ended_with = self._counts()
            engine, self._engine = self._engine, None
            engine.shutdown()


def build(checkpoint: Checkpoint, settings: SparkSettings) -> VllmLM:
    """The LM of a checkpoint as the settings ask for it; NotInstalled where vLLM is not."""
    require_vllm()
    return VllmLM(partial(start, checkpoint.path, checkpoint.vocabulary, settings), checkpoint.vocabulary)
