"""SharedEars: one recogniser's process for all jobs of a LiveKit worker, behind a Unix socket.

A recogniser of its own would cost each job 190 MB and 3 s of processor time before it hears anything.
On the socket: HEADER and samples there, HEADER and JSON back, as on the recogniser's own pipes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from agent.recogniser import HEADER, LONGEST_S, RATE, Recognition
from agent.recogniser_process import RecogniserError, RecogniserProcess
from agent.unix_door import unix_door
from tts_plugin.audio import Pcm, bytes_of, samples_of

LONGEST_BYTES = round(LONGEST_S * RATE) * 2
ANSWER_S = 90.0  # a restart of the process, and all who came before

log = logging.getLogger(__name__)


@asynccontextmanager
async def served(recogniser: RecogniserProcess) -> AsyncIterator[Path]:
    """Let others use `recogniser`, first come, first served; yields the socket's path. Only this user can
    open it. Leaving the block ends the process too."""
    try:
        async with unix_door("ears", partial(_attend, recogniser)) as path:
            yield path
    finally:
        await recogniser.aclose()


async def _attend(
    recogniser: RecogniserProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            pcm = samples_of(await _message(reader))
            work = asyncio.create_task(recogniser.recognise(pcm), name="recognition")
            gone = asyncio.create_task(reader.read(1), name="client's end")
            try:
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    return  # who asked has left, so what still waits costs nothing
                answer = _answer(work)
            finally:
                for task in (work, gone):
                    task.cancel()
                await asyncio.gather(work, gone, return_exceptions=True)
            data = json.dumps(answer).encode()
            writer.write(HEADER.pack(len(data)) + data)
            await writer.drain()


def _answer(work: asyncio.Task[Recognition]) -> dict[str, object]:
    try:
        return asdict(work.result())
    except RecogniserError as error:
        return {"error": str(error), "retryable": error.retryable}


async def _message(reader: asyncio.StreamReader) -> bytes:
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    if size > LONGEST_BYTES:
        raise ConnectionError(f"a message of {size} bytes; at most {LONGEST_BYTES}")
    return await reader.readexactly(size)


class SharedEars:
    """A client's end: a Recogniser that asks the process behind the socket at `path`.

    Of this object one request at a time is under way. `took_s` of an answer includes the wait for the others,
    so that interim transcripts become rarer when many are talking.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    @property
    def pid(self) -> int | None:
        """None: the process is another's."""
        return None

    def start(self) -> None:
        """Nothing: the process is started by the worker."""

    async def recognise(self, pcm: Pcm) -> Recognition:
        """The words in `pcm` (16 kHz, at most 30 s); RecogniserError if no answer comes."""
        async with self._turn:
            asked_s = time.perf_counter()
            answered = False
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = json.loads(await self._ask(pcm))
                answered = True
            except TimeoutError:
                raise RecogniserError("the shared recogniser did not answer in time") from None
            except (OSError, asyncio.IncompleteReadError) as error:
                raise RecogniserError(f"the shared recogniser is gone: {error}") from error
            finally:
                if not answered:
                    await self._hang_up()  # an answer that comes late is nobody's
        if "error" in answer:
            raise RecogniserError(answer["error"], retryable=answer["retryable"])
        return replace(Recognition(**answer), took_s=time.perf_counter() - asked_s)

    async def aclose(self) -> None:
        """Leave the socket; the process goes on for the others."""
        await self._hang_up()

    async def _ask(self, pcm: Pcm) -> bytes:
        if self._pipe is None:
            self._pipe = await asyncio.open_unix_connection(self._path)
        reader, writer = self._pipe
        data = bytes_of(pcm)
        writer.write(HEADER.pack(len(data)) + data)
        return await _message(reader)

    async def _hang_up(self) -> None:
        if self._pipe is not None:
            _, writer = self._pipe
            self._pipe = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
