"""The media process's own web app: the page, the voices it offers, and the calls that it starts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources.abc import Traversable

from aiohttp import web

from agent.transports.ice import IceOptions
from agent.transports.webrtc import WebRtcCall, answered
from tts_plugin.errors import (
    BadRequest,
    Overloaded,
    TTSError,
    Unauthorized,
    VoiceNotFound,
    did_you_mean,
)
from tts_plugin.hosts import is_address, is_loopback, name_of

MAX_BODY_BYTES = 65_536  # an offer has 5 to 10 kB
ANSWER_S = 10.0
STATUS = {"bad_request": 400, "unauthorized": 401, "voice_not_found": 404, "overloaded": 503}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "media-src 'self' blob: mediastream:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offered:
    """A voice the page may choose."""

    id: str
    name: str
    language: str
    default: bool = False


# speaks and listens until the call is over; None = the default voice
Converse = Callable[[WebRtcCall, str | None], Awaitable[None]]
ListVoices = Callable[[], Awaitable[Sequence[Offered]]]


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may come in. token: asked of everything but the page's own files. hosts: the names the page
    is reached by, besides localhost and IP addresses (another name may be a rebound one)."""

    token: str | None = None
    hosts: tuple[str, ...] = ()
    max_calls: int = 8
    ice: IceOptions = field(default_factory=IceOptions)


class Calls:
    """Owns the calls: each is a task here, and leaving the block ends them all."""

    def __init__(self, converse: Converse, doors: Doors) -> None:
        self._converse = converse
        self._doors = doors
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)

    async def start(self, offer: str, voice: str | None, *, loopback: bool) -> str:
        """Answer an offer (SDP in, SDP out) and let the conversation run; Overloaded when full."""
        if len(self._tasks) >= self._doors.max_calls:
            raise Overloaded(f"all {self._doors.max_calls} lines are busy; try again in a minute")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(offer, voice, loopback, answer), name="call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except BaseException:
            task.cancel()
            raise

    async def _run(self, offer: str, voice: str | None, loopback: bool, answer: asyncio.Future[str]) -> None:
        ice = replace(self._doors.ice, loopback=self._doors.ice.loopback or loopback)
        try:
            async with answered(offer, ice) as call:
                answer.set_result(call.answer)
                try:
                    await self._converse(call, voice)
                except TTSError as error:
                    log.warning("a call ended: %s", error)
                    call.send({"type": "error", "code": error.code, "message": str(error)})
                    call.hang_up("the agent failed")
                except Exception:  # a call's outermost frame
                    log.exception("a call failed")
                    call.send({"type": "error", "code": "internal", "message": "The agent failed."})
                    call.hang_up("the agent failed")
                log.info("a call is over: %s", call.ended_because or "the agent hung up")
        except Exception as error:
            if answer.done():
                raise
            answer.set_exception(error)


def build_app(page: Traversable, converse: Converse, voices: ListVoices, doors: Doors) -> web.Application:
    """The app that serves the files of `page` and starts a `converse` for every offer."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            require_own_name(request.host, doors.hosts)
            require_own_origin(request.headers.get("Origin"), request.host)
            response = await handler(request)
        except TTSError as error:
            status = 403 if isinstance(error, Stranger) else STATUS.get(error.code, 500)
            response = _problem(status, error.code, str(error), retryable=error.retryable)
        except web.HTTPException as error:
            response = _problem(error.status, "bad_request", error.reason or "bad request")
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except Exception:  # the HTTP boundary
            log.exception("%s %s failed", request.method, request.path)
            response = _problem(500, "internal", "that did not work; the log says why")
        response.headers.update(HEADERS)
        return response

    calls = Calls(converse, doors)

    async def run_calls(_: web.Application) -> AsyncIterator[None]:
        async with calls:
            yield

    async def list_voices(request: web.Request) -> web.Response:
        _require_token(request, doors.token)
        return web.json_response([asdict(voice) for voice in await voices()])

    async def offer(request: web.Request) -> web.Response:
        _require_token(request, doors.token)
        body = await _json_body(request)
        sdp, voice = body.get("sdp"), body.get("voice")
        if not isinstance(sdp, str) or not (voice is None or isinstance(voice, str)):
            raise BadRequest('an offer is {"sdp": "...", "voice": "..." or null}')
        if voice is not None:
            require_voice(voice, await voices())
        loopback = is_loopback(name_of(request.host))
        return web.json_response({"sdp": await calls.start(sdp, voice, loopback=loopback)})

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.cleanup_ctx.append(run_calls)
    app.router.add_get("/voices", list_voices)
    app.router.add_post("/offer", offer)
    for name, file in _files(page).items():
        app.router.add_get("/" if name == "index.html" else f"/{name}", file)
    return app


class Stranger(TTSError):
    """A page of somebody else, or a name that isn't ours."""

    code = "forbidden"


def require_own_name(host: str, names: Sequence[str]) -> None:
    """Raise Stranger if the Host header is a name that a foreign page may have rebound to us."""
    name = name_of(host)
    if name not in names and not is_loopback(name) and not is_address(name):
        raise Stranger(f'this page is not "{name[:100]}"; if it should be, start it with --name {name[:100]}')


def require_own_origin(origin: str | None, host: str) -> None:
    """Raise Stranger if a browser says that another site's page sends this. Not a browser: no Origin."""
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise Stranger(f'a page of "{origin[:100]}" may not start calls here')


def _require_token(request: web.Request, token: str | None) -> None:
    given = request.headers.get("Authorization", "")
    wanted = f"Bearer {token}".encode()
    # what was not UTF-8 has arrived as surrogates
    if token is not None and not hmac.compare_digest(given.encode(errors="surrogateescape"), wanted):
        raise Unauthorized("open the page with the link that was printed at the start: it holds the token")


def require_voice(voice: str, offered: Sequence[Offered]) -> None:
    """Raise VoiceNotFound, naming the nearest, unless the voice is among those offered."""
    known = [one.id for one in offered]
    if voice not in known:
        raise VoiceNotFound(f'no voice "{voice[:70]}"{did_you_mean(voice[:70], known)}')


async def _json_body(request: web.Request) -> Mapping[str, object]:
    # a form of a foreign page cannot send this type, so it costs that page a preflight, which fails
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="send application/json")
    try:
        body = await request.json()
    except (ValueError, RecursionError, LookupError, web.RequestPayloadError) as error:
        raise BadRequest("the body is not JSON") from error
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return body


def _problem(status: int, code: str, message: str, *, retryable: bool = False) -> web.Response:
    error = {"code": code, "message": message, "retryable": retryable}
    return web.Response(status=status, text=json.dumps({"error": error}), content_type="application/json")


def _files(page: Traversable) -> dict[str, Callable[[web.Request], Awaitable[web.Response]]]:
    """A handler for each file of the page, read once."""
    return {file.name: _file(file.name, file.read_bytes()) for file in page.iterdir() if file.is_file()}


def _file(name: str, content: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    etag = hashlib.sha256(content).hexdigest()[:16]

    async def send(request: web.Request) -> web.Response:
        known = request.if_none_match
        response = web.Response(status=304 if known and known[0].value == etag else 200)
        if response.status == 200:
            response.body = content
            response.content_type = kind
            if kind.startswith("text/"):
                response.charset = "utf-8"
        response.etag = etag
        return response

    return send
