"""An engine server that goes wrong on purpose: real websockets and TCP on loopback, wrong in chosen ways."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tts_plugin import wire
from tts_plugin.audio import bytes_of
from tts_plugin.engines.tone import tone

RATE = 24000
SECONDS = 1.0  # of audio for any text

Behaviour = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def server(behave: Behaviour, port: int = 0, status: int | None = None) -> AsyncIterator[str]:
    """The url of a server whose connections behave like that; status: refuse the handshake with it."""

    def refuse(connection: ServerConnection, _: Request) -> Response | None:
        return None if status is None else connection.respond(HTTPStatus(status), "no")

    async def handle(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await behave(socket)

    async with serve(handle, "127.0.0.1", port, process_request=refuse, close_timeout=0.1) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def tcp_server(
    behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def speak(socket: ServerConnection, *, turns: int | None = None) -> None:
    """The protocol as it should be, for so many turns, after which the connection is closed."""
    done = 0
    async for data in socket:
        match wire.parse_client(data):
            case wire.Start(context=context):
                await send(socket, started(context))
            case wire.End(context=context):
                await send_audio(socket, context, SECONDS)
                await send(socket, wire.Done(context=context, timeline={}))
                done += 1
                if done == turns:
                    await socket.close()


async def speak_one_turn_a_connection(socket: ServerConnection) -> None:
    await speak(socket, turns=1)


async def never_answer(socket: ServerConnection) -> None:
    await socket.wait_closed()


async def stall_in_mid_audio(socket: ServerConnection) -> None:
    await send_audio(socket, await asked(socket), SECONDS / 2, of=SECONDS)
    await socket.wait_closed()


async def reset_in_mid_audio(socket: ServerConnection) -> None:
    await send_audio(socket, await asked(socket), SECONDS / 2, of=SECONDS)
    await asyncio.sleep(0.05)
    socket.transport.abort()


async def close_in_mid_audio(socket: ServerConnection) -> None:
    await send_audio(socket, await asked(socket), SECONDS / 2, of=SECONDS)
    await asyncio.sleep(0.05)
    await socket.close()


async def half_close_in_mid_audio(socket: ServerConnection) -> None:
    await send_audio(socket, await asked(socket), SECONDS / 2, of=SECONDS)
    await asyncio.sleep(0.05)
    socket.transport.write_eof()
    await asyncio.sleep(1.0)


async def reset_before_audio(socket: ServerConnection) -> None:
    await asked(socket)
    socket.transport.abort()


def answer(*messages: str | bytes) -> Behaviour:
    """Say this to the first context, and stay."""

    async def behave(socket: ServerConnection) -> None:
        context = await asked(socket)
        for message in messages:
            await socket.send(
                message.replace("CONTEXT", str(context)) if isinstance(message, str) else message
            )
        await socket.wait_closed()

    return behave


def fail(code: str, *, retryable: bool) -> Behaviour:
    """Refuse every context with that error."""

    async def behave(socket: ServerConnection) -> None:
        async for data in socket:
            message = wire.parse_client(data)
            if isinstance(message, wire.Start):
                error = wire.Error(
                    context=message.context, code=code, message="it says no", retryable=retryable
                )
                await send(socket, error)

    return behave


def babble(seed: int) -> Behaviour:
    """Random messages, some of them nearly right, then the end of the connection."""

    async def behave(socket: ServerConnection) -> None:
        dice = random.Random(seed)
        context = await asked(socket)
        for _ in range(dice.randint(1, 6)):
            kind = dice.randrange(6)
            if kind == 0:
                await socket.send(dice.randbytes(dice.randint(0, 40)))
            elif kind == 1:
                await socket.send(
                    wire.pack_audio(context, dice.randrange(2**40), dice.randbytes(dice.randint(0, 9)))
                )
            elif kind == 2:
                await socket.send("".join(chr(dice.randint(32, 1000)) for _ in range(dice.randint(0, 40))))
            elif kind == 3:
                await send(
                    socket,
                    wire.SegmentSpan(
                        context=context,
                        text_from=dice.randint(-9, 99),
                        text_to=dice.randint(-9, 99),
                        sample_from=dice.randint(-99, 99),
                        sample_to=dice.choice([None, -5, 0, 10**9]),
                    ),
                )
            elif kind == 4:
                await send(socket, wire.Done(context=context, timeline={}))
            else:
                await send(socket, wire.Cancelled(context=context, orphan_ms=-1.0))
        await asyncio.sleep(0.02)
        socket.transport.abort()

    return behave


async def asked(socket: ServerConnection) -> int:
    """The first context, after its first text."""
    async for data in socket:
        message = wire.parse_client(data)
        if isinstance(message, wire.Start):
            await send(socket, started(message.context))
        elif isinstance(message, wire.Text):
            return message.context
    raise ConnectionError("the client left")


def started(context: int) -> wire.Started:
    return wire.Started(
        context=context, voice="tone", engine="tone", language="und", rate=RATE, encoding="pcm_s16le"
    )


async def send(socket: ServerConnection, message: wire.Message) -> None:
    await socket.send(message.model_dump_json())


async def send_audio(
    socket: ServerConnection, context: int, seconds: float, *, of: float | None = None
) -> None:
    """`seconds` of a segment that is announced as `of` seconds."""
    whole = round((of or seconds) * RATE)
    await send(
        socket, wire.SegmentSpan(context=context, text_from=0, text_to=5, sample_from=0, sample_to=whole)
    )
    pcm = tone("a", round(seconds * RATE), RATE)
    for at in range(0, len(pcm), 1920):
        await socket.send(wire.pack_audio(context, at, bytes_of(pcm[at : at + 1920])))
