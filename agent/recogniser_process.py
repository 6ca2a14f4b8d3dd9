"""RecogniserProcess: the parent's end of the recogniser's process, from its start to its end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from agent.recogniser import HEADER, Recognition
from tts_plugin.audio import Pcm, bytes_of

START_TIMEOUT_S = 60.0  # imports, digest and load take about 2 s; a cold disk is slower
ANSWER_TIMEOUT_S = 15.0  # 30 s of speech take about 0.5 s
_POLL_S = 0.005


class RecogniserError(Exception):
    """The recogniser gave no answer. `retryable`: a new process may."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class RecogniserProcess:
    """Recognises one request at a time in a process that is started when needed, and again if it dies.

    model: folder with a Whisper model as faster-whisper reads it; sha256: hex digest that its model.bin must
    have (None = any). Belongs to the event loop of its first `recognise`. `aclose` leaves nothing behind.
    """

    def __init__(self, model: Path, *, language: str, threads: int, sha256: str | None = None) -> None:
        self._command = [sys.executable, "-m", "agent.recogniser", "--model", str(model.resolve())]
        self._command += ["--language", language, "--threads", str(threads)]
        if sha256 is not None:
            self._command += ["--sha256", sha256]
        self._child: _Child | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a request given now would have to wait for another one."""
        return self._turn.locked() or (self._child is not None and self._child.unanswered > 0)

    @property
    def pid(self) -> int | None:
        """The process id while there is a process."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> None:
        """Start the process unless there is one; returns at once, needs no event loop."""
        if self._closed:
            raise RuntimeError("the recogniser is closed")
        if self._child is None:
            self._child = _Child(
                subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    cwd=Path(__file__).resolve().parents[1],  # where `-m` finds the package `agent`
                )
            )

    async def recognise(self, pcm: Pcm) -> Recognition:
        """The words in `pcm` (16 kHz, at most 30 s); first come, first served.

        A request cancelled while it waits costs nothing. Raises RecogniserError if the process dies, hangs
        or cannot start; the next request then gets a new one.
        """
        async with self._turn:
            if self._child is not None and self._child.over:  # it died while nobody asked
                await self._end(self._child)
            self.start()
            child = self._child
            assert child is not None
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await child.ready()
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await child.ask(pcm)
            except TimeoutError:
                await self._end(child)
                raise RecogniserError("the recogniser did not answer in time and was ended") from None
            except RecogniserError:
                if child.over:
                    await self._end(child)
                raise

    async def aclose(self) -> None:
        """End the process and wait until it is gone. Requests under way get a RecogniserError."""
        self._closed = True
        if self._child is not None:
            await self._end(self._child)

    async def _end(self, child: _Child) -> None:
        if self._child is child:
            self._child = None
        await child.aclose()


class _Child(asyncio.Protocol):
    """One run of the process: its pipes and the answers that are due."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.over = False
        self._requests: asyncio.WriteTransport | None = None
        self._answers: asyncio.BaseTransport | None = None
        self._buffer = bytearray()
        self._due: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._ready: asyncio.Future[dict[str, Any]] | None = None

    @property
    def unanswered(self) -> int:
        return len(self._due)

    async def ready(self) -> None:
        """Wait until the model is loaded."""
        if self._ready is None:
            loop = asyncio.get_running_loop()
            self._ready = self._expect(loop)
            try:
                self._requests, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self.process.stdin)
                self._answers, _ = await loop.connect_read_pipe(lambda: self, self.process.stdout)
            except BaseException:  # cancelled half-way: no use to anybody
                self.over = True
                raise
        answer = await asyncio.shield(self._ready)
        if "error" in answer:
            self.over = True
            raise RecogniserError(f"the recogniser cannot start: {answer['error']}", retryable=False)

    async def ask(self, pcm: Pcm) -> Recognition:
        if self.over or self._requests is None:
            raise RecogniserError("the recogniser's process has ended")
        data = bytes_of(pcm)
        due = self._expect(asyncio.get_running_loop())
        self._requests.write(HEADER.pack(len(data)) + data)
        answer = await due
        if "error" in answer:
            raise RecogniserError(f"the recogniser refused: {answer['error']}")
        return Recognition(**answer)

    async def aclose(self) -> None:
        """Kill the process (it keeps nothing) and collect it."""
        self.process.kill()
        self._fail()
        for pipe, end in ((self._requests, self.process.stdin), (self._answers, self.process.stdout)):
            if pipe is not None:
                pipe.close()  # harmless if it has lost its other end before
            elif end is not None:
                end.close()
        while self.process.poll() is None:  # noqa: ASYNC110 - the end of a Popen sets no Event
            await asyncio.sleep(_POLL_S)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer)
            if len(self._buffer) < HEADER.size + size:
                return
            answer = json.loads(self._buffer[HEADER.size : HEADER.size + size])
            del self._buffer[: HEADER.size + size]
            due = self._due.popleft()
            if not due.done():  # else whoever asked has left
                due.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # the pipe's end says it all
        self._fail()

    def _expect(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[dict[str, Any]]:
        due: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._due.append(due)
        return due

    def _fail(self) -> None:
        self.over = True
        while self._due:
            due = self._due.popleft()
            if not due.done():
                due.set_exception(RecogniserError("the recogniser's process ended while it worked"))
                due.exception()  # seen, even if whoever asked has left
