"""Outbox: what waits to be sent on one connection, in a lane a context, written by one writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tts_plugin.wire import Message

LANE_MESSAGES = 8  # of 80 ms of audio at most: what a slow client costs in memory and in stale sound

Payload = str | bytes


class Lane:
    """One context's messages in order; `put` waits while the lane is full.

    Closing it is what makes a cancel final: what waits is dropped, and what still comes has nowhere to go.
    """

    def __init__(self, outbox: Outbox, on_last: Callable[[], None]) -> None:
        self._outbox = outbox
        self._on_last = on_last
        self._waiting: deque[Payload] = deque()
        self._has_room = asyncio.Event()
        self._is_last_in = False
        self._flushed = asyncio.Event()
        self._closed = False

    async def put(self, payload: Payload) -> None:
        while len(self._waiting) >= LANE_MESSAGES and not self._closed:
            self._has_room.clear()
            await self._has_room.wait()
        self.add(payload)

    def add(self, payload: Payload) -> None:
        """`put` for who must not wait and bounds the lane otherwise."""
        if not self._closed:
            self._waiting.append(payload)
            self._outbox.ring(self)

    def finish(self, last: Message) -> None:
        """Add the context's last message behind what waits; `on_last` is called as it goes out."""
        self.add(last.model_dump_json())
        self._is_last_in = True

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._has_room.set()

    def take(self) -> Payload | None:
        """The next message, or None if none waits."""
        if not self._waiting:
            return None
        payload = self._waiting.popleft()
        self._has_room.set()
        if self._is_last_in and not self._waiting:
            self._flushed.set()
            self._on_last()
        return payload

    async def flushed(self) -> None:
        """Wait until the last message goes out; for ever if the lane is closed before."""
        await self._flushed.wait()

    @property
    def waiting(self) -> int:
        return len(self._waiting)


class Outbox:
    """The lanes take turns, a message each, so no context waits behind another's audio.

    At most one message is with the socket at a time. stall_s: how long it may stay there until the
    client counts as gone.
    """

    def __init__(self, send: Callable[[Payload], Awaitable[None]], stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self._turns: deque[Lane] = deque()  # lanes with something to send, each once
        self._work = asyncio.Event()
        self._idle = asyncio.Event()

    def lane(self, on_last: Callable[[], None]) -> Lane:
        return Lane(self, on_last)

    def ring(self, lane: Lane) -> None:
        """The lane has something to send."""
        if lane not in self._turns:
            self._turns.append(lane)
        self._idle.clear()
        self._work.set()

    async def write(self) -> None:
        """Send for ever; TimeoutError if the client takes nothing for `stall_s`."""
        while True:
            while self._turns:
                lane = self._turns.popleft()
                payload = lane.take()
                if lane.waiting:
                    self._turns.append(lane)
                if payload is not None:
                    async with asyncio.timeout(self._stall_s):
                        await self._send(payload)
            self._work.clear()
            self._idle.set()
            await self._work.wait()

    async def flushed(self) -> None:
        """Wait until everything has been handed to the socket."""
        await self._idle.wait()
