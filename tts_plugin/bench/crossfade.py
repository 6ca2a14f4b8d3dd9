"""CrossFadeEngine: Spark as other servers stream it, on the same language model and codec, for comparison."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import numpy as np

from tts_plugin.audio import AudioFrame, Pcm, to_float32, to_int16
from tts_plugin.bench.chunks import CROSS_FADED, Chunker, ChunkPolicy, CrossFader
from tts_plugin.engine import Segment, Turn
from tts_plugin.engines.spark.ahead import read_ahead
from tts_plugin.engines.spark.engine import _AHEAD, SparkEngine, _Speech
from tts_plugin.text.numbers import spell_out

CHUNKS = CROSS_FADED
WHOLE = ChunkPolicy(first=sys.maxsize, growth=1.0, most=sys.maxsize, overlap=0)  # nothing before the end


class CrossFadeEngine:
    """Speaks with the parts of `engine`, which stays its owner's; segments, prompts and the watchdog are the
    same, only what is decoded when differs."""

    languages = SparkEngine.languages

    def __init__(self, engine: SparkEngine, policy: ChunkPolicy) -> None:
        self.rate = engine.rate
        self._engine = engine
        self._policy = policy

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        parts = await self._engine._loaded()
        speaker = await parts.speakers.of(turn.voice)
        speech = _ChunkedSpeech(self._engine._checkpoint, self._engine._settings, parts, turn, speaker)
        at = 0
        async for segment in segments:
            async with aclosing(speech.chunks(segment, self._policy)) as pieces:
                async for pcm, is_last in pieces:
                    yield AudioFrame(pcm, self.rate, at, segment.index, ends_segment=is_last)
                    at += len(pcm)

    async def warm_up(self) -> None:
        await self._engine.warm_up()

    async def aclose(self) -> None:
        """Nothing of its own."""


class _ChunkedSpeech(_Speech):
    async def chunks(self, segment: Segment, policy: ChunkPolicy) -> AsyncGenerator[tuple[Pcm, bool]]:
        text, codes = spell_out(segment.text, self._turn.voice.language), list[int]()
        chunker = Chunker(policy)
        fader = CrossFader(policy.overlap * self._parts.vocoder.codec.hop)
        async with read_ahead(self._watched(segment.index, text), _AHEAD) as batches:
            async for batch in batches:
                fresh = [code for group in batch for code in group]
                codes += fresh
                for start, stop in chunker.push(len(fresh)):
                    wave = await self._wave(codes[start:stop])
                    yield self._handed_out(to_int16(fader.push(wave, is_last=False))), False
        start, stop = chunker.flush()
        wave = await self._wave(codes[start:stop])
        yield self._handed_out(to_int16(fader.push(wave, is_last=True))), True
        self._continuity.spoke(text, codes)

    async def _wave(self, codes: list[int]) -> np.ndarray:
        """Decoded by itself, as float64."""
        self._turn.note("tokens")
        pcm = await self._parts.vocoder.decode(
            codes, self._speaker.d_vector, 0, len(codes), due_s=self._playing.dry_at_s
        )
        self._turn.note("vocoder")
        return to_float32(pcm).astype(np.float64)
