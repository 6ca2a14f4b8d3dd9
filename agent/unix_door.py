"""A Unix socket by which a worker's jobs reach its main process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

Attend = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def unix_door(name: str, attend: Attend) -> AsyncIterator[Path]:
    """Have `attend` serve every client of a socket called `name`, whose path is yielded. Only this user can
    open it. Leaving the block cancels those who are still served, and waits for them."""
    with TemporaryDirectory(prefix="sparkvoice-") as folder:
        path = Path(folder) / name
        clients: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            clients.add(task)
            try:
                await attend(reader, writer)
            finally:
                clients.discard(task)
                writer.close()

        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()
            for task in list(clients):
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
