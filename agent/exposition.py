"""The /metrics route: the calls' metrics for Prometheus, not for strangers."""

from __future__ import annotations

import hmac

from aiohttp import web

from agent.calls import Calls
from tts_plugin.errors import Unauthorized
from tts_plugin.hosts import is_loopback

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def exposed(request: web.Request, calls: Calls, token: str | None, *, proxied: bool = False) -> web.Response:
    """The answer to GET /metrics. token: asked for; without one it is shown to whoever comes by loopback, or,
    behind a proxy, where everybody does, to nobody. Unauthorized otherwise."""
    if token is None:
        if proxied or not is_loopback(request.remote or ""):
            raise Unauthorized("set SPARKVOICE_TOKEN and send it as a bearer token")
    elif not hmac.compare_digest(
        request.headers.get("Authorization", "").encode(errors="surrogateescape"), f"Bearer {token}".encode()
    ):
        raise Unauthorized("send SPARKVOICE_TOKEN as a bearer token")
    return web.Response(body=calls.exposition(), headers={"Content-Type": PROMETHEUS})


def metrics_app(calls: Calls, token: str | None) -> web.Application:
    """An application with that route and nothing else."""

    async def metrics(request: web.Request) -> web.Response:
        try:
            return exposed(request, calls, token)
        except Unauthorized as error:
            return web.Response(status=401, text=f"{error}\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app
