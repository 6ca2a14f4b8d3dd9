"""One browser's call over WebRTC: a Playout sent, the microphone heard, messages both ways."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import av
import numpy as np
from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.jitterbuffer import JitterBuffer
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from agent.media_io import QueueInput
from agent.playout import Playout
from agent.transports.ice import IceOptions, ice_connections, ice_servers, offer_loopback, without_mdns
from agent.transports.track import RATE, PlayoutTrack
from tts_plugin.audio import Pcm, mixed_down
from tts_plugin.errors import BadRequest
from tts_plugin.resample import StreamResampler
from tts_plugin.timing import Clock

CONNECT_S = 10.0
LOST_S = 2.5  # a vanished browser shows in the ICE consent only after 35 s
CLOSE_S = 1.0
FAREWELL_S = 0.2  # of these, for the last message to leave
MAX_MESSAGE_CHARS = 16_384
MAX_UNSENT = 64  # messages kept until the channel opens

Json = dict[str, Any]  # a JSON object; its values are checked where they are read

log = logging.getLogger(__name__)


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
        text = json.dumps(message, separators=(",", ":"))  # ASCII: a lone surrogate has no UTF-8
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

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A task of the call is over; one that failed ends the call, which would be deaf without it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            self.hang_up("the agent failed")

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
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        left = asyncio.Event()
        channel.on("bufferedamountlow", left.set)
        channel.send(json.dumps({"type": "ended", "why": self.ended_because}))
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                if channel.bufferedAmount:
                    await left.wait()

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
    pc = RTCPeerConnection(RTCConfiguration(iceServers=ice_servers(options)))
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
        for task in tasks:
            task.add_done_callback(call._note_end)
        yield call
    finally:
        call.hang_up("the agent hung up")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _closed(pc, call)


async def _negotiated(pc: RTCPeerConnection, offer: str, track: PlayoutTrack, ice: IceOptions) -> str:
    try:
        await pc.setRemoteDescription(RTCSessionDescription(sdp=without_mdns(offer), type="offer"))
        audio = [transceiver for transceiver in pc.getTransceivers() if transceiver.kind == "audio"]
        if not audio or pc.sctp is None:
            raise BadRequest(
                'the offer needs an audio track (or a recvonly transceiver) and the channel "ctl"'
            )
        pc.addTrack(track)
        for transceiver in audio:
            shorten_jitter_buffer(transceiver.receiver)
        for connection in ice_connections(pc):
            offer_loopback(connection, always=ice.loopback)
        await pc.setLocalDescription(await pc.createAnswer())
    except (BadRequest, OSError):
        raise
    except Exception as error:  # aiortc raises whatever it stumbles over, some of it only as it answers
        raise BadRequest(f"the offer is not a usable SDP: {error or type(error).__name__}") from error
    return str(pc.localDescription.sdp)


async def _closed(pc: RTCPeerConnection, call: WebRtcCall) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await call._farewell()
            await pc.close()
    except TimeoutError:
        log.warning("a peer connection did not close within %s s", CLOSE_S)
    except Exception as error:  # aiortc cannot close what a bad offer left half built
        log.warning("a peer connection did not close cleanly: %r", error)


def mono(frame: av.AudioFrame) -> Pcm:
    """A received frame (s16, packed) as mono samples at its own rate; two channels are averaged."""
    samples = frame.to_ndarray().reshape(-1).astype(np.int16, copy=False)
    return mixed_down(samples, len(frame.layout.channels))


def parsed(data: str | bytes) -> Json:
    """One message of the page: a JSON object with a string "type", or BadRequest."""
    if not isinstance(data, str):
        raise BadRequest("a message is JSON text, not bytes")
    if len(data) > MAX_MESSAGE_CHARS:
        raise BadRequest(f"a message has at most {MAX_MESSAGE_CHARS} characters, this one {len(data)}")
    try:
        message = json.loads(data)
        json.dumps(message, ensure_ascii=False).encode()  # "\\ud800" is read, but is no text to pass on
    except (ValueError, RecursionError) as error:
        raise BadRequest("a message is a JSON object") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadRequest('a message is a JSON object with a "type"')
    return message


# aiortc has no setting for it; aiortc is pinned, and the tests fail when the name moves
_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"


def shorten_jitter_buffer(receiver: RTCRtpReceiver) -> None:
    """20 ms of microphone held back instead of 80, and 40 ms instead of 280 after a lost packet."""
    if not isinstance(getattr(receiver, _JITTER_BUFFER, None), JitterBuffer):
        log.warning("this aiortc hides its jitter buffer: the microphone is 60 ms later than it could be")
        return
    setattr(receiver, _JITTER_BUFFER, JitterBuffer(capacity=4, prefetch=1))
