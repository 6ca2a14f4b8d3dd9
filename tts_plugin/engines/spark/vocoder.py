"""Vocoder: decodes the windows of all live utterances, those that wait together as one batch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from tts_plugin.audio import Pcm, to_int16
from tts_plugin.engines.spark.bicodec import BiCodec, CodecWindow
from tts_plugin.errors import EngineUnavailable, SynthesisFailed
from tts_plugin.worker import SerialWorker

_BATCH = 8  # windows at most: who comes next waits for the whole batch
_LIKE = 1.5  # a batch costs its longest row times its rows, so rows of a batch differ by no more than this
_CLOSED = "this engine is closed: open another one"
_MEMORY = 0.2  # weight of the newest decode in the estimate of the cost of a token


@dataclass(slots=True, eq=False)
class _Order:
    window: CodecWindow
    done: asyncio.Future[torch.Tensor]

    @property
    def tokens(self) -> int:
        return len(self.window.semantic)

    def generated(self, reach: int) -> int:
        """Tokens that the wave generator, nearly all of the work, runs on."""
        return min(self.tokens, self.window.emit_to - self.window.emit_from + 2 * reach)


class Vocoder:
    """One codec for many utterances, on one worker thread. A window's samples do not depend on its batch."""

    def __init__(self, codec: BiCodec, worker: SerialWorker) -> None:
        self.codec = codec
        self.s_per_token = 0.01  # of decoding, from the decodes so far
        self.decodes = 0
        self._worker = worker
        self._orders: deque[_Order] = deque()
        self._busy = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def decode(
        self, semantic: Sequence[int], d_vector: torch.Tensor, emit_from: int, emit_to: int
    ) -> Pcm:
        """The samples of tokens emit_from .. emit_to - 1 of a window, at the codec's rate.

        Cancelled while it waits it is never decoded; cancelled while it is decoded, its samples are dropped.
        """
        if self._closed:
            raise EngineUnavailable(_CLOSED)
        window = CodecWindow(torch.tensor(semantic, dtype=torch.int64), d_vector, emit_from, emit_to)
        order = _Order(window, asyncio.get_running_loop().create_future())
        self._orders.append(order)
        if not self._busy:
            self._busy = True
            task = asyncio.create_task(self._work(), name="vocoder")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return to_int16((await order.done).numpy())

    async def aclose(self) -> None:
        """Drop what waits, which is EngineUnavailable to its readers; what is being decoded is finished and
        dropped. Twice is fine."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        _drop(self._orders)
        self._orders.clear()

    async def _work(self) -> None:
        """Decode until nothing waits."""
        try:
            while batch := self._next():
                await self._decode(batch)
        finally:
            self._busy = False

    def _next(self) -> list[_Order]:
        """The oldest order and those of like length that wait with it."""
        waiting = [order for order in self._orders if not order.done.done()]
        if not waiting:
            self._orders.clear()
            return []
        longest, shortest = waiting[0].tokens * _LIKE, waiting[0].tokens / _LIKE
        batch = [order for order in waiting if shortest <= order.tokens <= longest][:_BATCH]
        self._orders = deque(order for order in waiting if order not in batch)
        return batch

    async def _decode(self, batch: list[_Order]) -> None:
        begun_s = time.perf_counter()
        try:
            waves = await self._worker.run(self.codec.decode_windows, [order.window for order in batch])
        except asyncio.CancelledError:
            _drop(batch)
            raise
        except Exception as error:  # of the codec or the device: it belongs to those whose windows these are
            for order in batch:
                if not order.done.done():
                    failed = SynthesisFailed(f"the codec failed: {type(error).__name__}: {error}")
                    failed.__cause__ = error
                    order.done.set_exception(failed)
            return
        took_s = time.perf_counter() - begun_s
        self.decodes += 1
        tokens = sum(order.generated(self.codec.generator_reach) for order in batch)
        self.s_per_token += _MEMORY * (took_s / tokens - self.s_per_token)
        for order, wave in zip(batch, waves, strict=True):
            if not order.done.done():
                order.done.set_result(wave)


def _drop(orders: Iterable[_Order]) -> None:
    """Tell those who still wait; they were not cancelled, so it is an error to them."""
    for order in orders:
        if not order.done.done():
            order.done.set_exception(EngineUnavailable(_CLOSED))
