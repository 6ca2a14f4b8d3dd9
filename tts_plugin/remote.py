"""RemoteUtterance: the interface of Utterance, spoken by an engine server; Remote is the way to it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from tts_plugin import wire
from tts_plugin.audio import AudioFrame, samples_of
from tts_plugin.errors import BadRequest, EngineUnavailable, TTSError
from tts_plugin.limits import Latency
from tts_plugin.link import Address, Inbox, Link, open_socket
from tts_plugin.spoken import Span, SpokenText, without_half_pairs
from tts_plugin.timing import Clock, Timeline

_RETRY_S = 0.2  # between the two tries to connect

Locate = Callable[[], Awaitable[Address]]
ServersOwn = Literal["server's own"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn asks of the server; None leaves the choice to it. rate: Hz of the frames.
    lead_s: how far ahead of its listener it is made; None = as fast as it goes."""

    rate: int
    voice: str | None = None
    seed: int | None = None
    speed: float | None = None
    latency: Latency = "balanced"
    lead_s: float | ServersOwn | None = "server's own"


class Remote:
    """One connection to an engine server, shared by all utterances, opened on first use and again after a
    loss. `locate` says where the server is now, and waits for it if it is being started.

    It belongs to the event loop that uses it, and to the next one only when that has ended.
    """

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._link: Link | None = None
        self._contexts = itertools.count(1)

    def utterance(self, request: Request, *, clock: Clock = time.monotonic) -> RemoteUtterance:
        """A turn, to be used as `async with`, like Utterance."""
        return RemoteUtterance(self, request, next(self._contexts), clock)

    async def connect(self) -> None:
        """Open the connection now, so that the first turn need not."""
        await self._connected()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.alive

    async def aclose(self) -> None:
        """Close the connection; live utterances end with EngineUnavailable. Twice is fine."""
        if self._link is None:
            return
        self._enter_loop()
        link, self._link = self._link, None
        if link is not None:  # else its event loop has ended, and it with that
            await link.aclose()

    def _enter_loop(self) -> None:
        """Belong to the running loop; BadRequest while this is in use in another one."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        used = self._link is not None or self._opening.locked()
        if used and self._loop is not None and not self._loop.is_closed():
            raise BadRequest("this TTS is in use in another event loop; make one for each loop")
        self._loop, self._opening, self._link = loop, asyncio.Lock(), None

    async def _connected(self) -> Link:
        self._enter_loop()
        async with self._opening:
            if self._link is None or not self._link.alive:
                await self.aclose()
                try:
                    self._link = await self._open()
                except EngineUnavailable as down:
                    if not down.retryable:
                        raise
                    # it may have died just now: by then its supervisor knows, and `locate` waits
                    await asyncio.sleep(_RETRY_S)
                    self._link = await self._open()
            return self._link

    async def _open(self) -> Link:
        address = await self._locate()
        return Link(await open_socket(address), address.url)


class RemoteUtterance:
    """One turn spoken by an engine server; see Utterance. Leaving the block cancels it there."""

    def __init__(self, remote: Remote, request: Request, context: int, clock: Clock) -> None:
        self.rate = request.rate
        self.text = SpokenText(self.rate)
        self.timeline = Timeline(clock)
        self.foreign = ""
        self.server_timeline: dict[str, Any] = {}  # the server's own, once the turn is done
        self.voice = request.voice
        self._remote = remote
        self._request = request
        self._context = context
        self._link: Link | None = None
        self._ended = False
        self._over = False
        self._inbox: Inbox = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._link = await self._remote._connected()
        self._link.open(self._context, self._inbox)
        self._link.send(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel on the server without waiting for it: what still comes has nowhere to go."""
        if not self._over:
            self._send(wire.Cancel(context=self._context))
        if self._link is not None:
            self._link.close(self._context)
        self._over = True
        self.timeline.mark("ended")

    def push(self, text: str) -> None:
        text = without_half_pairs(text)
        if text:
            self.timeline.mark("first_text")
            self.text.add_text(text)
            self._send(wire.Text(context=self._context, text=text))

    def flush(self) -> None:
        self._send(wire.Flush(context=self._context))

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._send(wire.End(context=self._context))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioFrame:
        while not self._over:
            match await self._inbox.get():
                case bytes() as data:
                    _, start, payload = wire.unpack_audio(data)
                    self.timeline.mark("first_frame")
                    frame = AudioFrame(samples_of(payload), self.rate, start, len(self.text.spans) - 1)
                    self.timeline.audio_s = frame.stop / self.rate
                    return frame
                case wire.SegmentSpan() as span:
                    self.text.add_span(Span(span.text_from, span.text_to, span.sample_from, span.sample_to))
                    self.timeline.segments = len(self.text.spans)
                case wire.Started() as started:
                    self.voice = started.voice
                case wire.Done() as done:
                    self._over = True
                    self.server_timeline, self.foreign = done.timeline, done.foreign
                    self.timeline.mark("ended")
                case TTSError() as error:
                    self._over = True
                    raise error
        raise StopAsyncIteration

    def spoken(self, heard_s: float) -> str:
        return self.text.heard(heard_s)

    async def cancel(self) -> float:
        """Stop and wait until the engine is free; returns the milliseconds of audio made for nothing."""
        if self._over:
            return 0.0
        self._send(wire.Cancel(context=self._context))
        while not self._over:
            match await self._inbox.get():
                case wire.Cancelled() as cancelled:
                    self._over = True
                    return cancelled.orphan_ms
                case wire.Done() | TTSError():
                    self._over = True
        return 0.0

    def _start(self) -> str:
        ask = self._request
        start = wire.Start(
            context=self._context,
            voice=ask.voice,
            rate=ask.rate,
            seed=ask.seed,
            speed=ask.speed,
            latency=ask.latency,
        )
        if ask.lead_s == "server's own":
            return start.model_dump_json(exclude={"lead_s"})
        return start.model_copy(update={"lead_s": ask.lead_s}).model_dump_json()

    def _send(self, message: wire.Message) -> None:
        if self._link is not None and not self._over:
            self._link.send(message.model_dump_json())
