"""A LiveKit room for the tests: the real rtc.Room at our end, the stub's caller at the far one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from livekit import api, rtc

from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.transports.room import RATE, RoomCall, answered
from agent.transports.switchboard import Outbound, Switchboard
from agent.transports.track import RATE as FAR_RATE
from tests.stub_livekit import KEY, KIND, SECRET, StubRoom, StubServer, stub_server
from tts_plugin.audio import Pcm

ROOM = "lab"
TELEPHONE = {
    "sip.callID": "SCL_1",
    "sip.callStatus": "active",
    "sip.phoneNumber": "+15550101",
    "sip.trunkPhoneNumber": "+15550100",
}


@dataclass(frozen=True, slots=True)
class Parties:
    """Who takes part in a call."""

    server: StubServer
    stub: StubRoom
    call: RoomCall


@asynccontextmanager
async def a_room_call(
    *,
    telephone: bool = True,
    status: str = "active",
    publish: bool = True,
    dial: Outbound | None = None,
    prepare: Callable[[StubServer, StubRoom], None] = lambda server, stub: None,
) -> AsyncIterator[Parties]:
    """Our end of a call, connected to its room; the far end is as the arguments and `prepare` make it."""
    kind, attributes = (
        (KIND.SIP, TELEPHONE | {"sip.callStatus": status}) if telephone else (KIND.STANDARD, {})
    )
    async with stub_server() as server, api.LiveKitAPI(server.url, KEY, SECRET) as client:
        stub = server.add(StubRoom(ROOM, kind=kind, attributes=attributes, here=dial is None))
        prepare(server, stub)
        room = rtc.Room()
        await room.connect(server.url, server.token(ROOM))
        try:
            async with answered(room, Switchboard(client, ROOM), dial) as call:
                if publish:
                    await stub.publish()
                yield Parties(server, stub, call)
        finally:
            await room.disconnect()


class CallInARoom:
    """A whole call as the transports' conformance suite wants it."""

    rate = FAR_RATE

    def __init__(self, parties: Parties) -> None:
        self._stub = parties.stub
        self.output = PlayoutOutput(parties.call.playout, rate=RATE)
        self.input: QueueInput = parties.call.audio
        self.controls: list[Control] = []
        self.output.on_control(self.controls.append)

    def heard(self) -> Pcm:
        return self._stub.ear.heard()

    def speak(self, pcm: Pcm) -> None:
        self._stub.speak(pcm)

    async def hang_up(self) -> None:
        await self._stub.leave()


@asynccontextmanager
async def a_telephone_in_a_room() -> AsyncIterator[CallInARoom]:
    """A connected SIP call, both ends of it."""
    async with a_room_call() as parties:
        async with asyncio.timeout(20):
            assert await parties.call.connected()
            while len(parties.stub.ear.blocks) < 3:
                await asyncio.sleep(0.01)
        yield CallInARoom(parties)
