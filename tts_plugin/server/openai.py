"""OpenAI's routes: /v1/audio/speech and /v1/models, so that its clients speak with this server's voices."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tts_plugin.config import Settings
from tts_plugin.engine import Engine, Turn
from tts_plugin.errors import Overloaded, SynthesisFailed, TTSError
from tts_plugin.server.encoders import Encoder, encoder
from tts_plugin.server.engines import Engines
from tts_plugin.server.ledger import Ledger, Outcome
from tts_plugin.server.openai_errors import BadParameter, TooLarge, TooSlow, answer, body_of
from tts_plugin.server.openai_request import (
    ALIASES,
    SpeechRequest,
    cast,
    model_names,
    no_model,
    parse,
)
from tts_plugin.server.stream import Limits
from tts_plugin.utterance import Utterance
from tts_plugin.voices import VoiceRegistry
from tts_plugin.worker import SerialWorker

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

RATE = 24_000  # Hz of every format, as OpenAI documents for pcm
_SSE = "text/event-stream"
_TOKENS_PER_S = 50  # of audio, as usage counts it: the semantic tokens of Spark
_BYTES_PER_CHAR = 12  # of text as JSON at most: an escaped pair of surrogates
_OTHER_BYTES = 65_536  # of all other parameters
_PATIENCE = 4  # of a body that is too large, so much is read: a client that still sends may not see an answer


@dataclass(frozen=True, slots=True)
class Order:
    """A request that can be spoken."""

    asked: SpeechRequest
    turn: Turn
    engine: Engine


class OpenAI:
    """Owns the thread that compresses audio. At most `settings.server.max_connections` requests for speech
    at once, from the first byte of a body to the last of the answer."""

    def __init__(
        self,
        settings: Settings,
        registry: VoiceRegistry,
        engines: Engines,
        worker: SerialWorker,
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        self._ledger = ledger
        self._most = settings.server.max_connections
        self._open = 0
        self._max_text_chars = settings.engine.max_text_chars
        self._registry = registry
        self._engines = engines
        self._worker = worker
        self._limits = limits
        self._encoding = SerialWorker("encoder")
        self._created = int(time.time())

    def add_to(self, app: FastAPI) -> None:
        """Put the routes into the app."""
        # an ASGI app of its own: it answers when there is sound, and hears of it when the client leaves
        app.router.routes.append(Route("/v1/audio/speech", _Endpoint(self), methods=["POST"]))
        app.add_api_route("/v1/models", self.models)
        app.add_api_route("/v1/models/{name}", self.model)

    def close(self) -> None:
        self._encoding.close()

    async def models(self) -> dict[str, Any]:
        """Every engine that has a voice."""
        names = await self._worker.run(model_names, self._registry)
        return {"object": "list", "data": [self._model(name) for name in names]}

    async def model(self, name: str) -> JSONResponse:
        """One of them, or one of OpenAI's names that mean whichever the voice has."""
        names = await self._worker.run(model_names, self._registry)
        if name not in (*names, *ALIASES):
            return answer(no_model(name, names))
        return JSONResponse(self._model(name))

    async def speech(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak the text of the request; an error before the first sound is a whole answer."""
        if self._open >= self._most:
            full = Overloaded(f"{self._most} requests for speech are open, all there may be; try again later")
            await self._refuse(full, scope, receive, send)
            return
        self._open += 1
        try:
            await self._answered(scope, receive, send)
        finally:
            self._open -= 1

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            order = await self._order(await self._body(Request(scope, receive)))
        except ClientDisconnect:
            return
        except TTSError as error:
            await self._refuse(error, scope, receive, send)
            return
        stall_s = self._limits.stall_s
        await _Speech(order, self._encoding, self._ledger, stall_s, scope, receive, send).run()

    async def _refuse(self, error: TTSError, scope: Scope, receive: Receive, send: Send) -> None:
        self._ledger.close("error", None, None, {}, code=error.code)
        await answer(error)(scope, receive, send)

    async def _body(self, request: Request) -> bytes:
        most = self._max_text_chars * _BYTES_PER_CHAR + _OTHER_BYTES
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self._limits.body_s), aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size <= most:
                        body += chunk
                    elif size > most * _PATIENCE:
                        break
        except TimeoutError:
            raise TooSlow(None, f"the body did not end within {self._limits.body_s:g} s; ask again") from None
        if size > most:
            raise TooLarge(None, f"the body has more than {most} bytes; split the text")
        return bytes(body)

    async def _order(self, body: bytes) -> Order:
        asked = parse(body, self._max_text_chars)
        voice = await self._worker.run(cast, asked, self._registry)
        return Order(asked, asked.turn(voice), await self._engines.get(voice.engine))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "sparkvoice"}


class _Endpoint:
    """What the router takes for an ASGI app; it would take a method for a function of a request."""

    def __init__(self, routes: OpenAI) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes.speech(scope, receive, send)


class _Speech:
    """One answer: headers with the first sound, bytes as they are made, nothing more once the client left."""

    def __init__(
        self,
        order: Order,
        encoding: SerialWorker,
        ledger: Ledger,
        stall_s: float,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._ledger = ledger
        self._order = order
        self._encoding = encoding
        self._stall_s = stall_s
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id = f"req_{secrets.token_hex(8)}"
        self._started = False
        self._outcome: Outcome | None = None  # once nothing more is to be sent
        self._code: str | None = None
        self._utterance: Utterance | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._leave_with_client(), name="speech client")
                await self._answer()
                watch.cancel()
        except* ClientDisconnect:
            pass
        finally:
            self._record()

    async def _leave_with_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._outcome is None:  # else it is the end of a whole answer
            raise ClientDisconnect  # takes the speech with it

    async def _answer(self) -> None:
        try:
            await self._speak()
        except TimeoutError:
            log.warning("speech %s: nothing was read for %s s", self._id, self._stall_s)
            self._outcome = "disconnected"  # the server drops a connection whose answer is not complete
        except TTSError as error:
            if isinstance(error, SynthesisFailed):
                log.error("speech %s", self._id, exc_info=error)
            await self._fail(error)
        except Exception as error:  # the request's outermost frame
            log.exception("speech %s", self._id)
            await self._fail(SynthesisFailed(f"the server failed: {type(error).__name__}"))

    async def _speak(self) -> None:
        asked = self._order.asked
        made = await self._encoding.run(encoder, asked.response_format, RATE)
        try:
            async with Utterance(self._order.engine, self._order.turn, rate=RATE, lead_s=None) as utterance:
                self._utterance = utterance
                utterance.push(asked.input)
                utterance.end()
                first = await anext(utterance, None)
                if first is None:
                    raise BadParameter("input", "there is nothing in input that can be spoken")
                await self._start(made.media_type)
                await self._put(await self._call(made, made.push, first.pcm))
                async for frame in utterance:
                    await self._put(await self._call(made, made.push, frame.pcm))
            await self._put(await self._call(made, made.finish))
            await self._finish(utterance)
        finally:
            with suppress(TTSError):  # the server closes
                await self._call(made, made.close)  # behind what the worker may still do with it

    async def _call(self, made: Encoder, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._encoding.run(call, *args, **kwargs) if made.heavy else call(*args, **kwargs)

    @property
    def _is_sse(self) -> bool:
        return self._order.asked.stream_format == "sse"

    async def _start(self, media_type: str) -> None:
        headers = {
            "content-type": _SSE if self._is_sse else media_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # a proxy that collects the answer would cost the whole point
            "x-request-id": self._id,
        }
        if ignored := self._order.asked.ignored:
            headers["sparkvoice-ignored"] = ", ".join(ignored)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._started = True
        await self._out({"type": "http.response.start", "status": 200, "headers": raw})

    async def _put(self, audio: bytes) -> None:
        if audio and self._is_sse:
            audio = _event({"type": "speech.audio.delta", "audio": base64.b64encode(audio).decode()})
        if audio:
            await self._out({"type": "http.response.body", "body": audio, "more_body": True})

    async def _finish(self, utterance: Utterance) -> None:
        last = b""
        if self._is_sse:
            heard = math.ceil(utterance.timeline.audio_s * _TOKENS_PER_S)
            given = len(self._order.asked.input)
            usage = {"input_tokens": given, "output_tokens": heard, "total_tokens": given + heard}
            last = _event({"type": "speech.audio.done", "usage": usage})
        self._outcome = "done"
        await self._out({"type": "http.response.body", "body": last, "more_body": False})

    async def _fail(self, error: TTSError) -> None:
        """Tell of it; an answer that has begun is left incomplete, so that no client takes it for whole."""
        self._outcome, self._code = "error", error.code
        with suppress(TimeoutError):
            if not self._started:
                await answer(error)(self._scope, self._receive, self._out)
            elif self._is_sse:
                told = _event({"type": "error", **body_of(error)})
                await self._out({"type": "http.response.body", "body": told, "more_body": True})

    async def _out(self, message: Message) -> None:
        async with asyncio.timeout(self._stall_s):
            await self._send(message)

    def _record(self) -> None:
        asked, utterance = self._order.asked, self._utterance
        facts = {"request": self._id, "format": asked.response_format, "chars": len(asked.input)}
        outcome = self._outcome or "disconnected"
        self._ledger.close(
            outcome,
            self._order.turn.voice,
            utterance,
            facts,
            code=self._code,
            orphan_s=utterance.orphan_s if utterance is not None and outcome == "disconnected" else 0.0,
        )


def _event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
