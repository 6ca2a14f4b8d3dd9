"""SparkEngine: text to speech by Spark-TTS, each step of it in a file of its own.

segment -> spelt out -> prompt -> language model -> codes -> windows -> vocoder -> pace -> frames
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import numpy as np

from tts_plugin.audio import AudioFrame, Pcm
from tts_plugin.config import EngineSettings, SparkSettings, cache_folder
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.engines.spark.ahead import read_ahead
from tts_plugin.engines.spark.bicodec import Runtime, load_bicodec
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.continuity import Continuity, Tail, gap
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.model_files import configured
from tts_plugin.engines.spark.noise import of_likely_length
from tts_plugin.engines.spark.pace import Pace
from tts_plugin.engines.spark.recovery import recovered
from tts_plugin.engines.spark.speakers import Speaker, Speakers
from tts_plugin.engines.spark.vocoder import Vocoder
from tts_plugin.engines.spark.window import Cut, Window, shape_of
from tts_plugin.errors import NotInstalled
from tts_plugin.playing import Playing
from tts_plugin.text.numbers import spell_out
from tts_plugin.timing import Count, Note
from tts_plugin.worker import SerialWorker

_AHEAD = 100  # codes that the language model may be ahead of the vocoder: 2 s, what a cancel can waste

# name in the settings -> "module:factory", imported on use
LMS: dict[str, str] = {
    "hf": "tts_plugin.engines.spark.lm.hf:build",
    "openvino": "tts_plugin.engines.spark.lm.openvino:build",
    "vllm": "tts_plugin.engines.spark.lm.vllm:build",
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """What one checkpoint needs in memory."""

    lm: SemanticLM
    vocoder: Vocoder
    speakers: Speakers


class SparkEngine:
    """Cloned and made-up voices, English and Chinese, at the codec's rate (16 kHz)."""

    languages = frozenset({"en", "zh"})

    def __init__(self, checkpoint: Checkpoint, settings: SparkSettings, lm: SemanticLM) -> None:
        self.rate = checkpoint.sizes.rate
        self._checkpoint = checkpoint
        self._settings = settings
        self._lm = lm
        self._worker = SerialWorker("spark-codec")
        self._loading = asyncio.Lock()
        self._parts: _Parts | None = None

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        parts = await self._loaded()
        speaker = await parts.speakers.of(turn.voice)
        speech = _Speech(self._checkpoint, self._settings, parts, turn, speaker)
        at = 0
        async for segment in segments:
            async with aclosing(speech.of(segment)) as pieces:
                async for pcm, is_last in pieces:
                    yield AudioFrame(pcm, self.rate, at, segment.index, ends_segment=is_last)
                    at += len(pcm)

    async def warm_up(self) -> None:
        parts = await self._loaded()
        await parts.lm.warm_up()
        await self._worker.run(parts.vocoder.codec.warm_up)
        some = Cut(0, 0, 8, 16)
        await parts.vocoder.decode([0] * some.ctx_to, parts.speakers.anybody(), some.emit_from, some.emit_to)

    async def aclose(self) -> None:
        if self._parts is not None:
            await self._parts.vocoder.aclose()
        await self._lm.aclose()
        self._worker.close()

    async def _loaded(self) -> _Parts:
        async with self._loading:
            if self._parts is None:
                load = partial(
                    load_bicodec,
                    self._checkpoint.path,
                    dtype=self._settings.codec_dtype,
                    device=self._settings.device,
                    runtime=codec_runtime(self._settings),
                    threads=self._settings.codec_threads,
                    cache=cache_folder(),
                )
                codec = await self._worker.run(load)
                speakers = Speakers(self._checkpoint, codec, self._lm, self._worker, self._settings.ref_s)
                self._parts = _Parts(self._lm, Vocoder(codec, self._worker, hold=self._lm.hold), speakers)
            return self._parts


class _Speech:
    """One turn: what carries over from segment to segment."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: SparkSettings,
        parts: _Parts,
        turn: Turn,
        speaker: Speaker,
    ) -> None:
        self._parts = parts
        self._turn = turn
        self._speaker = speaker
        self._is_noise = checkpoint.is_noise
        self._prompts = checkpoint.prompts
        self._shape = shape_of(settings.latency, turn.latency)
        self._rate = checkpoint.sizes.rate
        self._sampling = turn.sampling or speaker.sampling
        self._seed = secrets.randbits(32) if turn.seed is None else turn.seed
        self._playing = Playing()
        self._continuity = Continuity(
            lambda text: len(checkpoint.encode(text)), tail=settings.continuity_tokens
        )

    async def of(self, segment: Segment) -> AsyncGenerator[tuple[Pcm, bool]]:
        """The segment's samples, piece by piece, and whether a piece is its last."""
        text = spell_out(segment.text, self._turn.voice.language)
        vocoder, codes = self._parts.vocoder, list[int]()
        self._playing.asked()
        window = Window(self._shape, vocoder.codec.reach)
        pace = Pace(self._turn.pace, self._rate)
        async with read_ahead(self._watched(segment.index, text), _AHEAD) as batches:
            async for batch in batches:
                fresh = [code for group in batch for code in group]
                codes += fresh
                window.s_per_token = vocoder.s_per_token
                for cut in window.push(len(fresh), self._playing.buffered_s):
                    pcm = self._handed_out(pace.push(await self._decode(codes, cut)))
                    if len(pcm):
                        yield pcm, False
                        self._playing.asked()
        for cut in window.flush():
            pcm = np.concatenate((pace.push(await self._decode(codes, cut)), pace.flush()))
            yield self._handed_out(pcm), True
        self._continuity.spoke(text, codes)

    def _watched(self, index: int, text: str) -> AsyncGenerator[list[int]]:
        generate = partial(self._generate, index)
        if self._is_noise:
            return of_likely_length(text, generate(text, 0))
        hold = self._shape.first + self._shape.first_right
        return recovered(text, generate, hold=hold, count=self._turn.count)

    def _generate(self, index: int, text: str, attempt: int) -> AsyncGenerator[list[int]]:
        """The codes of `text`; a later attempt has another seed, and nothing that may have misled it."""
        tail = Tail() if attempt else self._continuity.tail(text)
        if not tail.semantic and not attempt:
            said = self._speaker.said
            tail = Tail(said + gap(said, text), self._speaker.semantic)
        prompt = self._prompts.clone(
            text, self._speaker.global_tokens, said=tail.said, semantic=tail.semantic
        )
        seed = int(np.random.SeedSequence((self._seed, index, attempt)).generate_state(1)[0])
        note = self._turn.note
        codes = self._parts.lm.generate(prompt, self._sampling, seed, lambda: note("queue"))
        return _noting(codes, note, self._turn.count)

    async def _decode(self, codes: list[int], cut: Cut) -> Pcm:
        self._turn.note("tokens")
        pcm = await self._parts.vocoder.decode(
            codes[cut.ctx_from : cut.ctx_to],
            self._speaker.d_vector,
            cut.emit_from - cut.ctx_from,
            cut.emit_to - cut.ctx_from,
            due_s=self._playing.dry_at_s,
        )
        self._turn.note("vocoder")
        self._turn.count("tokens_spoken", cut.tokens)
        return pcm

    def _handed_out(self, pcm: Pcm) -> Pcm:
        self._playing.add(len(pcm) / self._rate)
        return pcm


async def _noting(codes: AsyncGenerator[list[int]], note: Note, count: Count) -> AsyncGenerator[list[int]]:
    async with aclosing(codes):
        async for group in codes:
            note("prefill")
            count("tokens", len(group))
            yield group


def codec_runtime(settings: SparkSettings) -> Runtime:
    """What runs the codec; NotInstalled if it was asked for and is not there."""
    installed = find_spec("openvino") is not None
    if settings.codec == "openvino" and not installed:
        raise NotInstalled(
            "engine.spark.codec: openvino needs the module openvino, not installed here: "
            'pip install "sparkvoice[openvino]", or set engine.spark.codec: torch'
        )
    return settings.codec or ("openvino" if settings.device == "cpu" and installed else "torch")


def build(settings: EngineSettings) -> Engine:
    spark = settings.spark
    checkpoint = Checkpoint.open(configured(spark))
    return SparkEngine(checkpoint, spark, _lm(checkpoint, spark))


def _lm(checkpoint: Checkpoint, spark: SparkSettings) -> SemanticLM:
    name = spark.backend
    module, _, factory = LMS[name].partition(":")
    try:
        make = cast(
            Callable[[Checkpoint, SparkSettings], SemanticLM], getattr(import_module(module), factory)
        )
    except ModuleNotFoundError as missing:
        others = " or ".join(f"engine.spark.lm: {other}" for other in LMS if other != name)
        raise NotInstalled(
            f"language model backend {name} needs the module {missing.name}, not installed here: "
            f'pip install "sparkvoice[{name}]", or set {others}'
        ) from missing
    return make(checkpoint, spark)
