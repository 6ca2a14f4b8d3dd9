"""Running the engine server as a process: the socket, uvicorn, signals, and the child mode of `TTS()`."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tts_plugin.config import ServerSettings, Settings
from tts_plugin.listener import listen
from tts_plugin.server.app import create_app
from tts_plugin.server.stream import STALL_S

log = logging.getLogger(__name__)

_BYTES_PER_CHAR = 12  # of text as JSON at most: an escaped pair of surrogates
_CONTROL_BYTES = 65_536  # of any other message
_STDIN = 0  # file descriptor
_LEAVE_S = 2.0  # after its parent has gone a child is gone, too
_GRACE_S = 1  # for connections to close at shutdown


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; ConfigError if the door is open or the port is not to be had."""
    log_to_stderr()
    app = create_app(settings)
    listener = listen_for(settings.server)
    _leave_on_signals()
    host, port = listener.getsockname()[:2]
    log.info("engine server on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    _run(http_server(app, settings), listener)


def serve_child(settings: Settings) -> None:
    """Serve the parent process, and only as long as it lives.

    One line of JSON on stdout, {"port": N}, as soon as it listens (in its place {"error": ...} from `main`
    if it cannot); it ends when stdin does, which also happens when the parent is killed.
    """
    log_to_stderr(logging.WARNING)  # it shares the parent's terminal
    app = create_app(settings)
    listener = listen_for(settings.server)
    _leave_on_signals()
    server = http_server(app, settings)
    threading.Thread(target=_leave_with_parent, args=(server,), name="parent watch", daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    _run(server, listener)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Unless the process has chosen otherwise already."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level, format=form)


def listen_for(settings: ServerSettings, stall_s: float = STALL_S) -> socket.socket:
    """The listening socket, or ConfigError that says what to do. stall_s: see Limits."""
    listener = listen(settings.host, settings.port)
    # its connections inherit both. asyncio sets NODELAY only on sockets that name their protocol, and
    # without it a small message, such as `cancelled`, waits 40 ms for the client's delayed ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # the kernel drops a client that stopped reading; uvicorn's close waits for it to take what is
        # buffered
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
    return listener


def http_server(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    """uvicorn as this server needs it: no compression (latency), bounded messages, no log of its own."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="websockets-sansio",
        ws_max_size=settings.engine.max_text_chars * _BYTES_PER_CHAR + _CONTROL_BYTES,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


def _leave_on_signals() -> None:
    """uvicorn raises the signal that ended it again; by default the process would end as killed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _leave_with_parent(server: uvicorn.Server) -> None:
    with suppress(OSError):  # no stdin at all
        while os.read(_STDIN, 4096):
            pass
    server.should_exit = True
    time.sleep(_LEAVE_S)  # a daemon thread: never reached if the server has ended by then
    os._exit(1)
