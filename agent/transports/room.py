"""One caller in a LiveKit room, from a browser, an app or a SIP telephone: a Playout sent, the caller heard.

The audio is this project's own, not RoomIO's: RoomIO's output drops the 200 ms in its queue at a pause, so a
resumed sentence lacks them, and an echo guard cannot ask it what it has sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

from livekit import rtc
from livekit.rtc.room import EventTypes

from agent.ending import Ending
from agent.line import DIGITS, CallInfo, TransferFailed
from agent.media_io import QueueInput, mono
from agent.playout import Playout
from agent.transports.switchboard import NotAnswered, Outbound, Switchboard
from tts_plugin.audio import bytes_of

RATE: Final = 24_000  # Hz sent; libwebrtc makes it 48 kHz for Opus
HEARING_RATE: Final = 16_000  # Hz heard: what the VAD judges as it comes, and the recogniser wants
BLOCK_MS: Final = 20
BLOCK: Final = RATE * BLOCK_MS // 1000  # samples
QUEUE_MS: Final = 40  # a stall of the event loop as long as this is not heard; a pause is, this much later
TRACK: Final = "agent"
CALLERS: Final = frozenset(
    {
        rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD,
        rtc.ParticipantKind.PARTICIPANT_KIND_SIP,
        rtc.ParticipantKind.PARTICIPANT_KIND_CONNECTOR,
    }
)
STATUS: Final = "sip.callStatus"  # dialing, ringing, automation (of digits), active, hangup

_SCREEN = rtc.TrackSource.SOURCE_SCREENSHARE_AUDIO
_GONE: dict[int, str] = {
    rtc.DisconnectReason.CLIENT_INITIATED: "the caller hung up",
    rtc.DisconnectReason.PARTICIPANT_REMOVED: "removed from the room",
    rtc.DisconnectReason.ROOM_DELETED: "the room was closed",
    rtc.DisconnectReason.USER_UNAVAILABLE: "nobody answered",
    rtc.DisconnectReason.USER_REJECTED: "the call was declined",
    rtc.DisconnectReason.SIP_TRUNK_FAILURE: "the telephone trunk failed",
}

log = logging.getLogger(__name__)


class RoomCall:
    """A Line, with its audio in this process. Made by `answered`.

    playout: what is sent, mono 24 kHz. audio: what the caller says, mono 16 kHz, closed when the call ends.
    """

    kind: Literal["livekit"] = "livekit"

    def __init__(
        self, room: rtc.Room, switchboard: Switchboard, wanted: str | None, *, outbound: bool
    ) -> None:
        self.playout = Playout(RATE)
        self.audio = QueueInput(HEARING_RATE)
        self.room = room
        self._switchboard = switchboard
        self._wanted = wanted  # identity of the caller; None = the first to come
        self._outbound = outbound
        self._caller: rtc.RemoteParticipant | None = None
        self._call = CallInfo("", outbound=outbound)
        self._heard = False  # whether somebody gets our track
        self._reached = asyncio.Event()
        self._ending = Ending(self._over)
        self._listening: tuple[str, asyncio.Task[None]] | None = None  # the track heard now, and who hears it
        self._on_digit: Callable[[str], None] | None = None
        self._early: deque[str] = deque(maxlen=64)

    @property
    def call(self) -> CallInfo:
        return self._call

    @property
    def identity(self) -> str:
        """The caller's, in the room."""
        return self._caller.identity if self._caller else ""

    @property
    def telephone(self) -> bool:
        """Whether the caller is on a telephone line: has keys, and can be handed over."""
        return self._caller is not None and self._caller.kind == rtc.ParticipantKind.PARTICIPANT_KIND_SIP

    def on_digit(self, callback: Callable[[str], None]) -> None:
        self._on_digit = callback
        while self._early:
            callback(self._early.popleft())

    async def connected(self) -> bool:
        """Wait until both hear each other, a telephone also until it is answered; False if the call ended
        before. Nothing said earlier reaches the caller."""
        await self._reached.wait()
        return not self._ending.over

    async def transfer(self, target: str) -> None:
        if not self.telephone:
            raise TransferFailed("only a telephone call can be handed over")
        with self._ending.handing_over():
            await self._switchboard.transfer(self.identity, target)

    async def ended(self) -> str:
        return await self._ending.wait()

    def hang_up(self, why: str) -> None:
        self._ending.end(why)

    def _over(self) -> None:
        self._reached.set()  # nobody waits for that any more
        self.audio.close()

    def look(self) -> None:
        """See what has become of the room; called at every change, so that no order of events matters."""
        if self._caller is None:
            self._caller = next(filter(self._is_ours, self.room.remote_participants.values()), None)
        if self._caller is None or self._ending.over:
            return
        status = self._caller.attributes.get(STATUS, "active" if self.telephone else "")
        if self.telephone and status == "hangup":
            self._ending.left("the caller hung up")
            return
        self._listen(self._caller)
        if self._listening and self._heard and (not self.telephone or status == "active"):
            self._call = _who(self._caller, outbound=self._outbound)
            self._reached.set()

    def _is_ours(self, participant: rtc.RemoteParticipant) -> bool:
        if self._wanted is not None:
            return participant.identity == self._wanted
        return participant.kind in CALLERS

    def _listen(self, caller: rtc.RemoteParticipant) -> None:
        """Hear the caller's microphone; a new track, as after a reconnect, takes the old one's place."""
        for publication in caller.track_publications.values():
            track = publication.track
            if isinstance(track, rtc.RemoteAudioTrack) and publication.source != _SCREEN:
                if self._listening and self._listening[0] == track.sid:
                    return
                if self._listening:
                    self._listening[1].cancel()
                hearing = asyncio.create_task(self._hear(track), name="caller's audio")
                self._listening = (track.sid, hearing)
                return

    async def _hear(self, track: rtc.RemoteAudioTrack) -> None:
        stream = rtc.AudioStream.from_track(
            track=track, sample_rate=HEARING_RATE, num_channels=1, frame_size_ms=BLOCK_MS
        )
        try:
            async for event in stream:
                if self._reached.is_set():  # else it is a telephone's ringing
                    self.audio.push(mono(event.frame))
        finally:
            await stream.aclose()

    async def send(self, source: rtc.AudioSource) -> None:
        """Feed the track until cancelled; the source takes a block every 20 ms, which paces the playout."""
        try:
            while True:
                pcm = self.playout.read(BLOCK)
                await source.capture_frame(rtc.AudioFrame(bytes_of(pcm), RATE, 1, len(pcm)))
        except Exception:  # a call's outermost frame
            log.exception("a call's audio failed")
            self.hang_up("the agent failed")

    async def leave(self) -> None:
        """Stop hearing, and hang up a telephone that is still there: its caller would be left in silence."""
        self.hang_up("the agent hung up")
        if self._listening:
            self._listening[1].cancel()
            await asyncio.gather(self._listening[1], return_exceptions=True)
        if self.telephone and self.identity in self.room.remote_participants:
            await self._switchboard.remove(self.identity)

    # what the room tells

    def subscribed(self, _: rtc.Track) -> None:
        self._heard = True
        self.look()

    def left(self, participant: rtc.RemoteParticipant) -> None:
        if self._caller is not None and participant.identity == self._caller.identity:
            reason = participant.disconnect_reason
            self._ending.left(_GONE.get(reason or 0, "the caller's connection was lost"))

    def lost(self, _: object) -> None:
        self.hang_up("the room's connection was lost")

    def pressed(self, tone: rtc.SipDTMF) -> None:
        self.look()
        if self._caller is None or tone.participant is None or tone.digit not in DIGITS:
            return
        if tone.participant.identity != self._caller.identity:
            return
        if self._on_digit:
            self._on_digit(tone.digit)
        else:
            self._early.append(tone.digit)


@asynccontextmanager
async def answered(
    room: rtc.Room, switchboard: Switchboard, dial: Outbound | None = None
) -> AsyncIterator[RoomCall]:
    """The call of the first caller in a room that is connected, or the one that `dial` places.

    Leaving the block ends it. An outbound call that nobody takes is over at once.
    """
    call = RoomCall(room, switchboard, dial.identity if dial else None, outbound=dial is not None)
    told = _listeners(call)
    for event, listener in told:
        room.on(event, listener)
    source = rtc.AudioSource(RATE, 1, queue_size_ms=QUEUE_MS)
    tasks = [asyncio.create_task(call.send(source), name="agent's audio")]
    if dial is not None:
        tasks.append(asyncio.create_task(_place(call, switchboard, dial), name="outbound call"))
    try:
        track = rtc.LocalAudioTrack.create_audio_track(TRACK, source)
        options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
        await room.local_participant.publish_track(track, options)
        call.look()  # at what came before we listened
        yield call
    finally:
        for event, listener in told:
            room.off(event, listener)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await call.leave()
        await source.aclose()


async def _place(call: RoomCall, switchboard: Switchboard, dial: Outbound) -> None:
    try:
        await switchboard.dial(dial)
    except NotAnswered as error:
        call.hang_up(f"not answered: {error}")


def _listeners(call: RoomCall) -> list[tuple[EventTypes, Callable[..., None]]]:
    """What the room is to call at which event."""

    def look(*_: object) -> None:
        call.look()

    return [
        ("participant_connected", look),
        ("participant_attributes_changed", look),
        ("track_subscribed", look),
        ("local_track_subscribed", call.subscribed),
        ("participant_disconnected", call.left),
        ("sip_dtmf_received", call.pressed),
        ("disconnected", call.lost),
    ]


def _who(caller: rtc.RemoteParticipant, *, outbound: bool) -> CallInfo:
    told = caller.attributes
    theirs = told.get("sip.phoneNumber") or None
    ours = told.get("sip.trunkPhoneNumber") or None
    return CallInfo(
        id=told.get("sip.callID") or caller.sid,
        caller=ours if outbound else theirs,
        called=theirs if outbound else ours,
        outbound=outbound,
    )
