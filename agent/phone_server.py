"""The phone server: the carriers' webhooks and media websockets, the metrics, and the calls it has taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

import aiohttp
from aiohttp import web

from agent.calls import Calls, Place
from agent.exposition import exposed
from agent.phone import Answer
from agent.transports.carrier import Arrival, Carrier, CarrierCall, Webhook
from agent.transports.dialect import Kind
from agent.transports.media_streams import MAX_MESSAGE_BYTES, MediaStream, media_stream, started
from agent.transports.tickets import Tickets
from tts_plugin.errors import BadRequest, ConfigError, Overloaded, TTSError
from tts_plugin.hosts import is_loopback

MAX_BODY_BYTES = 65_536  # a webhook has 1 kB
TICKET_S = 30.0  # from the webhook's answer to the media websocket; it takes carriers about one
MAX_WAITING = 64  # streams that have shown no token yet; anybody can open one
MAX_REASON_BYTES = 120  # of a close frame
POLICY = 1008  # the websocket's close code for what is not let in

log = logging.getLogger("sparkvoice.phone")


class Stranger(TTSError):
    """A webhook that is not the carrier's."""

    code = "forbidden"


_STATUS = {"bad_request": 400, "unauthorized": 401, "forbidden": 403}


@dataclass(frozen=True, slots=True)
class PhoneDoors:
    """Who may come in. public_url: where carriers reach this server (None: by the name they call it).
    token: asked for the metrics; None shows them to whoever comes by loopback.
    unsigned: webhooks of a carrier whose secret is not set are taken for its own."""

    public_url: str | None = None
    token: str | None = None
    unsigned: bool = False

    def require_closed(self, host: str, carriers: Mapping[Kind, Carrier]) -> None:
        """Raise ConfigError if strangers could start calls here, or if signatures could not be checked."""
        if self.unsigned and not is_loopback(host):
            raise ConfigError(
                f"phone.unsigned is for loopback hosts, not for {host}: set the carriers' secrets"
            )
        if self.public_url is None and any(carrier.missing is None for carrier in carriers.values()):
            raise ConfigError(
                "phone.public_url is not set: signatures cover the address that the carrier calls, "
                "like https://phone.example.org"
            )


@dataclass(frozen=True, slots=True)
class _Expected:
    """A call whose media websocket has been invited; `place` is kept for it."""

    carrier: Carrier
    arrival: Arrival
    place: Place

    @property
    def key(self) -> tuple[Kind, str]:
        """The same for the same call."""
        return self.carrier.dialect.kind, self.arrival.call.id


class PhoneServer:
    """An aiohttp application that calls `answer` for every call that a carrier connects."""

    def __init__(
        self, carriers: Mapping[Kind, Carrier], answer: Answer, calls: Calls, doors: PhoneDoors
    ) -> None:
        self._carriers: Mapping[str, Carrier] = {str(kind): carrier for kind, carrier in carriers.items()}
        self._answer = answer
        self._calls = calls
        self._doors = doors
        self._expected = Tickets[_Expected](TICKET_S, lambda expected: expected.place.give_back())
        self._documents = Tickets[str](TICKET_S)
        self._talking: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[Kind, str], MediaStream] = {}  # of the calls that are up
        self._waiting = 0  # streams that have not started yet
        self._http: aiohttp.ClientSession | None = None
        self.app = web.Application(middlewares=[_guard], client_max_size=MAX_BODY_BYTES)
        self.app.cleanup_ctx.append(self._run)
        self.app.on_shutdown.append(self._end_calls)
        self.app.router.add_post("/{carrier}/voice", self._voice)
        self.app.router.add_get("/{carrier}/media", self._media)
        self.app.router.add_post("/{carrier}/document/{token}", self._document)
        self.app.router.add_get("/metrics", self._metrics)
        self.app.router.add_get("/healthz", self._health)

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._http:
            yield
        for tickets in (self._expected, self._documents):
            tickets.drop(lambda _: True)

    async def _end_calls(self, _: web.Application) -> None:
        talking = list(self._talking)
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)

    async def _voice(self, request: web.Request) -> web.Response:
        """A call comes in: the busy signal, or an invitation to the media websocket."""
        carrier, webhook = await self._webhook(request)
        arrival = carrier.arrival(webhook)
        kind = carrier.dialect.kind
        # a webhook that is sent again is the same call: it keeps its place, and gets a token for the old one
        self._expected.drop(lambda expected: expected.key == (kind, arrival.call.id))
        try:
            place = self._calls.place(kind, arrival.call.id)
        except Overloaded:
            log.warning("a caller was told that all %d lines are busy", self._calls.max_calls)
            return _xml(carrier.busy)
        token = self._expected.issue(_Expected(carrier, arrival, place))
        media = self._address(request, f"/{kind}/media").replace("http", "ws", 1)
        return _xml(carrier.welcome(media, token))

    async def _document(self, request: web.Request) -> web.Response:
        """What the carrier was told to fetch here, once."""
        await self._webhook(request)
        document = self._documents.take(request.match_info["token"])
        if document is None:
            raise web.HTTPNotFound
        return _xml(document)

    async def _media(self, request: web.Request) -> web.WebSocketResponse:
        carrier = self._carrier(request)
        if self._waiting >= MAX_WAITING:
            raise web.HTTPServiceUnavailable
        ws = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, timeout=1.0, compress=False)
        await ws.prepare(request)
        # cancelled by the end of the server; a connection that is lost ends its line instead
        task = asyncio.current_task()
        assert task is not None
        self._talking.add(task)
        try:
            await self._converse(request, ws, carrier)
        except Exception:  # a call's outermost frame
            log.exception("a call failed")
        finally:
            self._talking.discard(task)
            await ws.close()
        return ws

    async def _converse(self, request: web.Request, ws: web.WebSocketResponse, carrier: Carrier) -> None:
        try:
            self._waiting += 1
            try:
                start = await started(ws, carrier.dialect)
            finally:
                self._waiting -= 1
            expected = self._expected.take(start.token)
            if expected is None:
                raise BadRequest("the token is not one of those given out, too old, or was used already")
        except BadRequest as error:
            log.warning("a %s stream was refused: %s", carrier.dialect.kind, error)
            await ws.close(code=POLICY, message=str(error).encode("ascii", "replace")[:MAX_REASON_BYTES])
            return
        with expected.place:
            arrival = expected.arrival
            if expected.carrier is not carrier or start.call != arrival.call.id:
                log.warning("a %s stream was refused: its token is another call's", carrier.dialect.kind)
                await ws.close(code=POLICY, message=b"the token is another call's")
                return
            assert self._http is not None
            seen = CarrierCall(carrier, self._http, arrival, lambda xml: self._publish(request, carrier, xml))
            if expected.key in self._lines:
                self._lines[expected.key].superseded()
            async with media_stream(ws, carrier.dialect, start.stream, arrival.call, seen) as line:
                self._lines[expected.key] = line
                try:
                    await self._answer(line)
                finally:
                    if self._lines.get(expected.key) is line:
                        del self._lines[expected.key]
            log.info("a call is over: %s", await line.ended())

    def _publish(self, request: web.Request, carrier: Carrier, document: str) -> str:
        token = self._documents.issue(document)
        return self._address(request, f"/{carrier.dialect.kind}/document/{token}")

    async def _webhook(self, request: web.Request) -> tuple[Carrier, Webhook]:
        """The request of a carrier, its signature checked."""
        carrier = self._carrier(request)
        body = await request.read()
        try:
            form = tuple(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200))
        except ValueError as error:
            raise BadRequest("the body is not a form") from error
        headers = {key.lower(): value for key, value in request.headers.items()}
        webhook = Webhook(self._address(request, request.path_qs), headers, body, form)
        if carrier.missing is None:
            if not carrier.signed(webhook):
                raise Stranger("the signature is not the carrier's; is phone.public_url what it calls?")
        elif not self._doors.unsigned:
            raise Stranger(f"{carrier.missing} is not set, so no webhook is taken")
        return carrier, webhook

    def _carrier(self, request: web.Request) -> Carrier:
        carrier = self._carriers.get(request.match_info["carrier"])
        if carrier is None:
            raise web.HTTPNotFound
        return carrier

    def _address(self, request: web.Request, path: str) -> str:
        return f"{self._doors.public_url or f'http://{request.host}'}{path}"

    async def _metrics(self, request: web.Request) -> web.Response:
        proxied = self._doors.public_url is not None
        return exposed(request, self._calls, self._doors.token, proxied=proxied)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except TTSError as error:
        log.warning("%s was refused: %s", request.path.rpartition("/document/")[0] or request.path, error)
        return web.Response(status=_STATUS.get(error.code, 500), text=f"{error}\n")
    except web.HTTPException as error:
        return web.Response(status=error.status, text=f"{error.reason}\n")
    except Exception:  # the HTTP boundary
        log.exception("a request failed")
        return web.Response(status=500, text="that did not work; the log says why\n")


def _xml(document: str) -> web.Response:
    return web.Response(text=document, content_type="application/xml")
