"""A source that is read ahead goes on while its reader is busy, so far and no further, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count

import pytest

from tts_plugin.engines.spark.ahead import read_ahead

MOST = 5


class Source:
    """0, 1, 2 ..., a turn of the event loop each; what it has made, and how it ended.

    length: None for endless. error: raised after that. wait: for what before each.
    """

    def __init__(
        self, length: int | None = None, error: Exception | None = None, wait_s: float = 0.0
    ) -> None:
        self._length = length
        self._error = error
        self._wait_s = wait_s
        self.made = 0
        self.begun = False
        self.closed = False

    async def items(self) -> AsyncGenerator[int]:
        self.begun = True
        try:
            for item in count() if self._length is None else range(self._length):
                await asyncio.sleep(self._wait_s)
                self.made += 1
                yield item
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


async def settled() -> None:
    """Whoever can go on has gone on."""
    for _ in range(10 * MOST):
        await asyncio.sleep(0)


async def test_everything_comes_in_order_in_batches_that_are_never_empty() -> None:
    source = Source(100)
    found = []
    async with read_ahead(source.items(), MOST) as batches:
        async for batch in batches:
            assert 0 < len(batch) <= MOST
            found += batch
            await asyncio.sleep(0)
    assert found == list(range(100))


async def test_it_goes_on_while_the_reader_is_busy_and_no_further_than_it_may() -> None:
    source = Source()
    async with read_ahead(source.items(), MOST) as batches:
        await settled()
        assert source.made == MOST
        assert await anext(batches) == [0, 1, 2, 3, 4]
        await settled()
        assert source.made == 2 * MOST


async def test_a_reader_that_waits_gets_each_item_at_once() -> None:
    async with read_ahead(Source(3, wait_s=0.001).items(), MOST) as batches:
        assert [batch async for batch in batches] == [[0], [1], [2]]


async def test_an_empty_source_is_an_empty_stream() -> None:
    async with read_ahead(Source(0).items(), MOST) as batches:
        assert [batch async for batch in batches] == []


@pytest.mark.parametrize("length", [0, 3, MOST, 12])
async def test_an_error_reaches_the_reader_once_after_all_that_came_before_it(length: int) -> None:
    found = []
    async with read_ahead(Source(length, ValueError("broken")).items(), MOST) as batches:
        with pytest.raises(ValueError, match="broken"):
            async for batch in batches:
                found += batch
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
    assert found == list(range(length))


async def test_an_error_that_the_reader_did_not_wait_for_troubles_nobody() -> None:
    source = Source(3, ValueError("broken"))
    async with read_ahead(source.items(), MOST) as batches:
        await anext(batches)
        await settled()
        assert source.closed
    await settled()


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_leaving_the_block_closes_the_source(taken: int) -> None:
    source = Source()
    async with read_ahead(source.items(), MOST) as batches:
        await settled()
        for _ in range(taken):
            await anext(batches)
    assert source.closed
    made = source.made
    await settled()
    assert source.made == made


async def test_leaving_at_once_never_begins_it() -> None:
    source = Source()
    async with read_ahead(source.items(), MOST):
        pass
    assert not source.begun


@pytest.mark.parametrize("error", [KeyError("the reader's own"), asyncio.CancelledError()])
async def test_an_error_of_the_reader_closes_the_source_and_is_the_readers(error: BaseException) -> None:
    source = Source()
    with pytest.raises(type(error)):
        async with read_ahead(source.items(), MOST) as batches:
            await anext(batches)
            raise error
    assert source.closed


async def test_cancelling_a_reader_that_waits_closes_a_source_that_hangs() -> None:
    source = Source(wait_s=60)

    async def read() -> None:
        async with read_ahead(source.items(), MOST) as batches:
            await anext(batches)

    reader = asyncio.create_task(read())
    await settled()
    assert source.begun
    reader.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait([reader])
    assert reader.cancelled()
    assert source.closed
