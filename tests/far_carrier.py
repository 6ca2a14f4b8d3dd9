"""The far end of a telephone call for the tests: Twilio, Telnyx or Plivo, as their documents describe them.

A carrier signs its webhook, follows the answer, plays in real time what the media websocket brings, gives
marks back when all before them has been played, and notes every breach of its protocol. What it writes and
reads is spelt out here, not taken from the code under test.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import aiohttp
import numpy as np
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.calls import Calls
from agent.line import MediaLine
from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.phone import Answer
from agent.phone_server import PhoneDoors, PhoneServer
from agent.serving import serving
from agent.transports.carrier import Carrier
from agent.transports.dialect import Kind
from agent.transports.plivo import Plivo
from agent.transports.telnyx import Telnyx
from agent.transports.twilio import Twilio
from tts_plugin import g711
from tts_plugin.audio import Pcm
from tts_plugin.listener import listen
from tts_plugin.resample import StreamResampler

RATE = 8000
BLOCK = 160
CALLER, CALLED = "+15550111", "+15550100"
SECRET = "12345"
TELNYX_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ACCOUNT = "AC0"

Form = dict[str, str]
Json = dict[str, Any]


def twilio_headers(url: str, form: Form) -> dict[str, str]:
    signed = url + "".join(key + form[key] for key in sorted(form))
    digest = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha1).digest()
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


def telnyx_headers(_url: str, form: Form) -> dict[str, str]:
    at = str(int(time.time()))
    signature = TELNYX_KEY.sign(f"{at}|{urlencode(form)}".encode())
    return {"Telnyx-Signature-Ed25519": base64.b64encode(signature).decode(), "Telnyx-Timestamp": at}


def plivo_headers(url: str, form: Form) -> dict[str, str]:
    signed = f"{url}?" + "".join(key + form[key] for key in sorted(form)) + ".5a1"
    digest = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest()
    return {"X-Plivo-Signature-V3": base64.b64encode(digest).decode(), "X-Plivo-Signature-V3-Nonce": "5a1"}


def _connect(root: ElementTree.Element) -> tuple[str, str]:
    """TwiML's and TeXML's way to name the websocket and the token."""
    assert [child.tag for child in root] == ["Connect", "Hangup"], "nothing ends the call after the stream"
    (stream,) = root[0]
    (parameter,) = stream
    assert (stream.tag, parameter.tag, parameter.get("name")) == ("Stream", "Parameter", "token")
    return stream.attrib["url"], parameter.attrib["value"]


def telnyx_answer(root: ElementTree.Element) -> tuple[str, str]:
    stream = root[0][0]
    assert (stream.get("bidirectionalMode"), stream.get("bidirectionalCodec")) == ("rtp", "PCMU")
    return _connect(root)


def plivo_answer(root: ElementTree.Element) -> tuple[str, str]:
    stream, hangup = root
    assert (stream.tag, hangup.tag) == ("Stream", "Hangup")
    wanted = {"bidirectional": "true", "keepCallAlive": "true", "contentType": "audio/x-mulaw;rate=8000"}
    assert wanted.items() <= stream.attrib.items()
    key, _, token = stream.attrib["extraHeaders"].partition("=")
    assert key == "token"
    assert token.isalnum()
    return str(stream.text), token


def twilio_read(message: Json, stream: str) -> tuple[str, str]:
    assert message["streamSid"] == stream
    match message:
        case {"event": "media", "media": {"payload": str(payload)}}:
            return "media", payload
        case {"event": "mark", "mark": {"name": str(name)}}:
            return "mark", name
        case {"event": "clear"}:
            return "clear", ""
    raise AssertionError(message)


def telnyx_read(message: Json, stream: str) -> tuple[str, str]:
    return twilio_read({**message, "streamSid": stream}, stream)


def plivo_read(message: Json, stream: str) -> tuple[str, str]:
    match message:
        case {"event": "playAudio", "media": {"payload": str(payload), **how}}:
            assert how == {"contentType": "audio/x-mulaw", "sampleRate": 8000}
            return "media", payload
        case {"event": "checkpoint", "name": str(name), "streamId": str(told)}:
            assert told == stream
            return "mark", name
        case {"event": "clearAudio", "streamId": str(told)}:
            assert told == stream
            return "clear", ""
    raise AssertionError(message)


@dataclass(frozen=True)
class Manners:
    """How one carrier talks. headers: that sign a webhook. start, media, digit, mark, stop: its messages."""

    make: Callable[[str], Carrier]  # of the REST interface's address
    form: Form
    headers: Callable[[str, Form], dict[str, str]]
    busy: str
    answer: Callable[[ElementTree.Element], tuple[str, str]]
    greeting: Json | None
    start: Callable[[str, str, str], Json]  # of stream, call and token
    media: Callable[[str, int, str], Json]  # of stream, number and payload
    digit: Callable[[str, str], Json]
    mark: Callable[[str, str], Json]
    stop: Callable[[str], Json] | None
    read: Callable[[Json, str], tuple[str, str]]
    stream_key: str


def _ms(number: int) -> str:
    return str(number * 20)


MANNERS: Mapping[Kind, Manners] = {
    "twilio": Manners(
        make=lambda api: Twilio(SECRET, api),
        form={"AccountSid": ACCOUNT, "CallSid": "CA0", "From": CALLER, "To": CALLED, "Direction": "inbound"},
        headers=twilio_headers,
        busy='<Reject reason="busy"/>',
        answer=_connect,
        greeting={"event": "connected", "protocol": "Call", "version": "1.0.0"},
        start=lambda stream, call, token: {
            "event": "start",
            "sequenceNumber": "1",
            "streamSid": stream,
            "start": {
                "streamSid": stream,
                "accountSid": ACCOUNT,
                "callSid": call,
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": {"token": token},
            },
        },
        media=lambda stream, number, payload: {
            "event": "media",
            "sequenceNumber": str(number + 2),
            "streamSid": stream,
            "media": {
                "track": "inbound",
                "chunk": str(number + 1),
                "timestamp": _ms(number),
                "payload": payload,
            },
        },
        digit=lambda stream, digit: {
            "event": "dtmf",
            "streamSid": stream,
            "dtmf": {"track": "inbound_track", "digit": digit},
        },
        mark=lambda stream, name: {"event": "mark", "streamSid": stream, "mark": {"name": name}},
        stop=lambda stream: {
            "event": "stop",
            "streamSid": stream,
            "stop": {"accountSid": ACCOUNT, "callSid": "CA0"},
        },
        read=twilio_read,
        stream_key="streamSid",
    ),
    "telnyx": Manners(
        make=lambda api: Telnyx(
            base64.b64encode(TELNYX_KEY.public_key().public_bytes_raw()).decode(), SECRET, api
        ),
        form={"AccountSid": ACCOUNT, "CallSid": "v3:c-0_A", "From": CALLER, "To": CALLED},
        headers=telnyx_headers,
        busy='<Reject reason="busy"/>',
        answer=telnyx_answer,
        greeting={"event": "connected", "version": "1.0.0"},
        start=lambda stream, call, token: {
            "event": "start",
            "sequence_number": "1",
            "stream_id": stream,
            "start": {
                "user_id": "U0",
                "call_control_id": call,
                "from": CALLER,
                "to": CALLED,
                "custom_parameters": {"token": token},
                "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
            },
        },
        media=lambda stream, number, payload: {
            "event": "media",
            "sequence_number": str(number + 2),
            "stream_id": stream,
            "media": {
                "track": "inbound",
                "chunk": str(number + 1),
                "timestamp": _ms(number),
                "payload": payload,
            },
        },
        digit=lambda stream, digit: {"event": "dtmf", "stream_id": stream, "dtmf": {"digit": digit}},
        mark=lambda stream, name: {"event": "mark", "stream_id": stream, "mark": {"name": name}},
        stop=lambda stream: {"event": "stop", "stream_id": stream, "stop": {"call_control_id": "v3:c-0_A"}},
        read=telnyx_read,
        stream_key="stream_id",
    ),
    "plivo": Manners(
        make=lambda api: Plivo(SECRET, ACCOUNT, api),
        form={"CallUUID": "u-0", "From": CALLER, "To": CALLED, "Direction": "inbound"},
        headers=plivo_headers,
        busy='<Hangup reason="busy"/>',
        answer=plivo_answer,
        greeting=None,
        start=lambda stream, call, token: {
            "event": "start",
            "sequenceNumber": 1,
            "start": {
                "callId": call,
                "streamId": stream,
                "accountId": ACCOUNT,
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
            },
            "extra_headers": f"token={token};other=1",
        },
        media=lambda stream, number, payload: {
            "event": "media",
            "sequenceNumber": number + 2,
            "streamId": stream,
            "media": {
                "track": "inbound",
                "chunk": number + 1,
                "timestamp": str(1_705_312_200_000 + number * 20),
                "payload": payload,
            },
        },
        digit=lambda stream, digit: {
            "event": "dtmf",
            "streamId": stream,
            "dtmf": {"track": "inbound", "digit": digit},
        },
        mark=lambda stream, name: {"event": "playedStream", "streamId": stream, "name": name},
        stop=None,  # the websocket closes
        read=plivo_read,
        stream_key="streamId",
    ),
}


class FarCarrier:
    """One call as the carrier has it: what it plays to the caller, and what the caller says and presses.

    latency_s: of the network, each way.
    """

    def __init__(
        self, ws: aiohttp.ClientWebSocketResponse, manners: Manners, call: str, latency_s: float
    ) -> None:
        self.breaches: list[str] = []
        self.played: list[Pcm] = []  # 20 ms each, silence included
        self.arrivals: list[tuple[float, int]] = []  # when, and how many samples
        self.cleared_s: list[float] = []
        self.waiting_s: list[float] = []  # the far buffer, after every message
        self.mic: deque[Pcm] = deque()
        self.closed = asyncio.Event()
        self.gives_marks_back = True
        self.stream = f"MZ{id(self):x}"
        self._ws = ws
        self._manners = manners
        self._call = call
        self._latency_s = latency_s
        self._queue: deque[bytes | str] = deque()  # audio, and the names of marks
        self._names: set[str] = set()
        self._number = 0
        self._deliveries: set[asyncio.Task[None]] = set()

    async def begin(self, token: str) -> None:
        if self._manners.greeting is not None:
            await self.send(self._manners.greeting)
        await self.send(self._manners.start(self.stream, self._call, token))

    async def send(self, message: Json) -> None:
        if not self._ws.closed:
            await self._ws.send_str(json.dumps(message))

    async def send_text(self, text: str) -> None:
        await self._ws.send_str(text)

    async def send_bytes(self, data: bytes) -> None:
        await self._ws.send_bytes(data)

    async def press(self, digit: str) -> None:
        await self.send(self._manners.digit(self.stream, digit))

    async def hang_up(self) -> None:
        if self._manners.stop is not None:
            await self.send(self._manners.stop(self.stream))
        await self._ws.close()

    @property
    def heard(self) -> Pcm:
        return np.concatenate(self.played) if self.played else np.zeros(0, dtype=np.int16)

    async def read(self) -> None:
        async for message in self._ws:
            self._after_latency(self._take, message)
        self.closed.set()

    def _after_latency(self, take: Callable[[Any], None], what: object) -> None:
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, take, what)
        else:
            take(what)

    def _take(self, message: aiohttp.WSMessage) -> None:
        if message.type is not aiohttp.WSMsgType.TEXT:
            self.breaches.append(f"a {message.type.name} frame")
            return
        try:
            kind, what = self._manners.read(json.loads(message.data), self.stream)
        except (AssertionError, KeyError, ValueError) as error:
            self.breaches.append(f"cannot be read: {error!r} {message.data[:200]}")
            return
        match kind:
            case "media":
                self._take_media(base64.b64decode(what, validate=True))
            case "mark":
                if what in self._names:
                    self.breaches.append(f"the mark {what} twice")
                self._names.add(what)
                self._queue.append(what)
            case "clear":
                self.cleared_s.append(time.monotonic())
                marks = [item for item in self._queue if isinstance(item, str)]
                self._queue.clear()
                for name in marks:
                    self._give_back(name)

    def _take_media(self, payload: bytes) -> None:
        if payload[:4] == b"RIFF":
            self.breaches.append("a WAV header")
        if len(payload) % BLOCK or not payload:
            self.breaches.append(f"{len(payload)} bytes are no whole 20 ms")
        self.arrivals.append((time.monotonic(), len(payload)))
        self._queue.append(payload)
        waiting = sum(len(item) for item in self._queue if isinstance(item, bytes))
        self.waiting_s.append(waiting / RATE)

    def _give_back(self, name: str) -> None:
        if not self.gives_marks_back:
            return

        def deliver(name: str) -> None:
            task = asyncio.get_running_loop().create_task(self.send(self._manners.mark(self.stream, name)))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

        self._after_latency(deliver, name)

    async def play(self) -> None:
        """Both ways in real time: what waits, or silence; and what the caller says, or silence."""
        due_s = time.monotonic()
        while True:
            self._play_block()
            mic = self.mic.popleft() if self.mic else np.zeros(BLOCK, dtype=np.int16)
            payload = base64.b64encode(g711.encode(mic, "mulaw")).decode()
            await self.send(self._manners.media(self.stream, self._number, payload))
            self._number += 1
            due_s += 0.02
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _play_block(self) -> None:
        block = b""
        while self._queue and len(block) < BLOCK:
            item = self._queue.popleft()
            if isinstance(item, str):
                self._give_back(item)
                continue
            room = BLOCK - len(block)
            block += item[:room]
            if len(item) > room:
                self._queue.appendleft(item[room:])
        self.played.append(g711.decode(block.ljust(BLOCK, b"\xff"), "mulaw"))

    async def finish(self) -> None:
        for task in list(self._deliveries):
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)


@dataclass
class Office:
    """A phone server and the carriers' side of it: webhooks, media, and a stub of the REST interfaces."""

    url: str
    manners: Manners
    kind: Kind
    http: aiohttp.ClientSession
    rest: list[tuple[str, str, Form, str | None]] = field(default_factory=list)  # method, path, form, auth
    rest_status: int = 200
    rest_answers: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: the answers wait

    async def ring(self, form: Form | None = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """The webhook's status and answer."""
        form = self.manners.form if form is None else form
        url = f"{self.url}/{self.kind}/voice"
        signed = self.manners.headers(url, form) if headers is None else headers
        async with self.http.post(url, data=form, headers=signed) as response:
            return response.status, await response.text()

    async def invited(self, form: Form | None = None) -> tuple[str, str]:
        """The media websocket's address and the token."""
        status, text = await self.ring(form)
        assert status == 200, text
        return self.manners.answer(ElementTree.fromstring(text))

    @asynccontextmanager
    async def dialled(self, *, latency_s: float = 0.0, form: Form | None = None) -> AsyncIterator[FarCarrier]:
        """A call that has come in and whose media flow."""
        media, token = await self.invited(form)
        assert urlsplit(media).scheme == "ws"
        async with self.streamed(media, token, latency_s=latency_s, form=form) as far:
            yield far

    @asynccontextmanager
    async def streamed(
        self, media: str, token: str, *, latency_s: float = 0.0, form: Form | None = None
    ) -> AsyncIterator[FarCarrier]:
        """The call of `form` on the media websocket it was invited to."""
        form = form or self.manners.form
        async with self.http.ws_connect(media) as ws:
            far = FarCarrier(ws, self.manners, form.get("CallSid") or form["CallUUID"], latency_s)
            await far.begin(token)
            tasks = [asyncio.create_task(far.read()), asyncio.create_task(far.play())]
            try:
                yield far
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await far.finish()


@asynccontextmanager
async def office(
    kind: Kind, answer: Answer, calls: Calls | None = None, carrier: Carrier | None = None
) -> AsyncIterator[Office]:
    """A phone server that one carrier knows."""
    manners = MANNERS[kind]
    async with aiohttp.ClientSession() as http:
        place = Office("", manners, kind, http)
        place.rest_answers.set()
        api = web.Application()

        async def rest(request: web.Request) -> web.Response:
            form = {key: str(value) for key, value in (await request.post()).items()}
            place.rest.append((request.method, request.path, form, request.headers.get("Authorization")))
            await place.rest_answers.wait()
            return web.Response(status=place.rest_status)

        api.router.add_route("*", "/{path:.*}", rest)
        listener = listen("127.0.0.1", 0)
        place.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving(api, listen("127.0.0.1", 0)) as port:
            served = carrier or manners.make(f"http://127.0.0.1:{port}")
            server = PhoneServer({kind: served}, answer, calls or Calls(), PhoneDoors(place.url))
            async with serving(server.app, listener):
                yield place


class TelephoneCall:
    """A whole call as the transports' conformance suite wants it."""

    rate = RATE

    def __init__(self, line: MediaLine, output: PlayoutOutput, far: FarCarrier) -> None:
        self.line = line
        self.output = output
        self.input: QueueInput = line.audio
        self.controls: list[Control] = []
        self.output.on_control(self.controls.append)
        self.far = far

    def heard(self) -> Pcm:
        return self.far.heard

    def speak(self, pcm: Pcm) -> None:
        down = StreamResampler(16_000, RATE)
        said = np.concatenate((down.push(pcm), down.flush()))
        said = np.pad(said, (0, -len(said) % BLOCK))
        self.far.mic.extend(said.reshape(-1, BLOCK))

    async def hang_up(self) -> None:
        await self.far.hang_up()


@asynccontextmanager
async def a_telephone_call(kind: Kind, *, latency_s: float = 0.0) -> AsyncIterator[TelephoneCall]:
    """A call that is up, both ends of it; checks in the end that no message broke the carrier's rules."""
    answered: asyncio.Future[tuple[MediaLine, PlayoutOutput]] = asyncio.get_running_loop().create_future()

    async def answer(line: MediaLine) -> None:
        answered.set_result((line, PlayoutOutput(line.playout)))
        await line.ended()

    async with office(kind, answer) as place:
        async with place.dialled(latency_s=latency_s) as far:
            async with asyncio.timeout(5):
                line, output = await answered
            yield TelephoneCall(line, output, far)
            assert far.breaches == []
