"""Line: what a conversation knows of its telephone line and may ask of it, whatever the transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from agent.media_io import QueueInput
from agent.playout import Playout

DIGITS = frozenset("0123456789*#ABCD")  # all that a telephone's keys can send


@dataclass(frozen=True, slots=True)
class CallInfo:
    """Who is on the line.

    id: the carrier's name of the call. caller, called: telephone numbers or addresses as the carrier
    writes them; None where it tells none. outbound: whether the agent's side placed the call.
    """

    id: str
    caller: str | None = None
    called: str | None = None
    outbound: bool = False


class TransferFailed(Exception):
    """The call stays with the agent; the message says why it could not be handed over."""


class Line(Protocol):
    """One call over a telephone. Its transport made it and ends it when its block is left."""

    @property
    def call(self) -> CallInfo:
        """Who is on the line."""

    def on_digit(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with every key the caller presses, one of DIGITS; it must not block. Keys pressed
        before are handed over at once."""

    async def transfer(self, target: str) -> None:
        """Hand the caller over to `target`, a number or address that the carrier can reach; the call has then
        left the agent and is over here. TransferFailed where the carrier refuses, or the line can't."""

    def hang_up(self, why: str) -> None:
        """End the call; the second reason is ignored."""

    async def ended(self) -> str:
        """Wait until the call is over: hung up by either side, handed over or lost; returns why."""


@runtime_checkable
class MediaLine(Line, Protocol):
    """A line whose audio goes through this process."""

    @property
    def kind(self) -> Literal["twilio", "telnyx", "plivo", "audiosocket", "livekit"]:
        """The transport, for metrics and the log."""

    @property
    def playout(self) -> Playout:
        """What the caller hears."""

    @property
    def audio(self) -> QueueInput:
        """What the caller says; closed when the call is over."""
