"""Engines: the engines of one server by name, each loaded and warmed once, on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tts_plugin.engine import Engine
from tts_plugin.errors import EngineUnavailable, TTSError
from tts_plugin.worker import SerialWorker

log = logging.getLogger(__name__)


class Engines:
    """Shared by every turn of the server. build: makes the engine called so, blocking (imports, weights).

    Who asks while an engine loads waits for that one load, and leaving the wait does not stop it. A load
    that failed is tried again by the next who asks.
    """

    def __init__(self, build: Callable[[str], Engine]) -> None:
        self._build = build
        self._loads: dict[str, asyncio.Task[Engine]] = {}
        self._loader = SerialWorker("engine-loader")

    async def get(self, name: str) -> Engine:
        """The engine, warm; a TTSError if it cannot be had."""
        load = self._loads.get(name)
        if load is None or (load.done() and _failure(load)):
            load = self._loads[name] = asyncio.create_task(self._load(name), name=f"load {name}")
            load.add_done_callback(_failure)  # nobody may be waiting any more
        return load.result() if load.done() else await asyncio.shield(load)

    def ready(self, name: str) -> bool:
        load = self._loads.get(name)
        return load is not None and load.done() and not _failure(load)

    def status(self, name: str) -> str:
        """What `/readyz` says of it: "ready", "loading", or why its last load failed."""
        load = self._loads.get(name)
        if load is None or not load.done():
            return "loading"
        return _failure(load) or "ready"

    def failure(self, name: str) -> TTSError | None:
        """Why its last load failed, if it did."""
        load = self._loads.get(name)
        if load is None or not load.done() or load.cancelled():
            return None
        error = load.exception()
        return error if isinstance(error, TTSError) else None

    async def aclose(self) -> None:
        """Stop loading and free every engine; twice is fine."""
        loads, self._loads = self._loads, {}
        for load in loads.values():
            load.cancel()
        if loads:
            await asyncio.wait(loads.values())
        for load in loads.values():
            if not _failure(load):
                await load.result().aclose()
        self._loader.close()

    async def _load(self, name: str) -> Engine:
        try:
            engine = await self._loader.run(self._build, name)
            try:
                await engine.warm_up()
            except BaseException:
                await engine.aclose()
                raise
        except TTSError as error:
            log.error("engine %s: %s", name, error)
            raise
        except Exception as error:  # the load's outermost frame: whatever it raised becomes ours
            log.exception("engine %s cannot be loaded", name)
            raise EngineUnavailable(
                f'engine "{name}" cannot be loaded: {type(error).__name__}: {error}'
            ) from error
        log.info("engine %s is ready", name)
        return engine


def _failure(load: asyncio.Task[Engine]) -> str:
    """Why a load that is over failed, "" if it did not."""
    if load.cancelled():
        return "cancelled"
    error = load.exception()
    return "" if error is None else str(error)
