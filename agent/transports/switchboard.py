"""Switchboard: what a call in a LiveKit room asks of the LiveKit server: dial, hand over, hang up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import aiohttp
from livekit import api
from livekit.protocol import models

from agent.line import TransferFailed

REMOVE_S: Final = 5.0
SCHEMES: Final = ("tel:", "sip:", "sips:")

log = logging.getLogger(__name__)


class NotAnswered(Exception):
    """Nobody took the call that was placed; the message says why."""


@dataclass(frozen=True, slots=True)
class Outbound:
    """A call to place.

    number: whom, as the trunk's carrier wants it. trunk: id of the outbound SIP trunk (ST_...). shown: the
    number the callee sees, one of the trunk's; None = the trunk's first. ring_s: how long it may ring.
    """

    number: str
    trunk: str
    shown: str | None = None
    ring_s: int = 30

    @property
    def identity(self) -> str:
        """The participant that the callee becomes in the room."""
        return f"phone-{self.number.removeprefix('+')}"


class Switchboard:
    """Asks the server behind `client` about one room; the client stays its owner's to close."""

    def __init__(self, client: api.LiveKitAPI, room: str) -> None:
        self._client = client
        self._room = room

    async def dial(self, call: Outbound) -> None:
        """Ring and wait until it is answered; NotAnswered if it is not."""
        request = api.CreateSIPParticipantRequest(
            room_name=self._room,
            sip_trunk_id=call.trunk,
            sip_call_to=call.number,
            participant_identity=call.identity,
            wait_until_answered=True,
        )
        request.ringing_timeout.FromSeconds(call.ring_s)
        if call.shown is not None:
            request.sip_number = call.shown
        try:
            await self._client.sip.create_sip_participant(request)
        except (api.ServerError, aiohttp.ClientError, TimeoutError) as error:
            raise NotAnswered(_told(error)) from error

    async def transfer(self, identity: str, target: str) -> None:
        """Have the participant's telephone call sent on to `target` (SIP REFER) and wait until it is;
        TransferFailed if it stays here."""
        request = api.TransferSIPParticipantRequest(
            room_name=self._room, participant_identity=identity, transfer_to=address_of(target)
        )
        try:
            answer = await self._client.sip.transfer_sip_participant(request)
        except (api.ServerError, aiohttp.ClientError, TimeoutError) as error:
            raise TransferFailed(_told(error)) from error
        # a server from before transfers had a status answers with an empty message: that is its success
        if answer.transfer_id and answer.status != api.SIPTransferStatus.STS_TRANSFER_SUCCESSFUL:
            raise TransferFailed(f"the carrier ended the transfer with {answer.reason}")

    async def remove(self, identity: str) -> None:
        """Put the participant out of the room, which hangs up its telephone. A failure is logged."""
        try:
            async with asyncio.timeout(REMOVE_S):
                await self._client.room.remove_participant(
                    api.RoomParticipantIdentity(room=self._room, identity=identity)
                )
        except (api.ServerError, aiohttp.ClientError, TimeoutError) as error:
            if not (isinstance(error, api.ServerError) and error.code == api.TwirpErrorCode.NOT_FOUND):
                log.warning("a caller could not be hung up: %s", _told(error))

    async def turn_away(self) -> None:
        """Hang up the telephones in the room, unless an agent is there. A failure is logged."""
        try:
            async with asyncio.timeout(REMOVE_S):
                there = await self._client.room.list_participants(
                    api.ListParticipantsRequest(room=self._room)
                )
        except (api.ServerError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("a caller who found all lines busy could not be looked for: %s", _told(error))
            return
        kinds = models.ParticipantInfo.Kind
        if not any(one.kind == kinds.AGENT for one in there.participants):
            for one in there.participants:
                if one.kind == kinds.SIP:
                    await self.remove(one.identity)


def address_of(target: str) -> str:
    """`target` as LiveKit wants it: a telephone number gets its scheme, an address keeps its own."""
    target = target.strip()
    if target.lower().startswith(SCHEMES):
        return target
    return f"sip:{target}" if "@" in target else f"tel:{target}"


def _told(error: Exception) -> str:
    """What went wrong, in few words."""
    match error:
        case api.SipCallError():
            code, words = error.sip_status_code, error.sip_status or error.sip_transfer_reason
            return f"{code} {words}" if code and words else words or error.message
        case api.ServerError():
            return f"{error.message} ({error.code})"
        case TimeoutError():
            return "the LiveKit server did not answer in time"
        case _:
            return f"the LiveKit server cannot be reached: {error}"
