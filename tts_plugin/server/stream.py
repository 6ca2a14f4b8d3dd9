"""The websocket /v1/stream: one connection, many contexts, all of them gone when it is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from tts_plugin.config import Settings
from tts_plugin.engine import Engine
from tts_plugin.errors import BadRequest, Overloaded, TTSError
from tts_plugin.server.auth import Refusal
from tts_plugin.server.context import Cast, Context, error_message
from tts_plugin.server.engines import Engines
from tts_plugin.server.ledger import Ledger
from tts_plugin.server.outbox import Outbox, Payload
from tts_plugin.voices import Voice, VoiceRegistry
from tts_plugin.wire import Cancel, ContextId, End, Flush, Start, Text, parse_client
from tts_plugin.worker import SerialWorker

log = logging.getLogger(__name__)

STALL_S = 20.0
_POLICY_VIOLATION = 1008  # websocket close codes
_REMEMBERED = 1024  # contexts that are over: what still comes for them crossed their last message
_CLOSE_S = 1.0  # for the last words to a client that is sent away


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may cost, beside the limits in the settings.

    stall_s: without taking a byte, then it is disconnected. body_s: for the whole body of a request, however
    it trickles. garbage: unreadable messages in a row. complaints: errors that wait because the client does
    not read them.
    """

    stall_s: float = STALL_S
    body_s: float = 20.0
    garbage: int = 20
    complaints: int = 64


class Streams:
    """Serves every connection of the server, at most `settings.server.max_connections` at once."""

    def __init__(
        self,
        settings: Settings,
        registry: VoiceRegistry,
        engines: Engines,
        worker: SerialWorker,
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._engines = engines
        self._worker = worker
        self._ledger = ledger
        self._limits = limits
        self._open = 0

    @property
    def connections(self) -> int:
        """Open now."""
        return self._open

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end."""
        most = self._settings.server.max_connections
        if self._open >= most:
            full = Refusal(503, Overloaded.code, f"all {most} connections are taken; try again later", True)
            await socket.send_denial_response(full.response())
            return
        self._open += 1
        try:
            try:
                await socket.accept()
            except WebSocketDisconnect:  # it left during the handshake
                return
            await Connection(socket, self._settings, self.cast, self._ledger, self._limits).run()
        finally:
            self._open -= 1

    async def cast(self, voice_id: str | None) -> tuple[Voice, Engine]:
        """The voice, None for the default one, and its engine, warm."""
        voice = await self._worker.run(self._voice, voice_id)  # it may read files
        return voice, await self._engines.get(voice.engine)

    def _voice(self, voice_id: str | None) -> Voice:
        return self._registry.default if voice_id is None else self._registry.get(voice_id)


class Connection:
    """One client: a reader, a writer and a task a context, in a group that ends with any of the first two."""

    def __init__(
        self, socket: WebSocket, settings: Settings, cast: Cast, ledger: Ledger, limits: Limits
    ) -> None:
        self._socket = socket
        self._settings = settings
        self._cast = cast
        self._ledger = ledger
        self._limits = limits
        self._outbox = Outbox(self._send, limits.stall_s)
        self._complaints = self._outbox.lane(lambda: None)
        self._live: dict[int, Context] = {}
        self._past: deque[int] = deque(maxlen=_REMEMBERED)
        self._garbage = 0  # messages in a row that could not be read

    async def run(self) -> None:
        """Serve until the client is gone, stalls or talks nonsense; whatever speaks then stops."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(), name="stream writer")
                await self._read(tasks)
                raise _Over  # takes the writer and the contexts with it
        except* _Over:
            pass
        except* _Nuisance as nuisance:
            reason = str(nuisance.exceptions[0])
            log.warning("a client is sent away: %s", reason)
            with suppress(TimeoutError, WebSocketDisconnect):
                async with asyncio.timeout(_CLOSE_S):
                    await self._socket.close(_POLICY_VIOLATION, reason)

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            self._take(event.get("text"), tasks)
            if self._garbage >= self._limits.garbage:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._outbox.flushed()
                raise _Nuisance(f"{self._garbage} messages in a row could not be read")
            await asyncio.sleep(0)  # a flood of messages must not hold the event loop

    async def _write(self) -> None:
        try:
            await self._outbox.write()
        except TimeoutError:
            raise _Nuisance(f"nothing was read for {self._limits.stall_s} s") from None
        except WebSocketDisconnect:
            pass  # the reader hears of it too, and ends everything

    async def _send(self, payload: Payload) -> None:
        if isinstance(payload, str):
            await self._socket.send_text(payload)
        else:
            await self._socket.send_bytes(payload)

    def _take(self, data: str | None, tasks: asyncio.TaskGroup) -> None:
        try:
            if data is None:
                raise BadRequest("binary messages are the server's audio; send JSON as text")
            message = parse_client(data)
        except BadRequest as error:
            self._refuse(data, error)
            return
        self._garbage = 0
        match message:
            case Start():
                self._open(message, tasks)
            case Cancel():
                # not open: it crossed the context's last message
                if message.context in self._live:
                    self._live[message.context].cancel()
            case Text() | Flush() | End():
                if message.context in self._live:
                    self._live[message.context].feed(message)
                elif message.context not in self._past:  # else it crossed the last message, too
                    unknown = BadRequest(f"context {message.context} is not open; send start first")
                    self._complain(unknown, message.context)

    def _open(self, start: Start, tasks: asyncio.TaskGroup) -> None:
        number, most = start.context, self._settings.server.max_contexts
        if number in self._live:
            self._live[number].fail(BadRequest(f"context {number} is open already; use a new number"))
            return
        if len(self._live) >= most:
            full = Overloaded(f"all {most} contexts of this connection are open; end one, or connect again")
            self._complain(full, number)
            return
        context = Context(
            start,
            self._outbox,
            on_over=partial(self._over, number),
            cast=self._cast,
            ledger=self._ledger,
            max_text_chars=self._settings.engine.max_text_chars,
            lead_s=self._settings.engine.lead_s,
        )
        self._live[number] = context
        tasks.create_task(context.run(), name=f"context {number}")

    def _over(self, number: int) -> None:
        del self._live[number]
        self._past.append(number)

    def _refuse(self, data: str | None, error: BadRequest) -> None:
        """Answer what cannot be read: to its context if at least that can be."""
        addressed = _Addressed.of(data)
        if addressed is None:
            self._garbage += 1
            self._complain(error)
        elif addressed.context in self._live:
            self._live[addressed.context].fail(error)
        elif addressed.type == "start":
            self._complain(error, addressed.context)
        else:
            self._garbage += 1
            self._complain(error)

    def _complain(self, error: TTSError, context: int | None = None) -> None:
        if self._complaints.waiting >= self._limits.complaints:
            raise _Nuisance(f"{self._limits.complaints} errors wait unread")
        if context is not None:
            self._past.append(context)
        self._complaints.add(error_message(error, context).model_dump_json())


class _Over(Exception):
    """The client has left."""


class _Nuisance(Exception):
    """The client is sent away, for the reason given."""


class _Addressed(BaseModel):
    """What is needed of a bad message to tell whose it is."""

    type: str | None = None
    context: ContextId

    @classmethod
    def of(cls, data: str | None) -> _Addressed | None:
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None
