"""The far end of an AudioSocket call for the tests: an Asterisk that plays in real time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import numpy as np

from agent.line import MediaLine
from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.transports.audiosocket import AudioSocketServer, listening
from agent.transports.audiosocket_wire import HANGUP, HEADER, RATES, audio, digit, hello
from agent.transports.pacer import Pacer
from tts_plugin.audio import Pcm, samples_of, silence
from tts_plugin.resample import StreamResampler

BLOCK_S = 0.02


@dataclass
class Asterisk:
    """Connects as AudioSocket() or the channel driver does; call `run` in a task of its own.

    Everything that Asterisk would hang up for or that would sound wrong is in `complaints`. dribble: every
    byte goes out in a packet of its own. talks: whether the caller's telephone sends anything.
    """

    port: int
    rate: int = 8000
    dribble: bool = False
    talks: bool = True
    uuid: UUID = field(default_factory=uuid4)
    blocks: list[Pcm] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)  # by the agent's side
    mic: deque[Pcm] = field(default_factory=deque)

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        await self.send(hello(self.uuid))

    async def run(self) -> None:
        """Speak and listen until the agent's side hangs up or the task is cancelled."""
        speaking = asyncio.create_task(self._speak())
        try:
            await self._listen()
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def send(self, data: bytes) -> None:
        if not self.dribble:
            self._writer.write(data)
            return
        for byte in data:
            self._writer.write(bytes([byte]))
            await asyncio.sleep(0)

    async def press(self, key: str) -> None:
        await self.send(digit(key))

    def say(self, pcm: Pcm) -> None:
        """At the call's rate, from now on."""
        step = round(BLOCK_S * self.rate)
        self.mic.extend(pcm[at : at + step] for at in range(0, len(pcm), step))

    @property
    def heard(self) -> Pcm:
        return self.said(0)

    def said(self, start: int) -> Pcm:
        """What it was sent from block `start` on."""
        return np.concatenate([np.zeros(0, np.int16), *self.blocks[start:]])

    async def hang_up(self, *, politely: bool = True) -> None:
        if politely:
            self._writer.write(HANGUP)
        self._writer.close()

    async def _speak(self) -> None:
        pacer = Pacer()
        while self.talks:
            await pacer.beat()
            pcm = self.mic.popleft() if self.mic else silence(BLOCK_S, self.rate)
            await self.send(audio(pcm, self.rate))

    async def _listen(self) -> None:
        try:
            while True:
                kind, length = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                payload = await self._reader.readexactly(length)
                if kind == 0:
                    self.hung_up.set()
                    return
                self._play(kind, payload)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if getattr(error, "partial", b""):
                self.complaints.append("the connection ended in the middle of a message")
            self.hung_up.set()

    def _play(self, kind: int, payload: bytes) -> None:
        self.arrived_s.append(time.monotonic())
        rate = RATES.get(kind)
        if rate is None:
            self.complaints.append(f"kind 0x{kind:02x} is neither audio nor a hang-up")
        elif len(payload) != 2 * round(BLOCK_S * rate):
            self.complaints.append(f"{len(payload)} bytes are not 20 ms at {rate} Hz")
        elif rate == self.rate:
            self.blocks.append(samples_of(payload))
        elif any(payload):
            self.complaints.append(f"sound at {rate} Hz on a call at {self.rate} Hz")


@asynccontextmanager
async def calling(server: AudioSocketServer, far: Asterisk | None = None) -> AsyncIterator[Asterisk]:
    """An Asterisk that is connected and runs; gone when the block is left."""
    far = far or Asterisk(server.port)
    await far.connect()
    running = asyncio.create_task(far.run())
    try:
        yield far
    finally:
        await far.hang_up()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert far.complaints == []


@asynccontextmanager
async def waiting(port: int = 0) -> AsyncIterator[tuple[AudioSocketServer, asyncio.Queue[MediaLine]]]:
    """A listener whose lines come out of a queue and last until they end."""
    lines: asyncio.Queue[MediaLine] = asyncio.Queue()

    async def answer(line: MediaLine) -> None:
        lines.put_nowait(line)
        await line.ended()

    async with listening("127.0.0.1", port, answer) as server:
        yield server, lines


class PhoneCall:
    """A whole call as the transports' conformance suite wants it."""

    def __init__(self, line: MediaLine, far: Asterisk) -> None:
        self.rate = far.rate
        self.output = PlayoutOutput(line.playout)
        self.input: QueueInput = line.audio
        self.controls: list[Control] = []
        self.output.on_control(self.controls.append)
        self._far = far

    def heard(self) -> Pcm:
        return self._far.heard

    def speak(self, pcm: Pcm) -> None:
        there = StreamResampler(16_000, self.rate)
        self._far.say(np.concatenate([there.push(pcm), there.flush()]))

    async def hang_up(self) -> None:
        await self._far.hang_up()


@asynccontextmanager
async def a_phone_call(rate: int = 8000, *, dribble: bool = False) -> AsyncIterator[PhoneCall]:
    """A connected call, both ends of it."""
    async with waiting() as (server, lines):
        async with calling(server, Asterisk(server.port, rate, dribble)) as far:
            line = await asyncio.wait_for(lines.get(), 5)
            yield PhoneCall(line, far)
