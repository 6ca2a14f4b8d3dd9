"""A real engine server on a free loopback port, and a client that keeps everything it receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from tts_plugin import wire
from tts_plugin.audio import AudioFrame, Pcm, samples_of
from tts_plugin.config import Settings, load_settings
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.server.app import create_app
from tts_plugin.server.run import http_server, listen_for
from tts_plugin.server.stream import Limits
from tts_plugin.voices import VoiceRegistry

WAIT_S = 10.0  # for anything that should come at once; generous, the machine may be busy

ServerMessage = wire.Started | wire.SegmentSpan | wire.Done | wire.Cancelled | wire.Error
LAST = (wire.Done, wire.Cancelled, wire.Error)


class ProbedTone(ToneEngine):
    """The tone engine, telling how many turns it speaks at this moment and how many samples it made."""

    def __init__(self, seconds_per_char: float = 0.06) -> None:
        super().__init__(seconds_per_char=seconds_per_char)
        self.speaking = 0
        self.samples = 0

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        self.speaking += 1
        try:
            async with aclosing(super().speak(turn, segments)) as frames:
                async for frame in frames:
                    self.samples += len(frame.pcm)
                    yield frame
        finally:
            self.speaking -= 1


def settings_of(engine: Mapping[str, Any] | None = None, server: Mapping[str, Any] | None = None) -> Settings:
    """The default settings with these laid over, nothing from the environment."""
    return load_settings(engine=engine, server=server, environ={})


def voices_for(folder: Path, engines: Mapping[str, str]) -> VoiceRegistry:
    """A registry with one voice an engine; engines: name -> language. Ids are the engines' names."""
    for name, language in engines.items():
        (folder / f"{name}.yaml").write_text(
            f"id: {name}\nengine: {name}\nlanguage: {language}\nlicence: Apache-2.0\n"
        )
    return VoiceRegistry([folder], tuple(engines))


@asynccontextmanager
async def running(
    settings: Settings | None = None,
    *,
    registry: VoiceRegistry | None = None,
    build: Callable[[str], Engine] | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[int]:
    """The server in this event loop; gives its port. build: makes its engines."""
    limits = limits or Limits()
    settings = settings or settings_of(engine={"voice": "tone"})
    app = create_app(settings, registry=registry, build=build, limits=limits)
    listener = listen_for(settings.server.model_copy(update={"port": 0}), limits.stall_s)
    server = http_server(app, settings)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, WAIT_S)
        listener.close()


@dataclass
class Heard:
    """What came for one context, in order."""

    messages: list[ServerMessage] = field(default_factory=list)
    chunks: list[tuple[int, bytes]] = field(default_factory=list)  # index of the first sample, audio

    @property
    def audio(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def pcm(self) -> Pcm:
        return samples_of(self.audio)

    @property
    def last(self) -> ServerMessage:
        return self.messages[-1]

    @property
    def is_over(self) -> bool:
        return bool(self.messages) and isinstance(self.last, LAST)

    @property
    def spans(self) -> list[wire.SegmentSpan]:
        return [message for message in self.messages if isinstance(message, wire.SegmentSpan)]


class Client:
    """One connection. Receives only while a method waits, so a test sees what came when."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: dict[int | None, Heard] = {}

    async def send(self, *messages: wire.Message | str | bytes) -> None:
        for message in messages:
            raw = message.model_dump_json() if isinstance(message, wire.Message) else message
            await self.socket.send(raw)

    async def say(self, context: int, text: str, **start: Any) -> None:
        """Open a context and give it its whole text."""
        await self.send(wire.Start(context=context, **start), wire.Text(context=context, text=text))
        await self.send(wire.End(context=context))

    async def receive(self) -> int | None:
        """Take one message; gives its context."""
        data = await asyncio.wait_for(self.socket.recv(), WAIT_S)
        if isinstance(data, bytes):
            context, sample, audio = wire.unpack_audio(data)
            heard = self.of(context)
            assert not heard.is_over, f"audio after {heard.last}"
            assert any(isinstance(message, wire.Started) for message in heard.messages)
            heard.chunks.append((sample, audio))
            return context
        message = wire.parse_server(data)
        heard = self.of(message.context)
        assert message.context is None or not heard.is_over, f"{message} after {heard.last}"
        heard.messages.append(message)
        return message.context

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            await self.receive()

    async def over(self, *contexts: int) -> Heard:
        """Receive until these contexts are over; gives what came for the first."""
        await self.until(lambda: all(self.of(context).is_over for context in contexts))
        return self.of(contexts[0])

    async def audio(self, context: int) -> None:
        """Receive until the context has one more piece of audio."""
        had = len(self.of(context).chunks)
        await self.until(lambda: len(self.of(context).chunks) > had)

    async def quiet(self, seconds: float = 0.2) -> None:
        """Take what still comes until nothing has for that long."""
        try:
            while True:
                async with asyncio.timeout(seconds):
                    await self.receive()
        except TimeoutError:
            pass

    async def error(self) -> wire.Error:
        """The next error that belongs to no context."""
        heard = self.of(None)
        had = len(heard.messages)
        await self.until(lambda: len(heard.messages) > had)
        message = heard.messages[had]
        assert isinstance(message, wire.Error)
        return message

    def of(self, context: int | None) -> Heard:
        return self.heard.setdefault(context, Heard())


@asynccontextmanager
async def client(port: int, **headers: str) -> AsyncIterator[Client]:
    """A connection to the server at that port."""
    url = f"ws://127.0.0.1:{port}{wire.PATH}"
    async with connect(
        url, additional_headers=headers, proxy=None, compression=None, close_timeout=0.2
    ) as socket:
        yield Client(socket)


async def get(port: int, path: str, host: str | None = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a GET."""
    status, body = await fetch(port, path, host, **headers)
    return status, json.loads(body)


async def fetch(port: int, path: str, host: str | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    sent = {"Host": host or f"127.0.0.1:{port}", "Connection": "close", **headers}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        head, _, body = (await asyncio.wait_for(reader.read(), WAIT_S)).partition(b"\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.close()
        await writer.wait_closed()


def same(left: Pcm, right: Pcm) -> bool:
    return bool(np.array_equal(left, right))
