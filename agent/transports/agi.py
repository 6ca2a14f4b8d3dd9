"""The dialplan's questions about an AudioSocket call, by FastAGI: who calls, and what came of it.

AudioSocket itself carries neither a telephone number nor a reason. AGI(agi://host:port/UUID) before the
AudioSocket application tells the caller's number; after it, it sets SPARKVOICE_WHY and SPARKVOICE_TRANSFER.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from agent.line import CallInfo

KEPT = 1000  # calls whose numbers or outcomes wait to be asked for
# nothing that a dialplan reads as more than one destination, as an option or as a variable
TARGET = re.compile(r"[A-Za-z0-9+*#@._:/-]{1,128}")
T = TypeVar("T")
_UNKNOWN = ("", "unknown")

log = logging.getLogger("sparkvoice.audiosocket")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a call is over. target: where the dialplan is asked to send the caller."""

    why: str
    target: str = ""


class Register:
    """What is known of the calls of one listener, the newest KEPT of each."""

    def __init__(self) -> None:
        self._infos: OrderedDict[UUID, CallInfo] = OrderedDict()
        self._outcomes: OrderedDict[UUID, Outcome] = OrderedDict()

    def comes(self, uuid: UUID, caller: str | None, called: str | None) -> None:
        """A call is announced."""
        self._outcomes.pop(uuid, None)
        _keep(self._infos, uuid, CallInfo(str(uuid), caller, called))

    def info(self, uuid: UUID) -> CallInfo:
        """Who calls, as far as it was announced."""
        return self._infos.pop(uuid, CallInfo(str(uuid)))

    def over(self, uuid: UUID, outcome: Outcome) -> None:
        """A call has ended."""
        _keep(self._outcomes, uuid, outcome)

    def outcome(self, uuid: UUID) -> Outcome | None:
        """What came of a call, None if it has not ended; told once."""
        return self._outcomes.pop(uuid, None)


def _keep(kept: OrderedDict[UUID, T], uuid: UUID, value: T) -> None:
    kept[uuid] = value
    while len(kept) > KEPT:
        kept.popitem(last=False)


async def converse_agi(
    head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, calls: Register
) -> None:
    """Answer one AGI connection, of which `head` has been read; the caller closes it."""
    told = parsed(head + await reader.readuntil(b"\n\n"))
    try:
        uuid = UUID(told.get("agi_network_script", ""))
    except ValueError:
        log.warning("AGI without a UUID: write AGI(agi://host:port/${CALL}) with the AudioSocket call's")
        return
    outcome = calls.outcome(uuid)
    if outcome is None:
        calls.comes(uuid, _number(told.get("agi_callerid")), _number(told.get("agi_extension")))
        return
    for name, value in (("SPARKVOICE_WHY", outcome.why), ("SPARKVOICE_TRANSFER", outcome.target)):
        writer.write(f'SET VARIABLE {name} "{_quoted(value)}"\n'.encode())
        if not (await reader.readline()).startswith(b"200"):
            return


def parsed(head: bytes) -> dict[str, str]:
    """The variables that begin an AGI connection."""
    pairs = (line.partition(": ") for line in head.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def _number(value: str | None) -> str | None:
    return None if value is None or value in _UNKNOWN else value


def _quoted(value: str) -> str:
    """One line, without what AGI or the dialplan would read as more than text."""
    return " ".join(re.sub(r"[^\w +*#@.,:/-]", " ", value).split())[:256]
