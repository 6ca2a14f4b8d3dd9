"""Vocoder: decodes the windows of all live utterances on one worker, in the order of the schedule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from tts_plugin.audio import Pcm, to_int16
from tts_plugin.engines.spark.bicodec import BiCodec, CodecWindow
from tts_plugin.engines.spark.schedule import Order, Schedule
from tts_plugin.errors import EngineUnavailable, SynthesisFailed
from tts_plugin.timing import Clock
from tts_plugin.worker import SerialWorker

_CLOSED = "this engine is closed: open another one"
_MEMORY = 0.2  # weight of the newest decode in the estimate of the cost of a token


@dataclass(slots=True, eq=False)
class _Asked(Order):
    window: CodecWindow
    done: asyncio.Future[torch.Tensor]


class Vocoder:
    """One codec for many utterances, on one worker thread, the most urgent window first. A window's samples
    do not depend on its batch.

    hold: its block is around every batch that holds the first window of a turn, to keep the language model
    off the cores meanwhile. s_per_token: seconds of decoding, from the decodes so far. decodes: batches.
    """

    def __init__(
        self,
        codec: BiCodec,
        worker: SerialWorker,
        *,
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Clock = time.monotonic,
    ) -> None:
        self.codec = codec
        self.s_per_token = 0.01
        self.decodes = 0
        self._worker = worker
        self._hold = hold
        self._clock = clock
        self._schedule: Schedule[_Asked] = Schedule(most=codec.rows)
        self._busy = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def decode(
        self,
        semantic: Sequence[int],
        d_vector: torch.Tensor,
        emit_from: int,
        emit_to: int,
        *,
        due_s: float | None = None,
    ) -> Pcm:
        """The samples of tokens emit_from .. emit_to - 1 of a window, at the codec's rate.

        due_s: when its listener will have heard all there is, by the clock; None for the first window of a
        turn. Cancelled while it waits it is never decoded; cancelled while it is decoded, its samples are
        dropped. An error of the codec is SynthesisFailed here, and the next window is decoded as ever.
        """
        if self._closed:
            raise EngineUnavailable(_CLOSED)
        tokens = len(semantic)
        asked = _Asked(
            tokens=tokens,
            work=min(tokens, emit_to - emit_from + 2 * self.codec.generator_reach),
            due_s=self._clock() if due_s is None else due_s,
            is_first=due_s is None,
            window=CodecWindow(torch.tensor(semantic, dtype=torch.int64), d_vector, emit_from, emit_to),
            done=asyncio.get_running_loop().create_future(),
        )
        self._schedule.add(asked)
        if not self._busy:
            self._busy = True
            task = asyncio.create_task(self._work(), name="vocoder")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return to_int16((await asked.done).numpy())
        finally:
            self._schedule.drop(asked)

    async def aclose(self) -> None:
        """Drop what waits, which is EngineUnavailable to its readers; what is being decoded is finished and
        dropped. Twice is fine."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        _drop(self._schedule.waiting)
        self._schedule.waiting.clear()

    async def _work(self) -> None:
        """Decode until nothing waits."""
        try:
            while batch := self._schedule.take(self._clock(), self.s_per_token):
                try:
                    await self._decode(batch)
                except asyncio.CancelledError:
                    _drop(batch)
                    raise
        finally:
            self._busy = False

    async def _decode(self, batch: list[_Asked]) -> None:
        try:
            with self._hold() if any(asked.is_first for asked in batch) else nullcontext():
                waves, took_s = await self._worker.run(self._timed, [asked.window for asked in batch])
        except Exception as error:  # of the codec or the device: it belongs to those whose windows these are
            if len(batch) > 1:  # to one of them, or they were too many
                for asked in batch:
                    if not asked.done.done():
                        await self._decode([asked])
                return
            [asked] = batch
            if not asked.done.done():
                failed = SynthesisFailed(f"the codec failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
                asked.done.set_exception(failed)
            return
        self.decodes += 1
        self.s_per_token += _MEMORY * (took_s / sum(asked.work for asked in batch) - self.s_per_token)
        for asked, wave in zip(batch, waves, strict=True):
            if not asked.done.done():
                asked.done.set_result(wave)

    def _timed(self, windows: Sequence[CodecWindow]) -> tuple[list[torch.Tensor], float]:
        """On the worker: the samples, and how long they took without the wait for whatever else runs there,
        such as an enrolment."""
        begun_s = self._clock()
        waves = self.codec.decode_windows(windows)
        return waves, self._clock() - begun_s


def _drop(batch: Iterable[_Asked]) -> None:
    """Tell those who still wait; they were not cancelled, so it is an error to them."""
    for asked in batch:
        if not asked.done.done():
            asked.done.set_exception(EngineUnavailable(_CLOSED))
