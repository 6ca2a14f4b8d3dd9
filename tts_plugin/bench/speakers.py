"""Where a bench's turns are spoken: by an engine server of its own, or by an engine in this process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Protocol, Self

import yaml

from tts_plugin.audio import AudioFrame
from tts_plugin.config import Settings
from tts_plugin.engine import ENGINES, Engine, Turn
from tts_plugin.remote import Remote, RemoteUtterance, Request
from tts_plugin.server.local import LocalServer
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice, open_registry

_TURNS_A_CONNECTION = 16  # as an agent's process has some calls, and a server many such processes
_RATE = 24_000  # Hz, what LiveKit asks for


class Spoken(Protocol):
    """One turn under measurement; used like an Utterance."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def push(self, text: str) -> None: ...

    def end(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[AudioFrame]: ...

    async def cancel(self) -> float:
        """Stop, and return when the engine is free: the milliseconds of audio made for nothing."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """Its timeline where it is made, once it is done; see docs/protocol.md."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """open: a new turn. pid: of the process that speaks."""

    open: Callable[[], Spoken]
    pid: int


@asynccontextmanager
async def served(
    settings: Settings, voice: Voice, streams: int, lead_s: float | None
) -> AsyncIterator[Stage]:
    """An engine server as a child process, with room for `streams` turns whatever its capacity says."""
    with TemporaryDirectory(prefix="sparkvoice-bench-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(_roomy(settings, voice.engine, streams)), encoding="utf-8")
        server = LocalServer(config)
        try:
            async with AsyncExitStack() as stack:
                remotes = [
                    await stack.enter_async_context(aclosing(Remote(server.address)))
                    for _ in range(-(-streams // _TURNS_A_CONNECTION))
                ]
                for remote in remotes:
                    await remote.connect()
                turn = itertools.cycle(remotes)
                request = Request(rate=_RATE, voice=voice.id, lead_s=lead_s)
                assert server.pid is not None
                yield Stage(lambda: _Served(next(turn).utterance(request)), server.pid)
        finally:
            server.close()


def in_process(engine: Engine, voice: Voice, lead_s: float | None, pid: int) -> Stage:
    """An engine here, warm."""
    return Stage(lambda: _Here(Utterance(engine, Turn(voice), lead_s=lead_s)), pid)


def cast(settings: Settings, voice_id: str | None) -> Voice:
    """The voice, None for the deployment's own."""
    registry = open_registry(settings.engine, ENGINES)
    return registry.default if voice_id is None else registry.get(voice_id)


def _roomy(settings: Settings, engine: str, streams: int) -> dict[str, Any]:
    """The settings as a file's content, made to take so many turns of the engine."""
    engines = settings.engine.model_dump(mode="json")
    engines["voices"] = [str(folder.absolute()) for folder in settings.engine.voices]
    if settings.engine.spark.model is not None:
        engines["spark"]["model"] = str(settings.engine.spark.model.absolute())
    if engine in engines:
        engines[engine]["max_streams"] = streams
    engines["warm"] = [engine]
    connections = -(-streams // _TURNS_A_CONNECTION)
    server = {"max_connections": connections + 8, "max_contexts": 2 * _TURNS_A_CONNECTION}
    return {"engine": engines, "server": server}


class _Served:
    def __init__(self, utterance: RemoteUtterance) -> None:
        self._utterance = utterance
        self.push, self.end, self.cancel = utterance.push, utterance.end, utterance.cancel

    async def __aenter__(self) -> Self:
        await self._utterance.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._utterance.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[AudioFrame]:
        return self._utterance

    @property
    def report(self) -> dict[str, Any]:
        return self._utterance.server_timeline


class _Here:
    def __init__(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self._left = False
        self.push, self.end = utterance.push, utterance.end

    async def __aenter__(self) -> Self:
        await self._utterance.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._left:
            self._left = True
            await self._utterance.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[AudioFrame]:
        return self._utterance

    async def cancel(self) -> float:
        orphan_s = self._utterance.orphan_s
        await self.__aexit__(None, None, None)
        return orphan_s * 1000

    @property
    def report(self) -> dict[str, Any]:
        return self._utterance.timeline.report()
