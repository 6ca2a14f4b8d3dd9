"""Callers: many telephone calls at once from a process of their own, as Twilio would make them, for a bench.

`python -m agent.bench.callers URL CALLS SECONDS` calls, listens, and prints what it measured as JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from base64 import b64encode
from collections import deque
from dataclasses import asdict, dataclass, field

import aiohttp

BLOCK_S = 0.02
STAGGER_S = 0.5  # between two calls' beginnings
SETTLED = 15  # blocks of an utterance before its pace is measured: the far end's buffer is filled by then
GAP_S = 0.5  # a longer silence was meant
SILENCE = b64encode(b"\xff" * 160).decode()


@dataclass(slots=True)
class Measured:
    """All calls'. jitter_ms: how far the time between two blocks was from 20 ms on arrival, once the far
    end's buffer was full. dry: how often that ran empty in the middle of speech, and for how long. blocks:
    arrived."""

    jitter_ms: list[float] = field(default_factory=list)
    first_sound_ms: list[float] = field(default_factory=list)
    dry: int = 0
    dry_ms: list[float] = field(default_factory=list)
    blocks: int = 0
    calls: int = 0


class Pace:
    """How evenly the blocks of one call come, while the agent speaks and the far end's buffer is full."""

    def __init__(self) -> None:
        self.run = 0  # blocks since a silence that was meant
        self._last_s = 0.0

    def note(self, now_s: float) -> float | None:
        """A block has come; how far the time since the last one was from 20 ms, in ms, if that counts."""
        since_s, self._last_s = now_s - self._last_s, now_s
        self.run = 1 if since_s > GAP_S else self.run + 1
        return abs(since_s - BLOCK_S) * 1000 if self.run > SETTLED else None


class Caller:
    """One call: silence said, everything heard timed, marks given back when they have been played."""

    def __init__(self, number: int, measured: Measured) -> None:
        self._id = f"CA{number}"
        self._stream = f"MZ{number}"
        self._measured = measured
        self._marks: deque[tuple[float, str]] = deque()
        self._full_until_s = 0.0
        self._pace = Pace()

    async def call(self, http: aiohttp.ClientSession, url: str, seconds: float) -> None:
        form = {"AccountSid": "AC0", "CallSid": self._id, "From": "+15550111", "To": "+15550100"}
        async with http.post(f"{url}/twilio/voice", data=form) as response:
            answer = await response.text()
        token = re.search(r'name="token" value="(\w+)"', answer)
        if token is None:
            raise RuntimeError(f"no call was made: {answer[:200]}")
        async with http.ws_connect(f"{url}/twilio/media") as ws:
            media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
            start = {
                "streamSid": self._stream,
                "callSid": self._id,
                "mediaFormat": media,
                "customParameters": {"token": token[1]},
            }
            await ws.send_json({"event": "start", "streamSid": self._stream, "start": start})
            listening = asyncio.create_task(self._listen(ws, time.monotonic()))
            try:
                await self._talk(ws, seconds)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        self._measured.calls += 1

    async def _talk(self, ws: aiohttp.ClientWebSocketResponse, seconds: float) -> None:
        due_s = began_s = time.monotonic()
        number = 0
        while due_s < began_s + seconds and not ws.closed:
            while self._marks and self._marks[0][0] <= time.monotonic():
                mark = {"name": self._marks.popleft()[1]}
                await ws.send_json({"event": "mark", "streamSid": self._stream, "mark": mark})
            media = {"track": "inbound", "timestamp": str(number * 20), "payload": SILENCE}
            await ws.send_json({"event": "media", "streamSid": self._stream, "media": media})
            number += 1
            due_s += BLOCK_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _listen(self, ws: aiohttp.ClientWebSocketResponse, began_s: float) -> None:
        heard = False
        async for message in ws:
            now_s = time.monotonic()
            told = json.loads(message.data)
            if told["event"] == "mark":
                self._marks.append((self._full_until_s, told["mark"]["name"]))
            elif told["event"] == "media":
                if not heard:
                    heard = True
                    self._measured.first_sound_ms.append((now_s - began_s) * 1000)
                self._time(now_s)

    def _time(self, now_s: float) -> None:
        off_ms = self._pace.note(now_s)
        self._measured.blocks += 1
        if self._pace.run > 1 and now_s > self._full_until_s:
            self._measured.dry += 1
            self._measured.dry_ms.append((now_s - self._full_until_s) * 1000)
        if off_ms is not None:
            self._measured.jitter_ms.append(off_ms)
        self._full_until_s = max(self._full_until_s, now_s) + BLOCK_S


async def measure(url: str, calls: int, seconds: float) -> Measured:
    """Make so many calls of so many seconds at once."""
    measured = Measured()

    async def one(number: int) -> None:
        await asyncio.sleep(number * STAGGER_S)
        await Caller(number, measured).call(http, url, seconds)

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        for number in range(calls):
            group.create_task(one(number))
    return measured


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))))
