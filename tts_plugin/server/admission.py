"""Admission: how many turns an engine speaks at once; a few more wait for a moment, the rest are refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from tts_plugin.audio import AudioFrame
from tts_plugin.capacity import Machine, load
from tts_plugin.config import EngineSettings, Settings
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.errors import Overloaded
from tts_plugin.timing import Clock

log = logging.getLogger(__name__)

# Of the cores that its threads keep busy, and one for all the rest. `bench capacity` found 45 turns on two
# cores (docs/benchmarks.md), 22 each, though making the sound alone takes 0.012 of a core: the rest is the
# server's and its clients'. A margin below, because beyond it not one turn runs dry but most do.
_HIBARI_PER_CPU = 20
_SPARK_GPU = 32
_ANY_OTHER = 64
_RETRY_S = (0.5, 30.0)  # bounds of what those who are refused are told
_MEMORY = 0.1  # weight of the newest turn in the estimate of how long one lasts


class Gate:
    """The places of one engine. active, waiting: turns. full, late: refused so far, because too many waited
    or for having waited too long."""

    def __init__(
        self, engine: str, streams: int, waiting: int, wait_s: float, *, clock: Clock = time.monotonic
    ) -> None:
        self.engine = engine
        self.streams = streams
        self.active = 0
        self.full = 0
        self.late = 0
        self._most_waiting = waiting
        self._wait_s = wait_s
        self._clock = clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._lasts_s = 5.0  # a turn, by those so far

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[bool]:
        """Hold a place while in the block; Overloaded if there is none in time. First come, first served.

        Gives whether it had to be waited for.
        """
        waited = await self._enter()
        begun_s = self._clock()
        try:
            yield waited
        finally:
            self._lasts_s += _MEMORY * (self._clock() - begun_s - self._lasts_s)
            self._leave()

    @property
    def retry_after_s(self) -> float:
        """When one who comes now could get a place, by how long turns last; a guess."""
        guess_s = self._lasts_s * (self.waiting + 1) / self.streams
        return round(min(max(guess_s, _RETRY_S[0]), _RETRY_S[1]), 1)

    async def _enter(self) -> bool:
        if self.active < self.streams:  # then nobody waits
            self.active += 1
            return False
        if self.waiting >= self._most_waiting:
            self.full += 1
            raise self._overloaded(f"and {self.waiting} wait" if self.waiting else "none may wait")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place
        except BaseException as end:
            if place.done() and not place.cancelled():
                self._leave()  # it was given one at the same moment
            elif place in self._queue:
                self._queue.remove(place)
            if isinstance(end, TimeoutError):
                self.late += 1
                raise self._overloaded(f"for {self._wait_s:g} s none of them ended") from None
            raise
        return True

    def _leave(self) -> None:
        """Hand the place to who has waited longest."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():  # else cancelled, and about to leave
                place.set_result(None)
                return
        self.active -= 1

    def _overloaded(self, why: str) -> Overloaded:
        return Overloaded(
            f"engine {self.engine} speaks {self.active} turns, all it can at once, {why}; try again later",
            self.retry_after_s,
        )


class Admitted:
    """An engine that speaks a turn only when it has a place, from its first segment to its last frame.

    A turn has one place however many segments it has, and one that has nothing to say needs none.
    """

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self.gate = gate

    @property
    def rate(self) -> int:
        return self._engine.rate

    @property
    def languages(self) -> frozenset[str]:
        return self._engine.languages

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        first = await anext(segments, None)
        if first is None:
            return
        async with self.gate.place() as waited:
            if waited:
                turn.note("admission")
            async with (
                aclosing(_with(first, segments)) as all_of_them,
                aclosing(self._engine.speak(turn, all_of_them)) as frames,
            ):
                async for frame in frames:
                    yield frame

    async def warm_up(self) -> None:
        await self._engine.warm_up()

    async def aclose(self) -> None:
        await self._engine.aclose()


class Admission:
    """The gates of one server, by engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.gates: dict[str, Gate] = {}

    def admitted(self, name: str, engine: Engine) -> Engine:
        """`engine`, called so, behind its gate, which stays when an engine is loaded anew. Reads a file."""
        if name not in self.gates:
            server = self._settings.server
            streams = max_streams(name, self._settings.engine)
            self.gates[name] = Gate(name, streams, server.max_waiting, server.max_wait_s)
        return Admitted(engine, self.gates[name])


def max_streams(engine: str, settings: EngineSettings) -> int:
    """Turns that it speaks at once: as set, else as measured on this machine, else what is known of it."""
    chosen: int | None = getattr(getattr(settings, engine, None), "max_streams", None)
    if chosen is not None:
        return chosen
    measured = load(engine, settings)
    if measured is not None:
        log.info("engine %s: %d turns at once, as measured %s", engine, measured.streams, measured.measured)
        return measured.streams
    return _guessed(engine, settings, Machine.this().cpus)


def _guessed(engine: str, settings: EngineSettings, cpus: int) -> int:
    match engine:
        case "hibari":
            busy = settings.hibari.at_once * settings.hibari.threads + 1
            return _HIBARI_PER_CPU * min(cpus, busy)
        case "tone":
            return 500
        case "spark":
            return _SPARK_GPU if settings.spark.device == "cuda" else max(1, cpus // 2)
    return _ANY_OTHER


async def _with(first: Segment, rest: AsyncIterator[Segment]) -> AsyncGenerator[Segment]:
    yield first
    async for segment in rest:
        yield segment
