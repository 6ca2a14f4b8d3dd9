"""SharedCalls: what a LiveKit worker's jobs tell of their calls to its main process, by a Unix socket.

A connection is a call and lasts as long, whatever becomes of the job; on it goes a byte for each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from agent.calls import Calls
from agent.unix_door import unix_door

TRANSPORT = "livekit"
_SPOKE, _BARGED_IN = b"s", b"b"


class CallMeter(Protocol):
    """What a call tells of itself; a Meter is one."""

    def spoke(self) -> None:
        """The agent's sound has begun; only the first time counts."""

    def barged_in(self) -> None:
        """The agent was cut short."""


@asynccontextmanager
async def counted(calls: Calls) -> AsyncIterator[Path]:
    """Count in `calls` what is told at the socket whose path is yielded. Only this user can open it."""

    async def attend(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError), calls.measured(TRANSPORT) as meter:
            while event := await reader.read(1):
                if event == _SPOKE:
                    meter.spoke()
                elif event == _BARGED_IN:
                    meter.barged_in()

    async with unix_door("calls", attend) as path:
        yield path


@asynccontextmanager
async def measured(path: Path | None) -> AsyncIterator[CallMeter]:
    """Measure a call that lasts as long as the block, at the socket `path`; without one nobody is told, nor
    where the main process is gone."""
    writer = None
    if path is not None:
        with suppress(OSError):
            _, writer = await asyncio.open_unix_connection(path)
    try:
        yield _Teller(writer)
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class _Teller:
    def __init__(self, writer: asyncio.StreamWriter | None) -> None:
        self._writer = writer

    def spoke(self) -> None:
        self._tell(_SPOKE)

    def barged_in(self) -> None:
        self._tell(_BARGED_IN)

    def _tell(self, event: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(event)
