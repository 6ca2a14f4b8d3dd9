"""Context: one turn on a connection, from `start` to its last message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tts_plugin import g711
from tts_plugin.audio import AudioFrame, bytes_of
from tts_plugin.engine import Engine, Turn
from tts_plugin.errors import BadRequest, SynthesisFailed, TTSError, told
from tts_plugin.server.ledger import Ledger
from tts_plugin.server.outbox import Outbox
from tts_plugin.spoken import Span
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice
from tts_plugin.wire import (
    Cancelled,
    Done,
    Encoding,
    End,
    Error,
    Flush,
    SegmentSpan,
    Start,
    Started,
    Text,
    pack_audio,
)

log = logging.getLogger(__name__)

Cast = Callable[[str | None], Awaitable[tuple[Voice, Engine]]]


class Context:
    """Owns the Utterance and the lane of one turn; `run` is its task.

    on_over: called as its last message goes out; from then on the context is no more. cast: finds the
    voice (None: the default) and its engine. ledger: is told what it came to. lead_s: of a start that names
    none.
    """

    def __init__(
        self,
        start: Start,
        outbox: Outbox,
        *,
        on_over: Callable[[], None],
        cast: Cast,
        ledger: Ledger,
        max_text_chars: int,
        lead_s: float,
    ) -> None:
        self._start = start
        self._outbox = outbox
        self._on_over = on_over
        self._cast = cast
        self._ledger = ledger
        self._max_text_chars = max_text_chars
        self._lead_s = start.lead_s if "lead_s" in start.model_fields_set else lead_s
        self._lane = outbox.lane(on_over)
        self._utterance: Utterance | None = None
        self._early: list[Text | Flush | End] = []  # came before the voice's engine was there
        self._chars = 0
        self._ended = False
        self._scope: asyncio.Timeout | None = None  # leaving it is the cancel
        self._verdict: Cancelled | Error | None = None  # what ends the context instead of `done`
        self._voice: Voice | None = None

    def feed(self, message: Text | Flush | End) -> None:
        """Text, a flush or the end of the text; text that may not come fails the context."""
        if self._verdict is not None:
            return
        if isinstance(message, Text):
            # an empty delta counts too, or a flood of them would wait uncounted
            self._chars += max(1, len(message.text))
            if self._chars > self._max_text_chars:
                self.fail(BadRequest(f"a turn has at most {self._max_text_chars} characters; split the text"))
                return
            if self._ended:
                self.fail(BadRequest("text after end; start a new context for it"))
                return
        self._ended = self._ended or isinstance(message, End)
        if self._utterance is None:
            self._early.append(message)
        else:
            _apply(message, self._utterance)

    def cancel(self) -> None:
        """Silence now: what waits is dropped at once, `cancelled` follows when the engine is free."""
        orphan_s = self._utterance.orphan_s if self._utterance is not None else 0.0
        self._stop(Cancelled(context=self._start.context, orphan_ms=round(orphan_s * 1000, 1)))

    def fail(self, error: TTSError) -> None:
        """The same, ending in `error`."""
        self._stop(self._error(error))

    async def run(self) -> None:
        """Speak the turn and end it with exactly one of done, cancelled and error."""
        last: Done | Cancelled | Error | None = None
        try:
            async with asyncio.timeout(None if self._verdict is None else 0) as self._scope:
                last = await self._speak()
                self._lane.finish(last)
                await self._lane.flushed()
        except TimeoutError:
            last = self._verdict
            assert last is not None, "only _stop moves the deadline"
            # a lane of its own: the old one is closed, so nothing late can follow
            self._outbox.lane(self._on_over).finish(last)
        finally:
            self._record(last)

    def _stop(self, verdict: Cancelled | Error) -> None:
        if self._verdict is not None:
            return
        self._verdict = verdict
        self._lane.close()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def _speak(self) -> Done | Error:
        try:
            return await self._spoken()
        except SynthesisFailed as error:
            log.error("context %d", self._start.context, exc_info=error)
            return self._error(error)
        except TTSError as error:
            return self._error(error)
        except Exception as error:  # the call's outermost frame
            log.exception("context %d", self._start.context)
            return self._error(SynthesisFailed(f"the server failed: {type(error).__name__}"))

    async def _spoken(self) -> Done:
        start = self._start
        voice, engine = await self._cast(start.voice)
        self._voice = voice
        turn = Turn(voice, seed=start.seed, speed=start.speed, latency=start.latency)
        async with Utterance(engine, turn, rate=start.rate, lead_s=self._lead_s) as utterance:
            await self._lane.put(
                Started(
                    context=start.context,
                    voice=voice.id,
                    engine=voice.engine,
                    language=voice.language,
                    rate=utterance.rate,
                    encoding=start.encoding,
                ).model_dump_json()
            )
            self._utterance = utterance
            for message in self._early:
                _apply(message, utterance)
            self._early.clear()
            news = _SpanNews(start.context)
            async for frame in utterance:
                for span in news.of(utterance.text.spans, frame.stop):
                    await self._lane.put(span.model_dump_json())
                await self._lane.put(pack_audio(start.context, frame.start, _encoded(frame, start.encoding)))
            for span in news.of(utterance.text.spans):  # an end that came without a sample
                await self._lane.put(span.model_dump_json())
        return Done(context=start.context, timeline=utterance.timeline.report(), foreign=utterance.foreign)

    def _error(self, error: TTSError) -> Error:
        return error_message(error, self._start.context)

    def _record(self, last: Done | Cancelled | Error | None) -> None:
        facts = {"context": self._start.context, "rate": self._start.rate, "encoding": self._start.encoding}
        utterance, orphan_s = self._utterance, 0.0
        if isinstance(last, Cancelled):
            orphan_s = last.orphan_ms / 1000
        elif last is None and utterance is not None:
            orphan_s = utterance.orphan_s
        self._ledger.close(
            "disconnected" if last is None else last.type,
            self._voice,
            utterance,
            {**facts, "chars": self._chars},
            code=last.code if isinstance(last, Error) else None,
            orphan_s=orphan_s,
        )


class _SpanNews:
    """What a client does not know yet of the spans of an utterance."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._told: Span | None = None  # the last one, complete once its end was told
        self._next = 0  # index of the first span not told completely

    def of(self, spans: Sequence[Span], sample: int | None = None) -> list[SegmentSpan]:
        """What to tell before the audio up to `sample` (None: all) is sent; no segment before its turn."""
        news = []
        for span in spans[self._next :]:
            if sample is not None and span.sample_from >= sample:
                break
            if span != self._told:
                news.append(
                    SegmentSpan(
                        context=self._context,
                        text_from=span.text_from,
                        text_to=span.text_to,
                        sample_from=span.sample_from,
                        sample_to=span.sample_to,
                    )
                )
                self._told = span
            if span.sample_to is not None:
                self._next += 1
        return news


def error_message(error: TTSError, context: int | None = None) -> Error:
    """The error as the wire tells it."""
    return Error.model_validate({"context": context, **told(error)})


def _encoded(frame: AudioFrame, encoding: Encoding) -> bytes:
    return bytes_of(frame.pcm) if encoding == "pcm_s16le" else g711.encode(frame.pcm, encoding)


def _apply(message: Text | Flush | End, utterance: Utterance) -> None:
    match message:
        case Text():
            utterance.push(message.text)
        case Flush():
            utterance.flush()
        case End():
            utterance.end()
