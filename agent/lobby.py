"""Lobby: which of the jobs that a LiveKit server offers its worker are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from livekit.agents import JobRequest

from agent.calls import Calls
from agent.shared_calls import TRANSPORT

ELSEWHERE_S = 3.0  # for another worker to take the call
# reported where every place is taken. From 0.7 on a server asks no more (unless the worker is in
# development), but whoever is not asked cannot give the busy answer
FULL = 0.65

TurnAway = Callable[[str], Awaitable[None]]  # hangs up the telephones in a room that no agent has come to

log = logging.getLogger("sparkvoice.worker")


class Lobby:
    """Lets in as many calls as there are places. Whoever finds none is offered to the other workers, and a
    telephone that none of those takes is hung up. Made by `lobby`."""

    def __init__(self, calls: Calls, turn_away: TurnAway) -> None:
        self._calls = calls
        self._turn_away = turn_away
        self._entering = 0  # taken, but no job yet
        self._leaving: set[asyncio.Task[None]] = set()

    async def answer(self, request: JobRequest, jobs: int) -> None:
        """Take the job or refuse it; jobs: that run now."""
        if jobs + self._entering >= self._calls.max_calls:
            self._calls.refused(TRANSPORT)
            log.warning("a call was refused: all %d lines are busy", self._calls.max_calls)
            await request.reject(terminate=False)
            leaving = asyncio.create_task(self._see_off(request.room.name), name="busy answer")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            return
        self._entering += 1
        try:
            await request.accept()
        finally:
            self._entering -= 1

    def load(self, jobs: int, others: float) -> float:
        """What to report: how full it is, or `others` (the processor's load) if that is more."""
        return max(others, FULL * jobs / self._calls.max_calls)

    async def _see_off(self, room: str) -> None:
        await asyncio.sleep(ELSEWHERE_S)
        try:
            await self._turn_away(room)
        except Exception:  # the task's outermost frame
            log.exception("a caller who was refused could not be hung up")

    async def aclose(self) -> None:
        for task in list(self._leaving):
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)


@asynccontextmanager
async def lobby(calls: Calls, turn_away: TurnAway) -> AsyncIterator[Lobby]:
    """A Lobby; leaving the block ends what it still does."""
    made = Lobby(calls, turn_away)
    try:
        yield made
    finally:
        await made.aclose()
