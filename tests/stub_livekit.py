"""A stand-in for a LiveKit server, on loopback: signalling, the calls of its API that are used, job dispatch.

One agent and one caller a room; media go through aiortc. It checks no tokens and knows no second caller: it
is there so that the real rtc.Room, its Opus and its RTP run in a test.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import av
import numpy as np
from aiohttp import web
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from aiortc.sdp import candidate_from_sdp
from google.protobuf.message import Message
from livekit import api
from livekit.protocol import agent, models, room, rtc, sip

from agent.playout import Playout
from agent.transports.ice import ice_connections, offer_loopback
from agent.transports.track import RATE, PlayoutTrack
from agent.transports.webrtc import mono, shorten_jitter_buffer
from tts_plugin.audio import Pcm
from tts_plugin.resample import StreamResampler

KEY, SECRET = "devkey", "a secret of the tests, 32 bytes at least"
AGENT, CALLER, MIC = "PA_agent", "PA_caller", "TR_mic"
KIND = models.ParticipantInfo.Kind
GONE = models.ParticipantInfo.State.DISCONNECTED


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """An answer of the API that is an error."""

    code: str
    message: str
    meta: dict[str, str] = field(default_factory=dict)


class Ear:
    """What the caller has been given to play, with the times of arrival."""

    def __init__(self) -> None:
        self.blocks: list[tuple[float, Pcm]] = []

    def take(self, frame: av.AudioFrame) -> None:
        self.blocks.append((time.monotonic(), mono(frame)))

    def heard(self) -> Pcm:
        """Everything so far, 48 kHz."""
        return np.concatenate([np.zeros(0, np.int16), *(pcm for _, pcm in self.blocks)])


class StubRoom:
    """A room with one caller, whom the test moves about. subscribed: whether they get the agent's track."""

    def __init__(
        self,
        name: str,
        *,
        kind: int = KIND.STANDARD,
        attributes: dict[str, str] | None = None,
        here: bool = True,
    ) -> None:
        self.name = name
        self.kind = kind
        self.identity = "caller"
        self.attributes = dict(attributes or {})
        self.ear = Ear()
        self.mic = Playout(RATE)
        self.texts: list[models.DataPacket] = []
        self.subscribed = asyncio.Event()
        self.subscribed.set()
        self.agent_connected = asyncio.Event()
        self.agent_left = asyncio.Event()
        self._here = here
        self._published = False
        self._socket: web.WebSocketResponse | None = None
        self._pub = self._sub = None  # type: RTCPeerConnection | None
        self._keys: RTCDataChannel | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # what a test does

    def speak(self, pcm: Pcm, rate: int = 16_000) -> None:
        """The caller says this from now on, in real time."""
        up = StreamResampler(rate, RATE)
        self.mic.put(up.push(pcm))
        self.mic.put(up.flush())
        self.mic.end()

    async def join(self) -> None:
        self._here = True
        await self._tell_of_caller()

    async def publish(self) -> None:
        """The caller's microphone is there."""
        self._published = True
        await self._tell_of_caller()
        await self._offer_mic()

    async def set_status(self, status: str) -> None:
        self.attributes["sip.callStatus"] = status
        await self._tell_of_caller()

    async def press(self, digit: str) -> None:
        assert self._keys is not None
        codes = "0123456789*#ABCD"
        tone = models.SipDTMF(code=codes.index(digit) if digit in codes else 99, digit=digit)
        packet = models.DataPacket(participant_identity=self.identity, sip_dtmf=tone)
        self._keys.send(packet.SerializeToString())
        await asyncio.sleep(0)

    async def leave(self, reason: int = models.DisconnectReason.CLIENT_INITIATED) -> None:
        self._here = False
        info = self._caller()
        info.state = GONE
        info.disconnect_reason = reason  # type: ignore[assignment]  # the enum's own int
        await self._send(update=rtc.ParticipantUpdate(participants=[info]))

    # what the server does

    def participants(self) -> list[models.ParticipantInfo]:
        agents = [_participant(AGENT, "agent", KIND.AGENT)] if self.agent_connected.is_set() else []
        return agents + ([self._caller()] if self._here else [])

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._socket = socket
        self._pub = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._sub = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._pub.on("track", self._agents_track)
        self._pub.on("datachannel", self._agents_channel)
        await self._send(
            join=rtc.JoinResponse(
                room=models.Room(sid=f"RM_{self.name}", name=self.name),
                participant=_participant(AGENT, "agent", KIND.AGENT),
                other_participants=[self._caller()] if self._here else [],
                server_info=models.ServerInfo(version="1.9.0", protocol=16),
                server_version="1.9.0",
                ping_timeout=15,
                ping_interval=5,
            )
        )
        self.agent_connected.set()
        if self._published:
            await self._offer_mic()
        try:
            async for message in socket:
                if message.type == aiohttp.WSMsgType.BINARY:
                    await self._signal(rtc.SignalRequest.FromString(message.data))
        finally:
            self.agent_left.set()
            await self.close()
        return socket

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in (self._pub, self._sub):
            if connection is not None:
                await connection.close()
        if self._socket is not None:
            await self._socket.close()

    async def _signal(self, request: rtc.SignalRequest) -> None:
        assert self._pub is not None
        assert self._sub is not None
        match request.WhichOneof("message"):
            case "offer":
                offer = request.offer
                await self._pub.setRemoteDescription(RTCSessionDescription(offer.sdp, offer.type))
                for connection in ice_connections(self._pub):
                    offer_loopback(connection, always=True)
                await self._pub.setLocalDescription(await self._pub.createAnswer())
                sdp = self._pub.localDescription.sdp
                await self._send(answer=rtc.SessionDescription(type="answer", sdp=sdp, id=offer.id))
            case "answer":
                await self._sub.setRemoteDescription(RTCSessionDescription(request.answer.sdp, "answer"))
            case "trickle":
                await self._trickle(request.trickle)
            case "add_track":
                asked = request.add_track
                track = models.TrackInfo(
                    sid="TR_agent", type=asked.type, name=asked.name, source=asked.source
                )
                await self._send(track_published=rtc.TrackPublishedResponse(cid=asked.cid, track=track))
            case "ping_req":
                sent = request.ping_req.timestamp
                await self._send(
                    pong_resp=rtc.Pong(last_ping_timestamp=sent, timestamp=int(time.time() * 1000))
                )
            case "leave":
                assert self._socket is not None
                await self._socket.close()

    async def _trickle(self, trickle: rtc.TrickleRequest) -> None:
        told = json.loads(trickle.candidateInit)
        connection = self._pub if trickle.target == rtc.SignalTarget.PUBLISHER else self._sub
        assert connection is not None
        if told.get("candidate") and connection.remoteDescription is not None:
            candidate = candidate_from_sdp(told["candidate"].split(":", 1)[1])
            candidate.sdpMid, candidate.sdpMLineIndex = told.get("sdpMid"), told.get("sdpMLineIndex")
            await connection.addIceCandidate(candidate)

    async def _offer_mic(self) -> None:
        if self._sub is None or self._keys is not None:
            return
        self._keys = self._sub.createDataChannel("_reliable")
        # an SDK learns from the stream's id whose track it is
        self._sub._RTCPeerConnection__stream_id = f"{CALLER}|{MIC}"  # type: ignore[attr-defined]
        self._sub.addTrack(PlayoutTrack(self.mic))
        for connection in ice_connections(self._sub):
            offer_loopback(connection, always=True)
        await self._sub.setLocalDescription(await self._sub.createOffer())
        await self._send(offer=rtc.SessionDescription(type="offer", sdp=self._sub.localDescription.sdp, id=1))

    def _agents_track(self, track: MediaStreamTrack) -> None:
        assert self._pub is not None
        for transceiver in self._pub.getTransceivers():
            shorten_jitter_buffer(transceiver.receiver)
        self._keep(self._listen(track))
        self._keep(self._subscribe())

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, av.AudioFrame)
            self.ear.take(frame)

    async def _subscribe(self) -> None:
        await self.subscribed.wait()
        await self._send(track_subscribed=rtc.TrackSubscribed(track_sid="TR_agent"))

    def _agents_channel(self, channel: RTCDataChannel) -> None:
        @channel.on("message")
        def take(data: bytes | str) -> None:
            if isinstance(data, bytes):
                self.texts.append(models.DataPacket.FromString(data))

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _caller(self) -> models.ParticipantInfo:
        info = _participant(CALLER, self.identity, self.kind)
        info.attributes.update(self.attributes)
        if self._published:
            source = models.TrackSource.MICROPHONE
            info.tracks.append(
                models.TrackInfo(sid=MIC, type=models.TrackType.AUDIO, name="mic", source=source)
            )
        return info

    async def _tell_of_caller(self) -> None:
        await self._send(update=rtc.ParticipantUpdate(participants=[self._caller()]))

    async def _send(self, **message: Any) -> None:  # the fields of SignalResponse
        if self._socket is not None and not self._socket.closed:
            await self._socket.send_bytes(rtc.SignalResponse(**message).SerializeToString())


class StubServer:
    """The server: its rooms, what its API was asked for, and the worker that has registered."""

    def __init__(self, port: int) -> None:
        self.url = f"ws://127.0.0.1:{port}"
        self.rooms: dict[str, StubRoom] = {}
        self.asked: list[Message] = []
        self.answers = asyncio.Event()  # cleared: the API's answers wait
        self.answers.set()
        self.refusal: Refusal | None = None  # what the next call of the API is answered
        self.on_dial: Callable[[sip.CreateSIPParticipantRequest], Awaitable[None]] | None = None
        self.registered = asyncio.Event()
        self.refused: list[tuple[str, bool]] = []  # rooms that the worker did not come to; whether nobody may
        self.loads: list[float] = []  # as the worker reports them
        self._worker: web.WebSocketResponse | None = None

    def add(self, stub: StubRoom) -> StubRoom:
        self.rooms[stub.name] = stub
        return stub

    def token(self, name: str) -> str:
        """What lets the agent into a room."""
        grants = api.VideoGrants(room_join=True, room=name)
        return api.AccessToken(KEY, SECRET).with_identity("agent").with_grants(grants).to_jwt()

    async def dispatch(self, name: str, metadata: str = "") -> None:
        """Give the worker a job in that room."""
        assert self._worker is not None
        job = agent.Job(id=f"AJ_{name}", room=models.Room(sid=f"RM_{name}", name=name), metadata=metadata)
        message = agent.ServerMessage(availability=agent.AvailabilityRequest(job=job))
        await self._worker.send_bytes(message.SerializeToString())

    async def serve_room(self, request: web.Request) -> web.StreamResponse:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        token = request.query.get("access_token") or bearer
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return await self.rooms[claims["video"]["room"]].serve(request)

    async def serve_worker(self, request: web.Request) -> web.WebSocketResponse:
        self._worker = socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for data in socket:
            message = agent.WorkerMessage.FromString(data.data)
            match message.WhichOneof("message"):
                case "register":
                    welcome = agent.RegisterWorkerResponse(worker_id="AW_1")
                    await socket.send_bytes(agent.ServerMessage(register=welcome).SerializeToString())
                    self.registered.set()
                case "update_worker" if message.update_worker.HasField("status"):
                    self.loads.append(message.update_worker.load)
                case "availability":
                    name = message.availability.job_id.removeprefix("AJ_")
                    if not message.availability.available:
                        self.refused.append((name, message.availability.terminate))
                        continue
                    given = agent.JobAssignment(
                        job=agent.Job(id=message.availability.job_id), url=self.url, token=self.token(name)
                    )
                    await socket.send_bytes(agent.ServerMessage(assignment=given).SerializeToString())
        return socket

    async def serve_api(self, request: web.Request) -> web.Response:
        kinds: dict[str, tuple[type[Message], Message]] = {
            "CreateSIPParticipant": (sip.CreateSIPParticipantRequest, sip.SIPParticipantInfo()),
            "TransferSIPParticipant": (
                sip.TransferSIPParticipantRequest,
                sip.TransferSIPParticipantResponse(
                    transfer_id="ST_1", status=sip.SIPTransferStatus.STS_TRANSFER_SUCCESSFUL
                ),
            ),
            "RemoveParticipant": (room.RoomParticipantIdentity, room.RemoveParticipantResponse()),
            "ListParticipants": (room.ListParticipantsRequest, room.ListParticipantsResponse()),
        }
        kind, answer = kinds[request.match_info["method"]]
        asked = kind()
        asked.ParseFromString(await request.read())
        if isinstance(asked, room.ListParticipantsRequest):
            there = room.ListParticipantsResponse(participants=self.rooms[asked.room].participants())
            return web.Response(body=there.SerializeToString(), content_type="application/protobuf")
        self.asked.append(asked)
        await self.answers.wait()
        if (refusal := self.refusal) is not None:
            self.refusal = None
            body = {"code": refusal.code, "msg": refusal.message, "meta": refusal.meta}
            return web.json_response(body, status=400)
        if isinstance(asked, sip.CreateSIPParticipantRequest) and self.on_dial:
            await self.on_dial(asked)
        if isinstance(asked, room.RoomParticipantIdentity) and asked.room in self.rooms:
            await self.rooms[asked.room].leave(models.DisconnectReason.PARTICIPANT_REMOVED)
        return web.Response(body=answer.SerializeToString(), content_type="application/protobuf")


@asynccontextmanager
async def stub_server() -> AsyncIterator[StubServer]:
    """A running server, which closes its rooms at the end."""
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    # the routes need the server, which needs the port
    server = StubServer(0)
    app.router.add_get("/rtc", server.serve_room)
    app.router.add_get("/agent", server.serve_worker)
    app.router.add_post("/twirp/{service}/{method}", server.serve_api)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        for stub in server.rooms.values():
            await stub.close()
        await runner.cleanup()


def _participant(sid: str, identity: str, kind: int) -> models.ParticipantInfo:
    may = models.ParticipantPermission(
        can_subscribe=True, can_publish=True, can_publish_data=True, can_update_metadata=True
    )
    return models.ParticipantInfo(
        sid=sid,
        identity=identity,
        state=models.ParticipantInfo.State.ACTIVE,
        kind=kind,  # type: ignore[arg-type]  # the enum's own int
        joined_at=int(time.time()),
        permission=may,
    )
