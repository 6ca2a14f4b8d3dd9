"""Speakers: voices as the engine needs them, each made ready once, on first use."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tts_plugin.config import cache_folder
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.bicodec import BiCodec
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.clip import Clip, digest_of, examine_clip
from tts_plugin.engines.spark.clip_features import clip_features
from tts_plugin.engines.spark.enroll import bounds_of, enrolled
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.token_file import Origin, TokenFile, Tokens
from tts_plugin.engines.spark.voice import SparkVoice, Style, inside
from tts_plugin.errors import BadRequest, ConfigError
from tts_plugin.strict_yaml import shown
from tts_plugin.text.numbers import spell_out
from tts_plugin.voices import Voice
from tts_plugin.worker import SerialWorker

# what a new speaker says while the model makes it up; nobody hears it
_GREETINGS = {"zh": "你好，很高兴认识你，今天过得怎么样？"}
_GREETING = "Hello, it is nice to meet you. How are you today?"


@dataclass(frozen=True, slots=True, eq=False)
class Speaker:
    """global_tokens: for the prompt. d_vector: float32 [D], for the decoder. said, semantic: what is spoken
    in the clip, as it is spoken, and its codes; both empty without a transcript. sampling: the voice's
    own."""

    global_tokens: tuple[int, ...]
    d_vector: torch.Tensor
    said: str = ""
    semantic: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)


# a voice and the state of its clip's file: what of both changes, changes this
_Made = tuple[SparkVoice, tuple[int, ...]]


class Speakers:
    """The speakers of one checkpoint.

    worker: the codec's. ref_s: how much of a clip makes a speaker, seconds; None as in training. cache:
    where tokens are kept that cannot be kept beside their voice; None for the user's own cache folder.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        codec: BiCodec,
        lm: SemanticLM,
        worker: SerialWorker,
        ref_s: float | None = None,
        *,
        cache: Path | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._codec = codec
        self._lm = lm
        self._worker = worker
        self._ref_s = checkpoint.sizes.ref_s if ref_s is None else ref_s
        self._cache = cache_folder() if cache is None else cache
        self._bounds = bounds_of(codec)
        self._ready: dict[str, tuple[_Made, Speaker]] = {}  # by id: an edited voice replaces its former self
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, voice: Voice) -> Speaker:
        """The speaker of a voice.

        Known at once after the first use, until the voice or its clip's file changes; two first uses at
        once are one enrolment. ConfigError says in words why a voice cannot be used; errors of the language
        model, which makes up `create` voices, are its own.
        """
        if not isinstance(voice, SparkVoice):
            raise ConfigError(
                f'voice "{voice.id}" has no tokens, clip or style: it is no voice of the engine "spark"'
            )
        try:
            made = (voice, _state(voice))
            async with self._locks[voice.id]:
                known = self._ready.get(voice.id)
                if known is not None and known[0] == made:
                    return known[1]
                tokens = await self._tokens(voice)
                speaker = await self._worker.run(self._speaker, voice, tokens)
                self._ready[voice.id] = (made, speaker)
                return speaker
        except ConfigError as error:
            raise ConfigError(f'voice "{voice.id}": {error}') from error

    def anybody(self) -> torch.Tensor:
        """A d_vector, float32 [D], for a sound that nobody hears."""
        return torch.zeros(self._codec.sizes.speaker_encoder.out_dim)

    async def _tokens(self, voice: SparkVoice) -> Tokens:
        if voice.global_tokens:
            return Tokens(voice.global_tokens, voice.semantic_tokens)
        kept = TokenFile(voice.id, voice.folder, self._cache)
        async with _thread() as thread:
            if voice.clip is not None:
                return await self._cloned(voice, voice.clip, kept, thread)
            if voice.create is not None:
                return await self._created(voice, voice.create, kept, thread)
        raise ConfigError('it has none of "global_tokens", "clip" and "create"')

    async def _cloned(self, voice: SparkVoice, path: Path, kept: TokenFile, thread: SerialWorker) -> Tokens:
        transcribed = bool(voice.transcript.strip())
        digest = await thread.run(digest_of, path)
        known = await thread.run(kept.read, self._origin(digest, transcribed), self._bounds)
        if known is not None:
            return known
        clip = await thread.run(
            examine_clip, path, rate=self._codec.rate, used_s=self._ref_s, transcribed=transcribed
        )
        clip.require()
        features = await thread.run(self._features, clip) if transcribed else None
        tokens = await self._worker.run(enrolled, clip.wave, self._codec, self._ref_s, features)
        await thread.run(kept.write, self._origin(clip.digest, transcribed), tokens)
        return tokens

    async def _created(
        self, voice: SparkVoice, style: Style, kept: TokenFile, thread: SerialWorker
    ) -> Tokens:
        origin = Origin(f"create {style.gender} {style.pitch} {style.speed}", self._checkpoint.revision)
        known = await thread.run(kept.read, origin, self._bounds)
        if known is not None:
            return known
        text = _GREETINGS.get(voice.language.partition("-")[0].lower(), _GREETING)
        prompt = self._checkpoint.prompts.create(text, style.gender, style.pitch, style.speed)
        seed = int.from_bytes(hashlib.sha256(voice.id.encode()).digest()[:4], "big")
        tokens = Tokens(tuple(await self._lm.create_globals(prompt, Sampling(), seed)))
        await thread.run(kept.write, origin, tokens)
        return tokens

    def _origin(self, digest: str, transcribed: bool) -> Origin:
        return Origin(digest, self._checkpoint.revision, self._ref_s, transcribed)

    # on a worker from here

    def _features(self, clip: Clip) -> torch.Tensor:
        return clip_features(clip.wave, self._checkpoint, self._codec)

    def _speaker(self, voice: SparkVoice, tokens: Tokens) -> Speaker:
        if not self._bounds.admit(tokens, transcribed=bool(tokens.semantic_tokens)):
            b = self._bounds
            raise ConfigError(
                f"its tokens are of another codec: this one has {b.globals_} global tokens a voice, of "
                f"{b.global_codes} codes, and {b.semantic_codes} semantic codes"
            )
        try:
            d_vector = self._codec.speaker(torch.tensor([tokens.global_tokens]))[0]
        except BadRequest as error:
            raise ConfigError(str(error)) from error
        semantic = tokens.semantic_tokens
        said = spell_out(voice.transcript.strip(), voice.language) if semantic else ""
        return Speaker(tokens.global_tokens, d_vector, said, semantic, voice.sampling)


def _state(voice: SparkVoice) -> tuple[int, ...]:
    """What changes when the clip's file does."""
    if voice.clip is None:
        return ()
    inside(voice.folder, voice.clip)  # again: a link may have been changed since the YAML was read
    try:
        found = voice.clip.stat()
    except OSError as error:
        raise ConfigError(f"{shown(voice.clip)} cannot be read: {error.strerror or error}") from error
    return (found.st_mtime_ns, found.st_size, found.st_ino)


@asynccontextmanager
async def _thread() -> AsyncIterator[SerialWorker]:
    """For the files and for wav2vec2: live calls' windows wait for the codec's worker."""
    worker = SerialWorker("spark-enrol")
    try:
        yield worker
    finally:
        worker.close()
