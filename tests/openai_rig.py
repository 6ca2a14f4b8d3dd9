"""An engine that speaks one frame at a time when it is told to, a server around it, and raw HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from tests.engine_server import WAIT_S, running, settings_of, voices_for
from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.server.stream import Limits

FRAME = 2_400  # samples, 0.1 s


@dataclass
class GatedEngine:
    """Every segment sounds for `frames` frames of 0.1 s; each waits until the test opens the gate for it.

    made: frames so far. active: turns that it speaks now. fail_at: raises `error` in place of that frame.
    """

    frames: int = 10
    rate: int = 24_000
    languages: frozenset[str] = frozenset({"en"})
    fail_at: int | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("the engine broke"))
    made: int = 0
    active: int = 0
    turns: list[Turn] = field(default_factory=list)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        self.active += 1
        self.turns.append(turn)
        at = 0
        try:
            async for segment in segments:
                for index in range(self.frames):
                    await self.gate.acquire()
                    if self.made == self.fail_at:
                        raise self.error
                    pcm = np.full(FRAME, 1000 + index, dtype=np.int16)
                    self.made += 1
                    yield AudioFrame(pcm, self.rate, at, segment.index, index == self.frames - 1)
                    at += len(pcm)
        finally:
            self.active -= 1

    def open(self, frames: int) -> None:
        for _ in range(frames):
            self.gate.release()

    async def warm_up(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def gated(folder: Path, engine: Engine, *, stall_s: float = 20.0) -> AsyncIterator[int]:
    """A server whose one voice, "gated", is spoken by `engine`; gives its port."""
    async with running(
        settings_of(engine={"voice": "gated"}),
        registry=voices_for(folder, {"gated": "en-US"}),
        build=lambda _: engine,
        limits=Limits(stall_s=stall_s),
    ) as port:
        yield port


@asynccontextmanager
async def sdk(port: int, key: str = "any") -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client of the server at that port; it asks once."""
    async with AsyncOpenAI(base_url=url(port), api_key=key, max_retries=0, timeout=WAIT_S) as client:
        yield client


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


@dataclass
class Answer:
    """What came of a raw request. whole: it ended as HTTP says, not in the middle."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.body.decode().splitlines() if line.startswith("data: ")]


async def post(
    port: int, body: bytes | dict[str, Any], path: str = "/v1/audio/speech", **headers: str
) -> Answer:
    """The answer to a POST, read to the end of the connection."""
    async with posted(port, body, path, **headers) as reader:
        return answered(await asyncio.wait_for(reader.read(), WAIT_S))


@asynccontextmanager
async def posted(
    port: int, body: bytes | dict[str, Any], path: str = "/v1/audio/speech", **headers: str
) -> AsyncIterator[asyncio.StreamReader]:
    """The connection of a POST that has been sent; leaving the block drops it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Host": f"127.0.0.1:{port}", "Connection": "close", "Content-Length": str(len(data)), **headers}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    try:
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + data)
        yield reader
    finally:
        writer.transport.abort()


def answered(raw: bytes) -> Answer:
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") != "chunked":
        return Answer(int(first.split()[1]), headers, rest, len(rest) == int(headers["content-length"]))
    body, whole = b"", False
    while rest and not whole:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        whole = length == 0
        body, rest = body + rest[:length], rest[length + 2 :]
    return Answer(int(first.split()[1]), headers, body, whole)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)
