"""The engine server as an ASGI app: its routes, and the engines and voices that live as long as it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, WebSocket
from starlette.responses import JSONResponse, Response

from tts_plugin.config import Settings
from tts_plugin.engine import ENGINES, Engine, load_engine
from tts_plugin.errors import TTSError, told
from tts_plugin.server.admission import Admission
from tts_plugin.server.auth import Doors
from tts_plugin.server.engines import Engines
from tts_plugin.server.ledger import Ledger
from tts_plugin.server.metrics import CONTENT_TYPE, Metrics
from tts_plugin.server.openai import OpenAI
from tts_plugin.server.stream import Limits, Streams
from tts_plugin.voices import VoiceRegistry, described, open_registry
from tts_plugin.wire import PATH
from tts_plugin.worker import SerialWorker

log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *,
    registry: VoiceRegistry | None = None,
    build: Callable[[str], Engine] | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The app; ConfigError if its host is open to others and there is no token.

    It answers as soon as it starts and warms the engines meanwhile; `/readyz` tells when they are.
    registry: None takes the deployment's, as the settings say; build: makes an engine by name, likewise.
    """
    settings.server.require_closed_door()
    voices = registry or open_registry(settings.engine, ENGINES)
    admission = Admission(settings)
    make = build or partial(load_engine, settings=settings.engine)
    loaded = Engines(lambda name: admission.admitted(name, make(name)))
    worker = SerialWorker("voices")
    metrics = Metrics(admission.gates, lambda: streams.connections)
    ledger = Ledger(metrics)
    limits = limits or Limits()
    streams = Streams(settings, voices, loaded, worker, ledger, limits)
    openai = OpenAI(settings, voices, loaded, worker, ledger, limits)

    def to_warm() -> tuple[str, ...]:
        return (voices.default.engine,) if settings.engine.warm is None else settings.engine.warm

    async def warm_up() -> None:
        try:
            names = await worker.run(to_warm)
        except TTSError as error:
            log.error("not ready: %s", error)
            return
        with suppress(TTSError):  # logged where it is loaded
            for name in names:
                await loaded.get(name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(warm_up(), name="warm up")
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.wait([warming])
            await loaded.aclose()
            openai.close()
            worker.close()

    app = FastAPI(title="Sparkvoice engine", lifespan=lifespan, openapi_url=None)  # see docs/protocol.md
    app.add_middleware(Doors, settings=settings.server)

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """The process answers."""
        return {"ok": True}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """200 once a turn would start at once, 503 before and if it cannot."""
        try:
            names = await worker.run(to_warm)
        except TTSError as error:
            return JSONResponse({"ready": False, "engines": {}, "error": told(error)}, 503)
        ready = all(loaded.ready(name) for name in names)
        state: dict[str, Any] = {"ready": ready, "engines": {name: loaded.status(name) for name in names}}
        if failures := [failure for name in names if (failure := loaded.failure(name))]:
            state["error"] = told(failures[0])
        return JSONResponse(state, 200 if ready else 503)

    @app.get("/metrics")
    async def scrape() -> Response:
        """For Prometheus; docs/metrics.md says what there is."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @app.get("/v1/voices")
    async def list_voices() -> dict[str, Any]:
        """Every voice, the default one's id, and how many complaints there are about voice files."""
        return await worker.run(_catalogue, voices)

    @app.websocket(PATH)
    async def stream(socket: WebSocket) -> None:
        await streams.serve(socket)

    openai.add_to(app)
    return app


def _catalogue(voices: VoiceRegistry) -> dict[str, Any]:
    listed = voices.list()
    try:
        default = voices.default.id
    except TTSError:
        default = None
    return {
        "default": default,
        "voices": [described(voice) for voice in listed],
        "problems": len(voices.problems),
    }
