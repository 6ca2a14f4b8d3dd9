"""The far end of a WebRTC call for the tests: an aiortc peer that hears, speaks and is told things."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import av
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.playout import Playout
from agent.transports.ice import IceOptions, ice_connections, offer_loopback
from agent.transports.track import RATE, PlayoutTrack
from agent.transports.webrtc import WebRtcCall, answered, mono
from tts_plugin.audio import Pcm
from tts_plugin.resample import StreamResampler

LOOPBACK = IceOptions(loopback=True)


class Browser:
    """The far end: an aiortc peer with a "ctl" channel that records what it hears and is told."""

    def __init__(self, mic: MediaStreamTrack | None) -> None:
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.pc.createDataChannel("ctl")
        self.opened = asyncio.Event()
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.frames: list[av.AudioFrame] = []
        self.arrived = asyncio.Event()
        self._ear: asyncio.Task[None] | None = None
        if mic is None:
            self.pc.addTransceiver("audio", direction="recvonly")
        else:
            self.pc.addTrack(mic)
        for connection in ice_connections(self.pc):
            offer_loopback(connection, always=True)
        self.channel.on("open", self.opened.set)
        self.channel.on("message", lambda data: self.messages.put_nowait(json.loads(data)))
        self.pc.on("track", self._listen)

    def _listen(self, track: MediaStreamTrack) -> None:
        self._ear = asyncio.get_running_loop().create_task(self._hear(track))

    async def _hear(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, av.AudioFrame)
            self.frames.append(frame)
            self.arrived.set()

    async def offer(self) -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return self.pc.localDescription.sdp

    async def accept(self, answer: str) -> None:
        await self.pc.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))

    async def hears(self, wanted: Callable[[list[av.AudioFrame]], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not wanted(self.frames):
                self.arrived.clear()
                await self.arrived.wait()

    async def told(self, kind: str, within_s: float = 5.0) -> dict[str, Any]:
        async with asyncio.timeout(within_s):
            while (message := await self.messages.get())["type"] != kind:
                pass
        return message

    async def close(self) -> None:
        await self.pc.close()
        if self._ear:
            await self._ear


@asynccontextmanager
async def a_call(mic: MediaStreamTrack | None = None) -> AsyncIterator[tuple[WebRtcCall, Browser]]:
    """A call that is connected, its channel open."""
    browser = Browser(mic)
    try:
        async with answered(await browser.offer(), LOOPBACK) as call:
            await browser.accept(call.answer)
            async with asyncio.timeout(5):
                assert await call.connected()
                await browser.opened.wait()
            yield call, browser
    finally:
        await browser.close()


class SpeakingBrowser:
    """A whole call as the transports' conformance suite wants it."""

    rate = RATE

    def __init__(self, call: WebRtcCall, browser: Browser, mic: Playout) -> None:
        self.output = PlayoutOutput(call.playout)
        self.input: QueueInput = call.audio
        self.controls: list[Control] = []
        self.output.on_control(self.controls.append)
        self._browser = browser
        self._mic = mic

    def heard(self) -> Pcm:
        return np.concatenate([np.zeros(0, np.int16), *(mono(frame) for frame in self._browser.frames)])

    def speak(self, pcm: Pcm) -> None:
        up = StreamResampler(16_000, RATE)
        self._mic.put(up.push(pcm))
        self._mic.put(up.flush())
        self._mic.end()

    async def hang_up(self) -> None:
        await self._browser.close()


@asynccontextmanager
async def a_speaking_browser() -> AsyncIterator[SpeakingBrowser]:
    """A connected call, both ends of it."""
    mic = Playout(RATE)
    async with a_call(PlayoutTrack(mic)) as (call, browser):
        await browser.hears(lambda frames: len(frames) > 2)
        yield SpeakingBrowser(call, browser, mic)
