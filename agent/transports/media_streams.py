"""MediaStream: a telephone call whose audio comes and goes over a carrier's media websocket."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import WSMsgType, web

from agent.ending import Ending
from agent.inbound import Inbound
from agent.line import CallInfo
from agent.media_io import QueueInput
from agent.playout import Playout
from agent.transports.dialect import (
    Complaint,
    Dialect,
    Digit,
    Heard,
    Json,
    Kind,
    Media,
    Played,
    Started,
    Stopped,
)
from agent.transports.far_buffer import BLOCK_S, RATE, FarBuffer
from tts_plugin import g711
from tts_plugin.audio import Pcm
from tts_plugin.errors import BadRequest
from tts_plugin.timing import Clock

START_S = 5.0  # from the connection to the start message
LOST_S = 30.0  # carriers send the caller's silence, too
MAX_MESSAGE_BYTES = 65_536  # 20 ms of mu-law are 220 bytes of base64
MAX_UNSENT = 500  # messages; a carrier that reads none for seconds is gone
MAX_DIGITS = 64  # kept until someone asks for them
CLOSE_S = 3.0

log = logging.getLogger("sparkvoice.phone")


class Carrier(Protocol):
    """What a call's carrier can be asked for beside the stream."""

    async def hang_up(self) -> None:
        """End the call; a failure is logged."""

    async def transfer(self, target: str) -> None:
        """Connect the caller with `target`, or TransferFailed."""


class MediaStream:
    """A MediaLine. Made by `media_stream`, which runs it."""

    def __init__(
        self,
        dialect: Dialect,
        stream: str,
        call: CallInfo,
        carrier: Carrier,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self.audio = QueueInput(RATE)
        self.ended_here = False  # and not by the carrier
        self._dialect = dialect
        self._stream = stream
        self._call = call
        self._carrier = carrier
        self._clock = clock
        self._far = FarBuffer(self._clear, clock=clock)
        self._inbound = Inbound(RATE)
        self._unsent: deque[Json] = deque()
        self._to_send = asyncio.Event()
        self._ending = Ending(self.audio.close)
        self._on_digit: Callable[[str], None] | None = None
        self._digits: deque[str] = deque(maxlen=MAX_DIGITS)
        self._complained = False
        self._seen_s = clock()

    @property
    def call(self) -> CallInfo:
        return self._call

    @property
    def kind(self) -> Kind:
        return self._dialect.kind

    @property
    def playout(self) -> Playout:
        return self._far.playout

    def on_digit(self, callback: Callable[[str], None]) -> None:
        self._on_digit = callback
        while self._digits:
            callback(self._digits.popleft())

    async def transfer(self, target: str) -> None:
        with self._ending.handing_over():
            await self._carrier.transfer(target)

    def hang_up(self, why: str) -> None:
        if not self._ending.over:
            self.ended_here = True
            self._ending.end(why)

    def superseded(self) -> None:
        """The same call has another stream now; this one is over, the call is not."""
        self._ending.end("the call goes on in another stream")

    async def ended(self) -> str:
        return await self._ending.wait()

    def _take(self, text: str) -> None:
        """One message of the carrier; what is wrong with it is logged, once a call."""
        self._seen_s = self._clock()
        try:
            heard = self._dialect.read(parsed(text), self._stream)
        except BadRequest as error:
            self._complain(str(error))
            return
        self._follow(heard)

    def _follow(self, heard: Heard | None) -> None:
        match heard:
            case Media(data, at_ms):
                at = None if at_ms is None else at_ms * RATE // 1000
                self._take_audio(self._inbound.push(g711.decode(data, "mulaw"), self._clock(), at))
            case Played(mark):
                self._far.played(mark)
            case Digit(digit) if self._on_digit is not None:
                self._on_digit(digit)
            case Digit(digit):
                self._digits.append(digit)
            case Stopped():
                self._ending.left("the caller hung up")
            case Complaint(message):
                self._complain(f"the carrier says {message}")
            case Started():
                self._complain("a second start")
            case None:
                pass

    def _take_audio(self, chunks: list[Pcm]) -> None:
        for pcm in chunks:
            self.audio.push(pcm)

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning("an odd message on a %s stream (more are not told): %s", self.kind, what)

    def _clear(self) -> None:
        """Overtakes the audio that has not left yet."""
        self._unsent.clear()
        self._send(self._dialect.send_clear(self._stream))

    def _send(self, message: Json) -> None:
        if len(self._unsent) >= MAX_UNSENT:
            self._ending.left("the carrier does not listen any more")
            return
        self._unsent.append(message)
        self._to_send.set()

    def _tick(self, due_s: float) -> None:
        for block in self._far.tick(due_s):
            payload = base64.b64encode(g711.encode(block.pcm, "mulaw")).decode("ascii")
            self._send(self._dialect.send_media(self._stream, payload))
            if block.mark is not None:
                self._send(self._dialect.send_mark(self._stream, block.mark))
        now_s = self._clock()
        self._take_audio(self._inbound.tick(now_s))
        if now_s - self._seen_s > LOST_S:
            self.hang_up(f"nothing heard from the carrier for {LOST_S:.0f} s")

    async def _play(self) -> None:
        due_s = self._clock()
        while True:
            self._tick(due_s)
            due_s = max(due_s + BLOCK_S, self._clock() - BLOCK_S)  # what a stall has cost is not made up for
            await asyncio.sleep(max(0.0, due_s - self._clock()))

    async def _write(self, ws: web.WebSocketResponse) -> None:
        while True:
            while self._unsent:
                await ws.send_str(json.dumps(self._unsent.popleft(), separators=(",", ":")))
            self._to_send.clear()
            await self._to_send.wait()

    async def _listen(self, ws: web.WebSocketResponse) -> None:
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                self._take(message.data)
            elif message.type is WSMsgType.BINARY:
                self._complain("bytes, where all messages are text")
            else:
                self._complain(f"the connection failed: {message.data}")
                self._ending.left("the connection failed")
                return
        self._ending.left("the caller hung up")


async def started(ws: web.WebSocketResponse, dialect: Dialect) -> Started:
    """The stream's start, which must come soon and before anything but a greeting; BadRequest otherwise."""
    try:
        async with asyncio.timeout(START_S):
            while True:
                message = await ws.receive()
                if message.type is not WSMsgType.TEXT:
                    raise BadRequest("a media stream begins with a start message, as text")
                heard = dialect.read(parsed(message.data), None)
                if isinstance(heard, Started):
                    return heard
                if heard is not None:
                    raise BadRequest("a media stream begins with a start message")
    except TimeoutError as late:
        raise BadRequest(f"no start message within {START_S:.0f} s") from late


@asynccontextmanager
async def media_stream(
    ws: web.WebSocketResponse,
    dialect: Dialect,
    stream: str,
    call: CallInfo,
    carrier: Carrier,
    *,
    clock: Clock = time.monotonic,
) -> AsyncIterator[MediaStream]:
    """The line of a stream that has started; leaving the block ends the call, at the carrier, too."""
    line = MediaStream(dialect, stream, call, carrier, clock=clock)
    tasks = [
        asyncio.create_task(work, name=name)
        for name, work in (
            ("stream player", line._play()),
            ("stream writer", line._write(ws)),
            ("stream listener", line._listen(ws)),
        )
    ]

    def note_end(task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(
            error, (ConnectionError, RuntimeError)
        ):  # what sending into a closing socket raises
            log.error("%s failed", task.get_name(), exc_info=error)
        line._ending.left("the connection was lost")

    for task in tasks:
        task.add_done_callback(note_end)
    try:
        yield line
    finally:
        line.hang_up("the agent hung up")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                if line.ended_here:
                    await carrier.hang_up()
                await ws.close()
        except TimeoutError:
            log.warning("a %s call did not end within %.0f s", line.kind, CLOSE_S)


def parsed(text: str) -> Json:
    """One message: a JSON object, or BadRequest."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("a message is a JSON object") from error
    if not isinstance(message, dict):
        raise BadRequest("a message is a JSON object")
    return message
