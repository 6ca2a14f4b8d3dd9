"""A telephone line without a network: a handset's clock, keys that a test presses, transfers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from agent.line import CallInfo, TransferFailed
from agent.media_io import QueueInput
from agent.playout import Playout
from tests.fakes_livekit import Handset

RATE = 8000


class ScriptedLine:
    """A MediaLine. refuses: why the carrier hands nobody over, None if it does."""

    kind: Literal["audiosocket"] = "audiosocket"

    def __init__(self, call: CallInfo | None = None, *, refuses: str | None = None) -> None:
        self.call = call or CallInfo("CA0123456789abcdef", "+442079460123", "+442079460999")
        self.far_end = Handset(RATE)
        self.transferred: list[str] = []
        self.refuses = refuses
        self.carrier_s = 0.0  # how long the carrier takes to hand somebody over
        self.why: str | None = None
        self._ended = asyncio.Event()
        self._on_digit: Callable[[str], None] | None = None
        self._unread: list[str] = []

    @property
    def playout(self) -> Playout:
        return self.far_end.playout

    @property
    def audio(self) -> QueueInput:
        return self.far_end.input

    def on_digit(self, callback: Callable[[str], None]) -> None:
        self._on_digit = callback
        while self._unread:
            callback(self._unread.pop(0))

    def press(self, digits: str) -> None:
        """The caller presses these keys."""
        for digit in digits:
            if self._on_digit is None:
                self._unread.append(digit)
            else:
                self._on_digit(digit)

    async def transfer(self, target: str) -> None:
        await asyncio.sleep(self.carrier_s)
        if self.refuses is not None:
            raise TransferFailed(self.refuses)
        self.transferred.append(target)
        self.hang_up("handed over")

    def hang_up(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self.far_end.input.close()
            self._ended.set()

    async def ended(self) -> str:
        await self._ended.wait()
        return self.why or ""


@asynccontextmanager
async def ringing(call: CallInfo | None = None, *, refuses: str | None = None) -> AsyncIterator[ScriptedLine]:
    """A line whose clock runs inside the block."""
    line = ScriptedLine(call, refuses=refuses)
    clock = asyncio.create_task(line.far_end.run())
    try:
        yield line
    finally:
        line.hang_up("the test is over")
        clock.cancel()
        await asyncio.wait([clock])
