"""How a command serves: an aiohttp application on a listener, until a signal comes."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving(app: web.Application, listener: socket.socket) -> AsyncIterator[int]:
    """Serve `app` while in the block, which closes the listener; yields its port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield int(listener.getsockname()[1])
    finally:
        await runner.cleanup()
        listener.close()


def settle() -> None:
    """Keep what is loaded out of the garbage collector's sight from now on: a full collection of it holds up
    every call's audio for 0.1 s."""
    gc.collect()
    gc.freeze()


async def until_a_signal(serving: Coroutine[None, None, None]) -> None:
    """Serve until SIGINT or SIGTERM, which also end it while it still starts."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait(), name="a signal")
    served = asyncio.create_task(serving, name="server")
    await asyncio.wait([stopped, served], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, served):
        task.cancel()
    await asyncio.wait([stopped, served])
    if not served.cancelled():
        served.result()  # why it ended by itself
