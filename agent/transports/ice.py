"""How a call finds its way through the network (ICE): its options, and what aiortc has no option for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import aioice
from aiortc import RTCIceServer, RTCPeerConnection


@dataclass(frozen=True, slots=True)
class IceOptions:
    """How a call finds its way.

    servers: stun: and turn: URLs, none unless somebody asks for them (a silent one costs 5 s a call).
    loopback: offer 127.0.0.1 too; without another address it is anyway.
    """

    servers: tuple[str, ...] = ()
    username: str | None = None
    credential: str | None = None
    loopback: bool = False


def ice_servers(options: IceOptions) -> list[RTCIceServer]:
    """The options' servers as aiortc wants them."""
    if not options.servers:
        return []
    return [RTCIceServer(list(options.servers), username=options.username, credential=options.credential)]


def without_mdns(offer: str) -> str:
    """The offer without its ".local" candidates: aioice asks the network for them in vain for 1 s.

    Nothing is lost: the browser knows our addresses and its checks tell us its own. So its list has no
    end either; without candidates before it, aioice would take an end for "nobody there" and offer none.
    """
    return re.sub(r"a=(candidate:[^\r\n]*\.local [^\r\n]*|end-of-candidates)\r?\n", "", offer)


def ice_connections(pc: RTCPeerConnection) -> set[aioice.Connection]:
    """What carries the media and messages of `pc`, whose remote description is set."""
    ends = [transceiver.receiver.transport for transceiver in pc.getTransceivers()]
    if pc.sctp is not None:
        ends.append(pc.sctp.transport)
    # aiortc shows them to nobody; it is pinned, and the tests fail when the name moves
    return {end.transport.iceGatherer._connection for end in ends}


def offer_loopback(connection: aioice.Connection, *, always: bool) -> None:
    """Let an ICE connection gather 127.0.0.1 as well: `always`, or if it has no other address.

    aioice drops loopback, so a box with nothing but `lo` would have no candidate and no call.
    Chromium there needs --allow-loopback-in-peer-connection.
    """
    gather = connection.get_component_candidates

    async def with_loopback(component: int, addresses: list[str], timeout: int = 5) -> list[aioice.Candidate]:
        more = ["127.0.0.1"] if always or not addresses else []
        return await gather(component=component, addresses=[*addresses, *more], timeout=timeout)

    setattr(connection, "get_component_candidates", with_loopback)  # noqa: B010 (mypy refuses the plain form)
