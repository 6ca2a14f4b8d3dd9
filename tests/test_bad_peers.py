"""What a broken or hostile peer of a media websocket can do: a clear end, and nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import pytest

from agent.calls import Calls
from agent.line import CallInfo, MediaLine
from agent.transports import media_streams
from agent.transports.dialect import Kind
from agent.transports.media_streams import media_stream
from agent.transports.twilio import DIALECT
from tests.far_carrier import BLOCK, RATE, FarCarrier, Office, office
from tts_plugin import g711

KINDS: tuple[Kind, ...] = get_args(Kind)
POLICY, TOO_BIG = 1008, 1009


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Desk:
    """An Answer that waits for the end. over: why the calls ended."""

    def __init__(self) -> None:
        self.lines: list[MediaLine] = []
        self.over: list[str] = []

    async def __call__(self, line: MediaLine) -> None:
        self.lines.append(line)
        self.over.append(await line.ended())


async def until(true: Callable[[], object], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def an_office(kind: Kind) -> AsyncIterator[tuple[Office, Desk]]:
    """In the end its place is free again, no task of a stream runs, and the next caller is served."""
    desk, calls = Desk(), Calls(max_calls=1)
    async with office(kind, desk, calls) as place:
        yield place, desk
        await until(lambda: calls.taken == 0)
        await until(lambda: not [task for task in asyncio.all_tasks() if "stream" in task.get_name()])
        before = len(desk.lines)
        async with place.dialled():
            await until(lambda: len(desk.lines) == before + 1)
        await until(lambda: calls.taken == 0)


@asynccontextmanager
async def a_call(kind: Kind) -> AsyncIterator[tuple[Office, Desk, FarCarrier]]:
    async with an_office(kind) as (place, desk):
        async with place.dialled() as far:
            await until(lambda: desk.lines)
            yield place, desk, far


class Raw:
    """A websocket client that may break the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def frame(self, payload: bytes, *, first: int = 0x81, length: int | None = None) -> None:
        """One masked frame. first: FIN, the reserved bits and the opcode; length: what is said of it."""
        size = len(payload) if length is None else length
        head = bytes([first]) + (
            bytes([0x80 | size])
            if size < 126
            else b"\xfe" + size.to_bytes(2, "big")
            if size < 65_536
            else b"\xff" + size.to_bytes(8, "big")
        )
        mask = os.urandom(4)
        self.writer.write(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))

    async def gone(self) -> bytes:
        """What still comes until the server has closed the connection."""
        async with asyncio.timeout(5):
            return await self.reader.read(-1)


@asynccontextmanager
async def raw(place: Office) -> AsyncIterator[Raw]:
    where = urlsplit(place.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(
            f"GET /{place.kind}/media HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode()
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield Raw(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def start_of(place: Office, token: str) -> dict[str, Any]:
    form = place.manners.form
    message: dict[str, Any] = place.manners.start("S", form.get("CallSid") or form["CallUUID"], token)
    return message


# ------------------------------------------------------------------------------ before the start
async def close_code(place: Office, text: str) -> int | None:
    async with place.http.ws_connect(f"{place.url}/{place.kind}/media") as ws:
        await ws.send_str(text)
        async with asyncio.timeout(5):
            while (await ws.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        return ws.close_code


@pytest.mark.parametrize("text", ["x" * 70_000, "[" * 60_000, "1" * 60_000, '{"event": NaN}', '"start"', ""])
async def test_rubbish_instead_of_a_start_is_closed(
    kind: Kind, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_streams, "START_S", 1.0)  # what is no known event is waited out
    async with an_office(kind) as (place, desk):
        assert await close_code(place, text) in (POLICY, TOO_BIG)
        assert desk.lines == []


@pytest.mark.parametrize("nasty", ["a\nERROR forged: b", "\ud800", "ü" * 200, "x" * 50_000])
async def test_what_a_stranger_writes_makes_no_log_lines_and_no_failure(
    kind: Kind, nasty: str, caplog: pytest.LogCaptureFixture
) -> None:
    form = {"twilio": "mediaFormat", "telnyx": "media_format", "plivo": "mediaFormat"}[kind]
    async with an_office(kind) as (place, desk):
        for told in (nasty, {"encoding": nasty}):
            message = start_of(place, "0" * 32)
            message["start"] = {**message["start"], form: told}
            assert await close_code(place, json.dumps(message)) == POLICY
        message = start_of(place, nasty)
        assert await close_code(place, json.dumps(message)) == POLICY
        assert desk.lines == []
    ours = [record for record in caplog.records if record.name == "sparkvoice.phone"]
    assert {record.levelno for record in ours} == {logging.WARNING}
    assert all(line.isascii() and "\n" not in line and len(line) < 300 for line in map(_text, ours))


def _text(record: logging.LogRecord) -> str:
    return record.getMessage()


async def test_a_long_header_is_read_as_fast_as_a_short_one() -> None:
    async with an_office("plivo") as (place, _):
        began_s = time.monotonic()
        message = {**start_of(place, "t"), "extra_headers": "a" * 60_000}
        assert await close_code(place, json.dumps(message)) == POLICY
        assert time.monotonic() - began_s < 2


@pytest.mark.parametrize(
    ("first", "length"),
    [(0xC1, None), (0x83, None), (0x81, 2**62)],
    ids=["compressed, which was not agreed", "an opcode that there is not", "a length without end"],
)
async def test_a_frame_against_the_protocol_ends_the_connection(first: int, length: int | None) -> None:
    async with an_office("twilio") as (place, desk):
        async with raw(place) as peer:
            peer.frame(b"hello", first=first, length=length)
            await peer.gone()
        assert desk.lines == []


async def test_half_a_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_streams, "START_S", 0.2)
    async with an_office("twilio") as (place, desk):
        async with raw(place) as peer:
            peer.frame(b'{"event": "sta', first=0x01)  # and the rest never comes
            await peer.gone()
        assert desk.lines == []


async def test_only_so_many_may_wait_with_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.phone_server.MAX_WAITING", 2)
    async with an_office("twilio") as (place, _):
        address = f"{place.url}/twilio/media"
        async with place.http.ws_connect(address) as one, place.http.ws_connect(address):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await place.http.ws_connect(address)
            assert refused.value.status == 503
            await one.close()
            async with place.http.ws_connect(address):
                pass


# ------------------------------------------------------------------------------ in the call
async def test_only_the_callers_track_is_heard(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, far):
        heard: list[int] = []
        desk.lines[0].audio.tap(lambda pcm: heard.append(int(np.abs(pcm).max())))
        loud = base64.b64encode(g711.encode(np.full(BLOCK, 9000, np.int16), "mulaw")).decode()
        await until(lambda: heard)
        for track in ("outbound", "both_tracks", 7, None):
            message = place.manners.media(far.stream, 10**6, loud)
            message["media"]["track"] = track
            await far.send(message)
        await far.press("1")
        pressed: list[str] = []
        desk.lines[0].on_digit(pressed.append)
        await until(lambda: pressed)
        assert max(heard) < 100
        assert desk.over == []


async def sounding(far: FarCarrier, samples: int) -> None:
    """Until the caller has heard just so much."""
    await until(lambda: np.count_nonzero(np.abs(far.heard) > 1000) == samples)


async def test_a_carrier_that_gives_no_marks_back_hears_everything_all_the_same(kind: Kind) -> None:
    async with a_call(kind) as (_, desk, far):
        far.gives_marks_back = False
        line = desk.lines[0]
        for turn in (1, 2):
            line.playout.put(np.full(BLOCK * 40, 5000, np.int16))
            line.playout.end()
            await until(lambda: line.playout.idle)
            await sounding(far, BLOCK * 40 * turn)
        assert desk.over == []


async def test_a_message_that_is_too_large_is_a_failed_connection(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, far):
        await far.send_text("x" * 70_000)
        await until(lambda: desk.over == ["the connection failed"])
        await asyncio.wait_for(far.closed.wait(), 5)
        assert place.rest == []  # the document's last line hangs up


async def test_a_flood_of_audio_is_bounded_and_the_call_goes_on(kind: Kind) -> None:
    async with a_call(kind) as (place, desk, far):
        line = desk.lines[0]
        second = base64.b64encode(b"\xff" * RATE).decode()
        for number in range(200):
            await far.send(place.manners.media(far.stream, number * 50, second))
        await far.press("1")
        pressed: list[str] = []
        line.on_digit(pressed.append)
        await until(lambda: pressed == ["1"])
        assert line.audio.dropped > 0  # nobody listens: the newest are kept
        assert desk.over == []


@pytest.mark.parametrize("said", [True, False], ids=["in the middle of a frame", "between frames"])
async def test_a_connection_that_breaks_ends_the_call(kind: Kind, said: bool) -> None:
    async with an_office(kind) as (place, desk):
        _, token = await place.invited()
        async with raw(place) as peer:
            peer.frame(json.dumps(start_of(place, token)).encode())
            await until(lambda: desk.lines)
            if said:
                peer.frame(b"half", length=200)
            await peer.writer.drain()
            peer.writer.transport.abort()
            await until(lambda: desk.over)
        assert desk.over[0] in ("the caller hung up", "the connection was lost", "the connection failed")


async def test_a_carrier_that_falls_silent_is_hung_up(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_streams, "LOST_S", 0.4)
    async with an_office(kind) as (place, desk):
        _, token = await place.invited()
        async with raw(place) as peer:
            peer.frame(json.dumps(start_of(place, token)).encode())
            await until(lambda: desk.over)
            await until(lambda: len(place.rest) == 1)
        assert desk.over == ["nothing heard from the carrier for 0 s"]
        monkeypatch.undo()


class Deaf:
    """A websocket whose far end reads and says nothing: sending to it waits for ever."""

    def __init__(self) -> None:
        self.closed = False

    async def send_str(self, _: str) -> None:
        await asyncio.Event().wait()

    def __aiter__(self) -> Deaf:
        return self

    async def __anext__(self) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def test_a_carrier_that_reads_nothing_is_not_written_to_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media_streams, "MAX_UNSENT", 12)

    class Nobody:
        async def hang_up(self) -> None:
            raise AssertionError("the carrier has gone")

        async def transfer(self, target: str) -> None:
            raise AssertionError(target)

    ws: Any = Deaf()
    async with media_stream(ws, DIALECT, "S", CallInfo("CA0"), Nobody()) as line:
        line.playout.put(np.full(RATE * 5, 5000, np.int16))
        async with asyncio.timeout(5):
            assert await line.ended() == "the carrier does not listen any more"
    assert ws.closed
