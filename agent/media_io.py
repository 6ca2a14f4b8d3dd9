"""The LiveKit AudioInput and AudioOutput of a call: what the session hears and where it speaks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial

from livekit import rtc
from livekit.agents.voice import io

from agent.last_leg import LastLeg
from agent.limiter import Limiter
from agent.playout import Playout
from tts_plugin.audio import Pcm, bytes_of, mixed_down, samples_of

LEAD_S = 1.0  # audio taken ahead of the listener; more is synthesised for nothing at an interruption
INPUT_FRAMES = 50  # 1 s of 20 ms frames: a session further behind than that had better skip


class Control(Enum):
    """What a transport must pass on at once, ahead of the audio.

    Whoever plays the audio mutes at PAUSE and CLEAR and opens at START and RESUME.
    """

    START = "start"  # the first sample of an utterance has been handed out
    PAUSE = "pause"  # silent now, the rest is kept
    RESUME = "resume"  # the rest goes on
    CLEAR = "clear"  # silent now, the rest is gone


class PlayoutOutput(io.AudioOutput):
    """Speaks into a Playout: takes frames at `rate` Hz and converts them to the playout's rate.

    A capture waits while more than `lead_s` seconds are buffered, so a fast engine does not run far
    ahead of the listener; cancelling it or clearing ends the wait. ceiling_dbfs: what no sample may be
    louder than (a telephone's: TELEPHONE_DBFS); None leaves the level as it is.
    """

    def __init__(
        self,
        playout: Playout,
        *,
        rate: int = 24000,
        lead_s: float = LEAD_S,
        ceiling_dbfs: float | None = None,
    ) -> None:
        super().__init__(
            label="playout", capabilities=io.AudioOutputCapabilities(pause=True), sample_rate=rate
        )
        self._playout = playout
        self._rate = rate
        self._lead_s = lead_s
        self._room = asyncio.Event()
        self._resampler: LastLeg | None = None  # of the segment being captured
        self._ceiling_dbfs = ceiling_dbfs
        self._limiter: Limiter | None = None  # likewise
        self._cleared = False  # the segment being captured is gone; its late frames are dropped
        self._over: list[bool] = []  # of each segment that is: whether it was cut
        self._awaited_s = 0.0  # of the current segment, by `heard`
        self._reached = asyncio.Event()
        self._on_control: Callable[[Control], None] | None = None
        playout.listen(self)

    def on_control(self, callback: Callable[[Control], None]) -> None:
        """Call `callback` the moment something must be passed on; it must not block."""
        self._on_control = callback

    async def heard(self, segment: int, at_s: float) -> bool:
        """Wait until more than `at_s` seconds of a segment have been handed out, or all of it; False if it
        was cut before. segment: how many were captured before it. One waits at a time."""
        while len(self._over) <= segment:
            if len(self._over) == segment and self._playout.heard_s > at_s:
                return True
            self._awaited_s = at_s
            self._reached.clear()
            await self._reached.wait()
        return not self._over[segment]

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        # a segment's first frame never waits: cancelled there, wrappers would count a segment
        # that this sink knows nothing of, and wait for its end for ever
        while self._resampler is not None and self._playout.buffered_s > self._lead_s:
            self._room.clear()
            await self._room.wait()
        await super().capture_frame(frame)
        if self._cleared:
            return
        if self._resampler is None:
            self._resampler = LastLeg(self._rate, self._playout.rate)
            if self._ceiling_dbfs is not None:
                self._limiter = Limiter(self._playout.rate, self._ceiling_dbfs)
        self._put(self._resampler.push(mono(frame)))

    def flush(self) -> None:
        super().flush()
        self._cleared = False
        if self._resampler is None:
            return
        self._put(self._resampler.flush())
        self._playout.end()
        self._resampler = None

    def clear_buffer(self) -> None:
        if self._resampler is not None:
            self._cleared = True
            self._resampler = None
        elif self._playout.idle:
            return
        self._room.set()
        self._tell(Control.CLEAR)
        self._playout.clear()

    def pause(self) -> None:
        super().pause()
        if not self._playout.paused:
            self._playout.pause()
            self._tell(Control.PAUSE)

    def resume(self) -> None:
        super().resume()
        if self._playout.paused:
            self._playout.resume()
            self._tell(Control.RESUME)

    def on_started(self) -> None:
        self._tell(Control.START)
        self.on_playback_started(created_at=time.time())

    def on_finished(self, position_s: float, interrupted: bool) -> None:
        self._over.append(interrupted)
        self._reached.set()
        if interrupted:
            # one turn of the loop later: the session clears while it still winds up the text, and
            # the transcript's synchronizer complains of an end that comes before the text's
            loop = asyncio.get_running_loop()
            loop.call_soon(partial(self.on_playback_finished, playback_position=position_s, interrupted=True))
        else:
            self.on_playback_finished(playback_position=position_s, interrupted=False)

    def on_read(self) -> None:
        self._room.set()
        if self._playout.heard_s > self._awaited_s:
            self._reached.set()

    def _put(self, pcm: Pcm) -> None:
        self._playout.put(pcm if self._limiter is None else self._limiter.push(pcm))

    def _tell(self, control: Control) -> None:
        if self._on_control:
            self._on_control(control)


class QueueInput(io.AudioInput):
    """Hears what a transport pushes: mono int16 at `rate` Hz, the oldest dropped when full."""

    def __init__(self, rate: int, *, frames: int = INPUT_FRAMES) -> None:
        super().__init__(label="queue")
        self.rate = rate
        self.dropped = 0  # frames the session was too slow for
        self._ear: Callable[[Pcm], Pcm] | None = None
        self._frames: deque[rtc.AudioFrame] = deque()
        self._most = frames
        self._changed = asyncio.Event()
        self._closed = False
        self._tap: Callable[[Pcm], None] | None = None

    def tap(self, hear: Callable[[Pcm], None] | None) -> None:
        """Give everything that is pushed to `hear` as well, from now on; there is one."""
        self._tap = hear

    def hear_through(self, ear: Callable[[Pcm], Pcm]) -> None:
        """Pass everything from now on through `ear`, as it arrives: before it can wait or be dropped, so
        that an ear knows what was sent meanwhile."""
        self._ear = ear

    def push(self, pcm: Pcm) -> None:
        """Queue one frame; never blocks. After `close` it is ignored."""
        if self._closed:
            return
        pcm = pcm if self._ear is None else self._ear(pcm)
        if len(pcm) == 0:
            return
        if self._tap:
            self._tap(pcm)
        if len(self._frames) == self._most:
            self._frames.popleft()
            self.dropped += 1
        self._frames.append(rtc.AudioFrame(bytes_of(pcm), self.rate, 1, len(pcm)))
        self._changed.set()

    def close(self) -> None:
        """End the iteration after what is queued; twice is fine."""
        self._closed = True
        self._changed.set()

    async def __anext__(self) -> rtc.AudioFrame:
        while not self._frames:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()


def mono(frame: rtc.AudioFrame) -> Pcm:
    """The frame's samples at its own rate, channels averaged."""
    return mixed_down(samples_of(bytes(frame.data.cast("B"))), frame.num_channels)
