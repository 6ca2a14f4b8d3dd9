"""Doors: who may come in, asked before any route of the server is reached."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tts_plugin.config import ServerSettings
from tts_plugin.hosts import is_loopback, name_of
from tts_plugin.server.openai_errors import RETRY_S, error_body, type_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away. status: of HTTP, also for a websocket's handshake."""

    status: int
    code: str
    message: str
    retryable: bool = False

    def response(self) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": str(RETRY_S)}}.get(self.status)
        body = error_body(self.code, self.message, self.retryable, type_of(self.status))
        return JSONResponse(body, self.status, headers)


class Doors:
    """ASGI middleware over every HTTP and websocket route, those that do not exist included."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket"):
            refusal = refusal_of(Headers(scope=scope), self._settings)
        way_on = self._app if refusal is None else refusal.response()
        await way_on(scope, receive, send)


def refusal_of(headers: Headers, settings: ServerSettings) -> Refusal | None:
    """None if a request with these headers may come in.

    Without a token a loopback server answers only to loopback names: a page whose own name was rebound
    to 127.0.0.1 has a foreign Host and an Origin that equals it. With one, such a page lacks the token.
    """
    host = headers.get("host", "")
    if settings.token is None and settings.loopback_only and not is_loopback(name_of(host)):
        return Refusal(403, "forbidden", f'this server answers to localhost, not to "{host[:100]}"')
    origin = headers.get("origin")
    if origin is not None and origin not in settings.origins and _netloc(origin) != host.lower():
        return Refusal(
            403, "forbidden", f'pages of "{origin[:100]}" are not let in; server.origins lists those that are'
        )
    if settings.token is not None and not _has_token(headers, settings.token):
        return Refusal(401, "unauthorized", "this server asks for the header Authorization: Bearer TOKEN")
    return None


def _netloc(origin: str) -> str | None:
    """host:port of an Origin, None for "null" and for what is no URL."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _has_token(headers: Headers, token: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    # headers arrive as latin-1 whatever they were; compared as bytes, in constant time
    same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    return scheme.lower() == "bearer" and same
