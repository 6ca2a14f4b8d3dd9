"""Asterisk's AudioSocket: a TCP server on which every connection is one telephone call."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_network
from uuid import UUID

from agent.line import MediaLine
from agent.transports.agi import Register, converse_agi
from agent.transports.audiosocket_line import AudioSocketLine
from agent.transports.audiosocket_wire import HANGUP, RATES, Message, Messages, NotAudioSocket, audio
from agent.transports.pacer import BEAT_S, Pacer
from tts_plugin.audio import silence
from tts_plugin.errors import ConfigError
from tts_plugin.hosts import is_loopback
from tts_plugin.listener import listen
from tts_plugin.timing import Clock

PORT = 9092
HELLO_S = 5.0  # for the UUID to come
FIRST_AUDIO_S = 0.5  # the caller's first frame tells the rate; without one it is RATE
RATE = 8000
MOST_UNSENT_S = 0.2  # written but not taken by Asterisk: the playout waits, or it would count as heard
CLOSE_S = 6.0  # for what answers to return after the call's end
GOODBYE_S = 1.0  # for the hang-up to leave
MAX_CONNECTIONS = 512
CHUNK_BYTES = 16_384

Answer = Callable[[MediaLine], Awaitable[None]]  # holds a conversation until the line has ended

log = logging.getLogger("sparkvoice.audiosocket")


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may call: from this machine and these addresses or networks, with these UUIDs (none named: any)."""

    peers: tuple[str, ...] = ()
    uuids: frozenset[UUID] = frozenset()

    def __post_init__(self) -> None:
        for peer in self.peers:
            try:
                ip_network(peer)
            except ValueError as error:
                raise ConfigError(
                    f'"{peer}" is no address or network, such as 10.0.0.5 or 10.0.0.0/24'
                ) from error

    def admits(self, address: str) -> bool:
        """Whether somebody at this address may call."""
        plain = ip_address(address.partition("%")[0])
        return plain.is_loopback or any(plain in ip_network(peer) for peer in self.peers)


class AudioSocketServer:
    """Made by `listening`. port: where it listens."""

    def __init__(self, port: int, answer: Answer, doors: Doors, clock: Clock) -> None:
        self.port = port
        self._answer = answer
        self._doors = doors
        self._clock = clock
        self._register = Register()
        self._connections: set[asyncio.Task[None]] = set()
        self._lines: dict[asyncio.Task[None] | None, AudioSocketLine] = {}

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of Asterisk's, or of anybody."""
        peer = str(writer.get_extra_info("peername", ("",))[0])
        if len(self._connections) >= MAX_CONNECTIONS or not self._doors.admits(peer):
            log.warning("a connection was refused", extra={"peer": peer})
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="audiosocket")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End every call."""
        for line in self._lines.values():
            line.hang_up("the agent is closing down")
        tasks = set(self._connections)
        for task in tasks - self._lines.keys():
            task.cancel()
        if tasks:
            _, slow = await asyncio.wait(tasks, timeout=CLOSE_S + GOODBYE_S)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(HELLO_S):
                first = await reader.readexactly(1)
                if first == b"a":  # agi_network: yes
                    await converse_agi(first, reader, writer, self._register)
                    return
                messages, rest = Messages(), deque[Message]()
                data = first
                while not rest:
                    rest += messages.push(data)
                    data = b"" if rest else await _some(reader)
            uuid = UUID(bytes=rest.popleft().payload)
            if self._doors.uuids and uuid not in self._doors.uuids:
                log.warning("a call with an unknown UUID was refused", extra={"call": str(uuid)})
                writer.write(HANGUP)
                return
            await self._talk(uuid, messages, rest, reader, writer)
        except TimeoutError:
            log.warning("a connection said nothing of use within %.0f s", HELLO_S)
        except NotAudioSocket as error:
            log.warning("a connection is no AudioSocket: %s", error)
        except (ConnectionError, EOFError):
            pass  # gone before it was a call; afterwards the line has noted it
        except Exception:  # a call's outermost frame
            log.exception("a call over AudioSocket failed")
        finally:
            await _closed(writer)

    async def _talk(
        self,
        uuid: UUID,
        messages: Messages,
        rest: deque[Message],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        pacer = Pacer(clock=self._clock)
        rate = await _rate_of(messages, rest, reader, writer, pacer)
        line = AudioSocketLine(self._register.info(uuid), rate, clock=self._clock)
        for message in rest:
            line.take(message)
        self._lines[asyncio.current_task()] = line
        tasks = [
            asyncio.create_task(_listen(line, messages, reader), name="caller's audio"),
            asyncio.create_task(_speak(line, pacer, writer), name="agent's audio"),
        ]
        for task in tasks:
            task.add_done_callback(partial(_note_end, line))
        answering = asyncio.create_task(_answered(self._answer, line), name="answer")
        try:
            await line.ended()
            self._register.over(uuid, line.outcome)  # the dialplan asks as soon as it has the hang-up
            if not writer.is_closing():
                writer.write(HANGUP)
                writer.close()
            await asyncio.wait([answering], timeout=CLOSE_S)
        finally:
            self._lines.pop(asyncio.current_task(), None)
            line.hang_up("the agent failed")
            for task in (*tasks, answering):
                task.cancel()
            await asyncio.gather(*tasks, answering, return_exceptions=True)


def open_door(host: str, port: int, doors: Doors) -> socket.socket:
    """A socket for `answering` on `port` (0: a free one). ConfigError if the port is taken, or if other
    machines can reach `host` and `doors` names none that may call."""
    if not is_loopback(host) and not doors.peers:
        raise ConfigError(
            f"AudioSocket has no password: to listen on {host}, name the addresses that may call "
            "(your Asterisk's) in phone.asterisks, or listen on 127.0.0.1"
        )
    return listen(host, port, "--audiosocket")


@asynccontextmanager
async def answering(
    sock: socket.socket, answer: Answer, doors: Doors, *, clock: Clock = time.monotonic
) -> AsyncIterator[AudioSocketServer]:
    """Answer Asterisk's connections on `sock`; leaving the block closes it and ends every call.

    answer: holds a conversation until its line has ended; to refuse a call it hangs up.
    """
    server = AudioSocketServer(sock.getsockname()[1], answer, doors, clock)
    listener = await asyncio.start_server(server.connected, sock=sock)
    try:
        yield server
    finally:
        listener.close()
        await server.close()


@asynccontextmanager
async def listening(
    host: str, port: int, answer: Answer, doors: Doors | None = None, *, clock: Clock = time.monotonic
) -> AsyncIterator[AudioSocketServer]:
    """`answering` on a door of its own; see `open_door` for what is refused."""
    doors = doors or Doors()
    async with answering(open_door(host, port, doors), answer, doors, clock=clock) as server:
        yield server


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(GOODBYE_S):
            await writer.wait_closed()
    except TimeoutError:  # the far end does not read
        writer.transport.abort()
    except ConnectionError:
        pass


async def _answered(answer: Answer, line: AudioSocketLine) -> None:
    try:
        await answer(line)
        line.hang_up("the agent hung up")
    except Exception:  # a call's outermost frame
        log.exception("what answers an AudioSocket call failed")
    finally:
        line.hang_up("the agent failed")


async def _some(reader: asyncio.StreamReader) -> bytes:
    """The bytes that are there; EOFError at the end."""
    data = await reader.read(CHUNK_BYTES)
    if not data:
        raise EOFError
    return data


async def _rate_of(
    messages: Messages,
    rest: deque[Message],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    pacer: Pacer,
) -> int:
    """The rate of the caller's first audio; what was read is appended to `rest`.

    Silence is sent meanwhile: the channel driver of an Asterisk up to 23.3 may wait for our first byte
    and send nothing before it (asterisk/asterisk issue 2089).
    """
    silent = asyncio.create_task(_keep_silent(pacer, writer), name="silence")
    try:
        async with asyncio.timeout(FIRST_AUDIO_S):
            while True:
                for message in rest:
                    if message.kind in RATES:
                        return RATES[message.kind]
                rest += messages.push(await _some(reader))
    except TimeoutError:
        return RATE
    finally:
        silent.cancel()
        await asyncio.gather(silent, return_exceptions=True)


async def _keep_silent(pacer: Pacer, writer: asyncio.StreamWriter) -> None:
    while True:
        await pacer.beat()
        writer.write(audio(silence(BEAT_S, RATE), RATE))


async def _listen(line: AudioSocketLine, messages: Messages, reader: asyncio.StreamReader) -> None:
    try:
        while not line.over:
            for message in messages.push(await _some(reader)):
                line.take(message)
    except (ConnectionError, EOFError):
        line.hang_up("the caller hung up")


async def _speak(line: AudioSocketLine, pacer: Pacer, writer: asyncio.StreamWriter) -> None:
    """Send 20 ms at a time, silence when idle: Asterisk plays what it gets and keeps no buffer, so what
    is dropped from the playout is never heard."""
    rate = line.playout.rate
    block = round(BEAT_S * rate)
    unsent = round(MOST_UNSENT_S * rate) * 2
    while not writer.is_closing():
        await pacer.beat()
        line.tick()
        if writer.transport.get_write_buffer_size() <= unsent:
            writer.write(audio(line.playout.read(block), rate))


def _note_end(line: AudioSocketLine, task: asyncio.Task[None]) -> None:
    """A task of the call is over; one that failed ends the call, which would be deaf or mute without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", task.get_name(), exc_info=error)
        line.hang_up("the agent failed")
