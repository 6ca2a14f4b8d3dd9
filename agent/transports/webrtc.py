"""One browser's call over WebRTC: a Playout sent, the microphone heard, messages both ways."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import aioice
import av
import numpy as np
from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.jitterbuffer import JitterBuffer
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from agent.media_io import QueueInput
from agent.playout import Playout
from tts_plugin.audio import Pcm
from tts_plugin.errors import BadRequest
from tts_plugin.resample import StreamResampler
from tts_plugin.timing import Clock

RATE: Final = 48_000  # Hz; any other makes aiortc's encoder resample and hold the first frame back
BLOCK: Final = 960  # samples; 40 ms would become two packets of one timestamp
BLOCK_S: Final = BLOCK / RATE
STALL_S = 0.1  # shorter lateness is caught up at once: the browser holds about that much
CONNECT_S = 10.0
LOST_S = 2.5  # a vanished browser shows in the ICE consent only after 35 s
CLOSE_S = 1.0
MAX_MESSAGE_CHARS = 16_384
MAX_UNSENT = 64  # messages kept until the channel opens

Json = dict[str, Any]  # a JSON object; its values are checked where they are read

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IceOptions:
    """How a call finds its way. servers: stun: and turn: URLs, none unless somebody asks for them (a
    silent one costs 5 s a call). loopback: offer 127.0.0.1 too; without another address it is anyway."""

    servers: tuple[str, ...] = ()
    username: str | None = None
    credential: str | None = None
    loopback: bool = False


class PlayoutTrack(MediaStreamTrack):
    """Sends a Playout (48 kHz): exactly 20 ms of mono s16 a frame, paced by `clock`, silence when idle.

    Timestamps strictly increase by whole frames. After a stall of the loop they jump with the clock
    and the playout goes on where it was. `recv` raises nothing, because the sender would end for ever.
    """

    kind = "audio"

    def __init__(self, playout: Playout, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        if playout.rate != RATE:
            raise ValueError(f"a WebRTC playout runs at {RATE} Hz, not at {playout.rate}")
        self._playout = playout
        self._clock = clock
        self._start_s: float | None = None
        self._pts = 0
        self.stalls = 0

    async def recv(self) -> av.AudioFrame:
        if self._start_s is None:
            self._start_s = self._clock()
        due_s = self._start_s + self._pts / RATE
        await asyncio.sleep(max(0.0, due_s - self._clock()))
        # after the sleep: that is where a blocked loop shows
        late_s = self._clock() - due_s
        if late_s >= STALL_S:
            self.stalls += 1
            self._pts += int(late_s / BLOCK_S) * BLOCK
        frame = av.AudioFrame.from_ndarray(self._block().reshape(1, BLOCK), format="s16", layout="mono")
        frame.sample_rate = RATE
        frame.time_base = Fraction(1, RATE)
        frame.pts = self._pts
        self._pts += BLOCK
        return frame

    def _block(self) -> Pcm:
        try:
            return self._playout.read(BLOCK)
        except Exception:  # a call's outermost frame
            log.exception("the playout failed; sending silence")
            return np.zeros(BLOCK, dtype=np.int16)


class WebRtcCall:
    """What the agent's side holds of a call; made by `answered`.

    playout: what is sent, mono 48 kHz. audio: the caller's microphone, mono 48 kHz (nothing arrives
    from a page without one). answer: the SDP for the browser.
    """

    def __init__(self, *, clock: Clock) -> None:
        self.playout = Playout(RATE)
        self.audio = QueueInput(RATE)
        self.answer = ""
        self.mic_muted = False
        self.track = PlayoutTrack(self.playout, clock=clock)
        self._clock = clock
        self._seen_s = clock()
        self._channel: RTCDataChannel | None = None
        self._unsent: deque[str] = deque(maxlen=MAX_UNSENT)
        self._on_message: Callable[[Json], None] | None = None
        self._unread: deque[Json] = deque(maxlen=MAX_UNSENT)
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self.ended_because = ""

    @property
    def now_ms(self) -> float:
        """The clock that answers the page's pings, so that it can tell when something was sent."""
        return round(self._clock() * 1000, 3)

    def send(self, message: Mapping[str, object]) -> None:
        """Tell the page; never blocks. Kept until the channel opens, dropped after the call."""
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        if self._channel is not None and self._channel.readyState == "open":
            self._channel.send(text)
        elif not self._ended.is_set():
            self._unsent.append(text)

    def on_message(self, callback: Callable[[Json], None]) -> None:
        """Call `callback` with every message of the page that is not the transport's own."""
        self._on_message = callback
        while self._unread:
            callback(self._unread.popleft())

    async def connected(self) -> bool:
        """Wait until audio flows; False if the call ended before."""
        await self._connected.wait()
        return not self._ended.is_set()

    async def ended(self) -> str:
        """Wait until the call is over: hung up, lost or never connected; returns why."""
        await self._ended.wait()
        return self.ended_because

    def hang_up(self, why: str) -> None:
        """End the call; the second reason is ignored."""
        if not self._ended.is_set():
            self.ended_because = why
            self._ended.set()
            self._connected.set()  # nobody waits for that any more
            self.audio.close()

    def _adopt(self, channel: RTCDataChannel) -> None:
        """Take the page's "ctl" channel; any other is ignored."""
        if channel.label != "ctl" or self._channel is not None:
            return
        self._channel = channel

        @channel.on("message")
        def heard(data: str | bytes) -> None:
            self._heard(data)

        @channel.on("close")
        def closed() -> None:
            self.hang_up("the page closed")

        while self._unsent:
            channel.send(self._unsent.popleft())

    def _note_state(self, state: str) -> None:
        """The peer connection's state has changed."""
        if state == "connected":
            self._seen_s = self._clock()
            self._connected.set()
        elif state in ("failed", "closed"):
            self.hang_up(f"the connection {state}")

    async def _listen(self, track: MediaStreamTrack) -> None:
        """Take every frame of the caller's track until it ends."""
        resampler: StreamResampler | None = None
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            self._seen_s = self._clock()
            if not isinstance(frame, av.AudioFrame):
                continue
            pcm = mono(frame)
            if resampler is None or resampler.rate_in != frame.sample_rate:
                resampler = StreamResampler(frame.sample_rate, RATE, "LQ")
            pcm = resampler.push(pcm)
            self.audio.push(np.zeros_like(pcm) if self.mic_muted else pcm)

    async def _watch(self) -> None:
        """End the call if it doesn't connect in time, or if nothing at all comes from the browser.

        A call without a microphone has no RTP; the page's pings, one a second, then show life.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.connected()
        except TimeoutError:
            self.hang_up(f"no connection within {CONNECT_S:.0f} s")
        while not self._ended.is_set():
            silent_s = self._clock() - self._seen_s
            if silent_s >= LOST_S:
                self.hang_up(f"nothing heard from the browser for {LOST_S} s")
            await asyncio.sleep(LOST_S - silent_s if silent_s < LOST_S else 0)

    async def _farewell(self) -> None:
        """Tell the page why it is over, and give that a moment to leave."""
        if self._channel is None or self._channel.readyState != "open":
            return
        self._channel.send(json.dumps({"type": "ended", "why": self.ended_because}))
        for _ in range(20):
            if self._channel.bufferedAmount == 0:
                return
            await asyncio.sleep(0.01)

    def _heard(self, data: str | bytes) -> None:
        self._seen_s = self._clock()
        try:
            message = parsed(data)
            self._take(message)
        except BadRequest as error:
            self.send({"type": "error", "code": error.code, "message": str(error)})
        except Exception:  # a call's outermost frame
            log.exception("a message of the page failed")
            self.send({"type": "error", "code": "internal", "message": "that did not work; see the log"})

    def _take(self, message: Json) -> None:
        match message:
            case {"type": "ping", **rest}:
                self.send({"type": "pong", "t": rest.get("t"), "at": self.now_ms})
            case {"type": "mic", "muted": bool(muted)}:
                self.mic_muted = muted
            case {"type": "bye"}:
                self.hang_up("hung up")
            case _ if self._on_message is not None:
                self._on_message(message)
            case _:
                self._unread.append(message)


@asynccontextmanager
async def answered(
    offer: str, ice: IceOptions | None = None, *, clock: Clock = time.monotonic
) -> AsyncIterator[WebRtcCall]:
    """Answer a browser's offer (SDP with its candidates in it); leaving the block ends the call within 1 s.

    Raises BadRequest if the offer can't be used.
    """
    options = ice or IceOptions()
    pc = RTCPeerConnection(RTCConfiguration(iceServers=_ice_servers(options)))
    call = WebRtcCall(clock=clock)
    tracks: list[MediaStreamTrack] = []
    tasks: list[asyncio.Task[None]] = []
    pc.on("track", tracks.append)
    pc.on("datachannel", call._adopt)
    pc.on("connectionstatechange", lambda: call._note_state(pc.connectionState))
    try:
        call.answer = await _negotiated(pc, offer, call.track, options)
        tasks.append(asyncio.create_task(call._watch(), name="call watchdog"))
        # an unread track queues its frames without bound, so every one is read
        tasks += [asyncio.create_task(call._listen(track), name="call microphone") for track in tracks]
        yield call
    finally:
        call.hang_up("ended by the agent")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _closed(pc, call)


async def _negotiated(pc: RTCPeerConnection, offer: str, track: PlayoutTrack, ice: IceOptions) -> str:
    try:
        await pc.setRemoteDescription(RTCSessionDescription(sdp=without_mdns(offer), type="offer"))
    except Exception as error:  # aiortc raises whatever its parser stumbles over
        raise BadRequest(f"the offer is not a usable SDP: {error or type(error).__name__}") from error
    audio = [transceiver for transceiver in pc.getTransceivers() if transceiver.kind == "audio"]
    if not audio or pc.sctp is None:
        raise BadRequest('the offer needs an audio track (or a recvonly transceiver) and the channel "ctl"')
    pc.addTrack(track)
    for transceiver in audio:
        shorten_jitter_buffer(transceiver.receiver)
    ends = [transceiver.receiver.transport for transceiver in pc.getTransceivers()] + [pc.sctp.transport]
    for connection in {end.transport.iceGatherer._connection for end in ends}:
        offer_loopback(connection, always=ice.loopback)
    await pc.setLocalDescription(await pc.createAnswer())
    return str(pc.localDescription.sdp)


async def _closed(pc: RTCPeerConnection, call: WebRtcCall) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await call._farewell()
            await pc.close()
    except TimeoutError:
        log.warning("a peer connection did not close within %s s", CLOSE_S)


def mono(frame: av.AudioFrame) -> Pcm:
    """A received frame (s16, packed) as mono samples at its own rate; two channels are averaged."""
    samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels))
    if samples.shape[1] == 1:
        return np.ascontiguousarray(samples[:, 0], dtype=np.int16)
    mixed: Pcm = (samples.astype(np.int32).sum(axis=1) // samples.shape[1]).astype(np.int16)
    return mixed


def parsed(data: str | bytes) -> Json:
    """One message of the page: a JSON object with a string "type", or BadRequest."""
    if not isinstance(data, str):
        raise BadRequest("a message is JSON text, not bytes")
    if len(data) > MAX_MESSAGE_CHARS:
        raise BadRequest(f"a message has at most {MAX_MESSAGE_CHARS} characters, this one {len(data)}")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest("a message is a JSON object") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadRequest('a message is a JSON object with a "type"')
    return message


def without_mdns(offer: str) -> str:
    """The offer without its ".local" candidates: aioice asks the network for them in vain for 1 s.

    Nothing is lost: the browser knows our addresses and its checks tell us its own. So its list has no
    end either; without candidates before it, aioice would take an end for "nobody there" and offer none.
    """
    return re.sub(r"a=(candidate:[^\r\n]*\.local [^\r\n]*|end-of-candidates)\r?\n", "", offer)


# aiortc and aioice have no setting for these two, so private names are touched here and nowhere else;
# aiortc is pinned and the tests fail when the names move.

_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"


def shorten_jitter_buffer(receiver: RTCRtpReceiver) -> None:
    """20 ms of microphone held back instead of 80, and 40 ms instead of 280 after a lost packet."""
    if not isinstance(getattr(receiver, _JITTER_BUFFER, None), JitterBuffer):
        log.warning("this aiortc hides its jitter buffer: the microphone is 60 ms later than it could be")
        return
    setattr(receiver, _JITTER_BUFFER, JitterBuffer(capacity=4, prefetch=1))


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


def _ice_servers(options: IceOptions) -> list[RTCIceServer]:
    if not options.servers:
        return []
    return [RTCIceServer(list(options.servers), username=options.username, credential=options.credential)]
