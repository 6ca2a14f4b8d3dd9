"""The LiveKit Agents plugin: `TTS` for an AgentSession, and its streams."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Literal

from livekit.agents import (
    APIConnectOptions,
    APIError,
    APITimeoutError,
    Plugin,
    tts,
    utils,
)
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, NotGivenOr

from tts_plugin import __version__, errors
from tts_plugin.adapters.backoff import Backoff
from tts_plugin.adapters.livekit_errors import api_error
from tts_plugin.adapters.livekit_turn import Attempt, opening_of
from tts_plugin.adapters.source import Options, Speech, open_source
from tts_plugin.audio import bytes_of, silence
from tts_plugin.engine import Engine
from tts_plugin.limits import LEAD_S, RATES, Latency
from tts_plugin.remote import Locate
from tts_plugin.voices import VoiceRegistry

logger = logging.getLogger("livekit.plugins.sparkvoice")

PROVIDER = "sparkvoice"
_FRAME_MS = 20
# LiveKit takes a turn without audio for a failure and tries it three times more
_UNSPEAKABLE_S = 0.1
# An engine that does not let go must not hold up the reply that the caller waits for: the next turn starts
# when this one has been left (measured: cleanup of 2 s delays the next reply by 2 s).
_LEAVE_S = 0.05
_CLOSE_S = 1.0


class TTS(tts.TTS[Literal["metrics_collected", "error"]]):
    """Speaks for an AgentSession, streaming, and stops as soon as a stream is closed.

    voice: id of a voice, None = the default one. url, token: a running engine server; without them those of
    SPARKVOICE_URL and SPARKVOICE_TOKEN; without these a server that is started as a child of this process and
    shared by all its TTS objects. engine: speak in this process instead, for scripts and tests; it stays
    yours to close, and voices= may say which voices there are. rate: Hz, for good. seed: makes a turn
    repeatable. speed: 0.5 to 2.0, which engines follow roughly, None = the voice's own. locate: instead of
    url and token, says where the server is whenever it is connected to, for one that may move.

    `cancelled_streams` counts turns that were cut off; LiveKit emits no metrics for those.
    Raises ConfigError or BadRequest for arguments that cannot work, NotInstalled if a child could not.
    """

    def __init__(
        self,
        *,
        voice: str | None = None,
        url: str | None = None,
        token: str | None = None,
        engine: Engine | None = None,
        rate: int = 24000,
        seed: int | None = None,
        speed: float | None = None,
        latency: Latency = "balanced",
        voices: VoiceRegistry | None = None,
        locate: Locate | None = None,
    ) -> None:
        if not RATES[0] <= rate <= RATES[1]:
            raise errors.BadRequest(f"rate {rate} Hz is not between {RATES[0]} and {RATES[1]}")
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=rate,
            num_channels=1,
        )
        self.cancelled_streams = 0
        self._options = Options(voice, seed, speed, latency)
        self._source = open_source(
            rate=rate, url=url, token=token, engine=engine, voices=voices, locate=locate
        )
        self._streams: weakref.WeakSet[SynthesizeStream | ChunkedStream] = weakref.WeakSet()
        self._warming: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> str:
        """The id of the voice."""
        return self._options.voice or "default"

    @property
    def provider(self) -> str:
        return PROVIDER

    def update_options(
        self,
        *,
        voice: NotGivenOr[str | None] = NOT_GIVEN,
        seed: NotGivenOr[int | None] = NOT_GIVEN,
        speed: NotGivenOr[float | None] = NOT_GIVEN,
        latency: NotGivenOr[Latency] = NOT_GIVEN,
    ) -> None:
        """Change how the streams opened from now on speak; running ones go on as they are."""
        now = self._options
        self._options = Options(
            voice=voice if utils.is_given(voice) else now.voice,
            seed=seed if utils.is_given(seed) else now.seed,
            speed=speed if utils.is_given(speed) else now.speed,
            latency=latency if utils.is_given(latency) else now.latency,
        )
        if self._options.voice != now.voice and self._source.connected:
            self.prewarm()  # its engine may have to be loaded, which can take seconds

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        """Text in as it comes, audio out as soon as a clause of it can be spoken."""
        stream = SynthesizeStream(self, self._options, conn_options)
        self._streams.add(stream)
        return stream

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> ChunkedStream:
        """The whole text at once, as fast as the engine goes; the samples of `stream()` for the same seed."""
        stream = ChunkedStream(self, text, self._options, conn_options)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Start the child, the connection and the voice's engine; returns at once, a failure is only logged.

        Without a running event loop it does nothing, and the first turn does it.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(self._warm_up(), name="sparkvoice-prewarm")

    async def aclose(self) -> None:
        """Close the live streams and the connection. Twice is fine."""
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        if self._warming is not None:
            await utils.aio.cancel_and_wait(self._warming)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_CLOSE_S)
        await self._source.aclose()

    async def _warm_up(self) -> None:
        try:
            await self._source.warm_up(self._options.voice)
        except Exception as error:  # the task's outermost frame: nobody awaits it
            logger.warning("prewarm failed, the first turn tries again: %r", error)

    async def _speak(self, turn: Attempt, texts: AsyncGenerator[str | None]) -> bool:
        """Speak the texts (None = flush) into the attempt's emitter; False if there was nothing to say."""
        async with aclosing(texts):
            opening = await opening_of(texts)
            if not opening:
                return False  # an engine that is down is no error for a turn that says nothing
            speech = self._source.speech(turn.options, turn.lead_s)
            turn.connection_reused, asked_s = self._source.connected, time.perf_counter()
            async with self._held(speech, turn.timeout_s):
                turn.acquire_s = time.perf_counter() - asked_s
                try:
                    return await turn.run(speech, opening, texts)
                except asyncio.CancelledError:
                    self.cancelled_streams += 1
                    raise

    @asynccontextmanager
    async def _held(self, speech: Speech, timeout_s: float) -> AsyncIterator[None]:
        """Enter, and leave in `_LEAVE_S` at most; an engine that takes longer finishes leaving by itself."""
        try:
            async with asyncio.timeout(timeout_s):
                await speech.__aenter__()
        except TimeoutError:
            raise APITimeoutError(f"the engine server did not answer within {timeout_s} s") from None
        try:
            yield
        finally:
            leaving = asyncio.create_task(speech.__aexit__(None, None, None), name="sparkvoice-leave")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._left)
            await asyncio.wait([leaving], timeout=_LEAVE_S)

    def _left(self, leaving: asyncio.Task[None]) -> None:
        self._leaving.discard(leaving)
        if not leaving.cancelled() and (error := leaving.exception()):
            logger.error("an utterance could not be left", exc_info=error)


class SynthesizeStream(tts.SynthesizeStream):
    """One turn, made by `TTS.stream()`."""

    def __init__(self, owner: TTS, options: Options, conn_options: APIConnectOptions) -> None:
        self._owner = owner
        self._options = options
        self._backoff = Backoff(conn_options.timeout)
        super().__init__(tts=owner, conn_options=conn_options)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        _initialize(output_emitter, self._owner.sample_rate, stream=True)
        # before any input, and once: LiveKit counts the segments of a stream
        output_emitter.start_segment(segment_id=utils.shortuuid("seg_"))
        # a later attempt counts from the text of the first
        anchor = _no_anchor if self._started_time else self._anchor
        turn = Attempt(output_emitter, self._options, self._conn_options.timeout, LEAD_S, anchor)
        # judged by what was pushed, of which LiveKit itself drops what follows a flush
        await _run(self._owner, turn, self._backoff, self._texts(), lambda: self._pushed_text)
        self._acquire_time, self._connection_reused = turn.acquire_s, turn.connection_reused

    async def _texts(self) -> AsyncGenerator[str | None]:
        async for item in self._input_ch:
            yield item if isinstance(item, str) else None

    def _anchor(self) -> None:
        self._started_time = 0.0  # or the mark would keep its first time
        self._mark_started()


class ChunkedStream(tts.ChunkedStream):
    """One text, made by `TTS.synthesize()`."""

    def __init__(self, owner: TTS, text: str, options: Options, conn_options: APIConnectOptions) -> None:
        self._owner = owner
        self._options = options
        self._backoff = Backoff(conn_options.timeout)
        super().__init__(tts=owner, input_text=text, conn_options=conn_options)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        _initialize(output_emitter, self._owner.sample_rate, stream=False)
        turn = Attempt(output_emitter, self._options, self._conn_options.timeout, None, _no_anchor)
        await _run(self._owner, turn, self._backoff, self._texts(), lambda: self._input_text)
        self._acquire_time, self._connection_reused = turn.acquire_s, turn.connection_reused

    async def _texts(self) -> AsyncGenerator[str | None]:
        yield self._input_text


async def _run(
    owner: TTS,
    turn: Attempt,
    backoff: Backoff,
    texts: AsyncGenerator[str | None],
    pushed: Callable[[], str],
) -> None:
    """Speak, or be silent for a moment where nothing can be spoken; every exception is an APIError."""
    await backoff.wait()
    try:
        spoke = await owner._speak(turn, texts)
    except APIError:
        raise
    except errors.TTSError as error:
        backoff.note(error)
        raise api_error(error) from error
    except Exception as error:  # LiveKit neither reports nor survives any other kind
        logger.exception("speaking failed")
        raise APIError(f"{type(error).__name__}: {error}", retryable=False) from error
    if not spoke and pushed().strip():
        turn.emitter.push(bytes_of(silence(_UNSPEAKABLE_S, owner.sample_rate)))


def _initialize(emitter: tts.AudioEmitter, rate: int, *, stream: bool) -> None:
    emitter.initialize(
        request_id=utils.shortuuid("tts_"),
        sample_rate=rate,
        num_channels=1,
        mime_type="audio/pcm",
        frame_size_ms=_FRAME_MS,
        stream=stream,
    )


def _no_anchor() -> None:
    """LiveKit counts from the stream's making, or from an earlier attempt."""


class SparkvoicePlugin(Plugin):
    """What `livekit.agents` lists; there is nothing to download."""

    def __init__(self) -> None:
        super().__init__("sparkvoice", __version__, "tts_plugin", logger)


# LiveKit registers on the main thread only; a job that runs in a thread works without being listed
if threading.current_thread() is threading.main_thread():
    Plugin.register_plugin(SparkvoicePlugin())
