"""Reading ahead: a generator that goes on producing while its reader is busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def read_ahead(source: AsyncGenerator[T], most: int) -> AsyncIterator[AsyncGenerator[list[T]]]:
    """Run `source` in a task of its own, at most `most` items ahead; leaving the block closes it.

    Gives an async generator of all that has come since it was last asked, never an empty list. An error of
    the source reaches the reader after what came before it.
    """
    items: asyncio.Queue[T | None] = asyncio.Queue()
    room = asyncio.Semaphore(most)

    async def produce() -> None:
        try:
            async with aclosing(source):
                await room.acquire()  # before it is asked for: an item without room is one too many
                async for item in source:
                    items.put_nowait(item)
                    await room.acquire()
        finally:
            items.put_nowait(None)

    async def consume() -> AsyncGenerator[list[T]]:
        over = False
        while not over:
            batch = [await items.get()]
            while not items.empty():
                batch.append(items.get_nowait())
            over = batch[-1] is None
            fresh = [item for item in batch if item is not None]
            for _ in fresh:
                room.release()
            if fresh:
                yield fresh
        await producer

    producer = asyncio.create_task(produce(), name="read ahead")
    try:
        async with aclosing(consume()) as batches:
            yield batches
    finally:
        producer.cancel()
        await asyncio.wait([producer])
        if not producer.cancelled():
            producer.exception()  # the reader has it, or has left before it came
