"""Link: one open websocket to an engine server, its messages handed to the contexts that they concern."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from tts_plugin import wire
from tts_plugin.errors import (
    BadRequest,
    ConfigError,
    EngineUnavailable,
    Overloaded,
    SynthesisFailed,
    TTSError,
    Unauthorized,
    retold,
)

_CONNECT_S = 5.0  # opening the connection, beyond which the server counts as unreachable
_PING_S = 5.0  # a server that vanished without closing is noticed within twice this
_CLOSE_S = 0.5

# what reaches one context: audio, messages, or the error that ends it
Inbox = asyncio.Queue[bytes | wire.Message | TTSError]


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine server listens, http(s) or ws(s), and the bearer token it wants."""

    url: str
    token: str | None = None

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme in ("https", "wss") else 80)

    @property
    def stream_url(self) -> str:
        wrong = ConfigError(f'"{self.url}" is no engine server: give http://HOST:PORT')
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            raise wrong from None
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        if scheme not in ("ws", "wss") or not parts.hostname:
            raise wrong
        return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + wire.PATH, "", ""))


class Link:
    """One open websocket: a reader that hands messages to their contexts, a writer that keeps their order."""

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url
        self._inboxes: dict[int, Inbox] = {}
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._lost: TTSError | None = None
        self._tasks = [
            asyncio.create_task(self._read(), name="sparkvoice-reader"),
            asyncio.create_task(self._write(), name="sparkvoice-writer"),
        ]

    @property
    def alive(self) -> bool:
        return self._lost is None

    def open(self, context: int, inbox: Inbox) -> None:
        self._inboxes[context] = inbox
        if self._lost is not None:
            inbox.put_nowait(self._lost)

    def close(self, context: int) -> None:
        self._inboxes.pop(context, None)

    def send(self, message: str) -> None:
        if self.alive:
            self._outbox.put_nowait(message)

    async def aclose(self) -> None:
        self._lose(EngineUnavailable("the connection to the engine server was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._socket.close()

    async def _read(self) -> None:
        try:
            async for data in self._socket:
                self._hand_over(data)
            self._lose(EngineUnavailable(f"the engine server at {self._url} closed the connection"))
        except ConnectionClosed as closed:
            self._lose(EngineUnavailable(f"the engine server at {self._url} is gone ({closed})"))
        except asyncio.CancelledError:
            if self.alive:  # not by `aclose`: the event loop ends, and nobody else will close the socket
                self._lose(EngineUnavailable("the event loop of this connection has ended"))
                self._socket.transport.abort()
            raise
        except TTSError as garbage:
            self._lose(SynthesisFailed(f"the engine server at {self._url} sent garbage: {garbage}"))
            await self._socket.close()

    async def _write(self) -> None:
        with suppress(ConnectionClosed):  # the reader reports it
            while True:
                await self._socket.send(await self._outbox.get())

    def _hand_over(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            context, _, _ = wire.unpack_audio(data)
            if context in self._inboxes:
                self._inboxes[context].put_nowait(data)
            return
        message = wire.parse_server(data)
        if message.context is None:
            raise BadRequest(message.message if isinstance(message, wire.Error) else data)
        if message.context in self._inboxes:
            self._inboxes[message.context].put_nowait(
                retold(message.code, message.message, message.retryable, message.retry_after_s)
                if isinstance(message, wire.Error)
                else message
            )

    def _lose(self, error: TTSError) -> None:
        if self._lost is None:
            self._lost = error
            for inbox in self._inboxes.values():
                inbox.put_nowait(error)


async def open_socket(address: Address) -> ClientConnection:
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    try:
        return await connect(
            address.stream_url,
            additional_headers=headers,
            compression=None,  # audio does not shrink and deflate costs latency
            open_timeout=_CONNECT_S,
            ping_interval=_PING_S,
            ping_timeout=_PING_S,
            close_timeout=_CLOSE_S,
            max_size=None,
            proxy=None,
        )
    except InvalidStatus as refused:
        status = refused.response.status_code
        if status in (401, 403):
            raise Unauthorized(
                f"the engine server at {address.url} refused the token ({status}): set SPARKVOICE_TOKEN"
            ) from None
        if status in (429, 503):
            raise Overloaded(
                f"the engine server at {address.url} takes no more connections",
                _retry_after_s(refused.response.headers.get("Retry-After", "")),
            ) from None
        raise EngineUnavailable(f"the engine server at {address.url} answered {status}") from None
    except InvalidURI as wrong:
        raise ConfigError(f'"{address.url}" is no engine server: give http://HOST:PORT') from wrong
    except (OSError, TimeoutError, InvalidHandshake) as down:
        raise EngineUnavailable(
            f"no engine server at {address.url} ({down or type(down).__name__}): "
            "start it with `sparkvoice serve`"
        ) from down


def _retry_after_s(header: str) -> float | None:
    """What a server advises; None for nothing, and for a date."""
    return float(header) if header.isascii() and header.isdigit() else None
