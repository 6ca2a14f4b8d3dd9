"""Playout: the paced buffer between a speaking agent and a transport that takes a block every 20 ms.

Sans-IO: the transport's clock drives it by calling `read`, so what was handed out is what was heard. Where
the far end buffers, the transport sends what it sees with `look` and reads it when it has been played there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tts_plugin.audio import SILENT_DBFS, Pcm, faded_in, faded_out, level_dbfs

FADE_S = 0.005  # a cut without a fade clicks
LEVEL_MEMORY_S = 0.5  # an echo comes back within this time (webrtc echo paths: 50-300 ms)
SENT_MEMORY_S = 1.0  # of the samples themselves


class PlayoutListener(Protocol):
    """Who is told what became of the utterances; called from within the Playout's own methods."""

    def on_started(self) -> None:
        """The first sample of an utterance has been handed out."""

    def on_finished(self, position_s: float, interrupted: bool) -> None:
        """An utterance is over: `position_s` seconds of it were handed out. Once per utterance."""

    def on_read(self) -> None:
        """A block has been handed out, so there may be room again."""


@dataclass(slots=True)
class _Utterance:
    chunks: deque[Pcm] = field(default_factory=deque)
    waiting: int = 0  # samples in `chunks`
    taken: int = 0  # samples handed out
    ended: bool = False

    def put(self, pcm: Pcm) -> None:
        if len(pcm):
            self.chunks.append(pcm)
            self.waiting += len(pcm)

    def take(self, samples: int) -> Pcm:
        """Up to `samples` of what waits."""
        parts: list[Pcm] = []
        wanted = min(samples, self.waiting)
        self.waiting -= wanted
        self.taken += wanted
        while wanted:
            chunk = self.chunks.popleft()
            parts.append(chunk[:wanted])
            if len(chunk) > wanted:
                self.chunks.appendleft(chunk[wanted:])
            wanted -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)


class Playout:
    """Utterances in as they are made, blocks out as the transport's clock asks; mono int16 at `rate` Hz.

    Utterances play one after another in the order they were put. Not thread-safe: one event loop.

    on_cut: what `clear` and `pause` call first where the far end has a buffer: what was looked at and is not
    read by then must not be heard there. The cut is made there, so no faded tail is handed out here.
    tails: whether a cut ends with 5 ms of fade; without, not a sample of the utterance follows it.
    """

    def __init__(self, rate: int, *, on_cut: Callable[[], None] | None = None, tails: bool = True) -> None:
        self.rate = rate
        self._on_cut = on_cut
        self._tails = tails and on_cut is None
        self._listener: PlayoutListener | None = None
        self._tap: Callable[[Pcm], None] | None = None
        self._queue: deque[_Utterance] = deque()
        self._paused = False
        self._rising = False  # the next samples fade in
        self._tail: Pcm = np.zeros(0, dtype=np.int16)  # the faded rest of what was cut
        self._fade = round(FADE_S * rate)
        self._sounding = False  # the last sample handed out was an utterance's
        self._clock = 0  # samples handed out since the start, silence included
        self._levels: deque[tuple[int, float]] = deque()  # (clock at the block's end, its dBFS)
        self._sent: deque[Pcm] = deque()  # the newest blocks
        self.underruns = 0  # blocks that ran dry in the middle of an utterance

    def listen(self, listener: PlayoutListener) -> None:
        """Tell `listener` from now on; there is one."""
        self._listener = listener

    def tap(self, hear: Callable[[Pcm], None] | None) -> None:
        """Give every block that is handed out to `hear` as well, from now on; there is one."""
        self._tap = hear

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def idle(self) -> bool:
        """Nothing plays, waits or is being made."""
        return not self._queue

    @property
    def sounding(self) -> bool:
        """The last block ended with samples of an utterance."""
        return self._sounding

    @property
    def heard_s(self) -> float:
        """Seconds of the current utterance handed out, silence and pauses not counted."""
        return self._queue[0].taken / self.rate if self._queue else 0.0

    @property
    def buffered_s(self) -> float:
        """Seconds that wait to be handed out, of all utterances."""
        return sum(utterance.waiting for utterance in self._queue) / self.rate

    @property
    def sent_dbfs(self) -> float:
        """The loudest block handed out in the last 0.5 s of the transport's clock, as RMS dBFS."""
        return max((level for _, level in self._levels), default=SILENT_DBFS)

    @property
    def complete(self) -> bool:
        """Nothing is being made; what waits, if anything, is all there is."""
        return not self._queue or self._queue[-1].ended

    def look(self, skip: int, samples: int) -> Pcm:
        """Up to `samples` samples that `read` will hand out after the next `skip`; none in a pause."""
        if self._paused:
            return np.zeros(0, dtype=np.int16)
        parts: list[Pcm] = []
        wanted = samples
        rising = self._rising and not skip
        for chunk in (chunk for utterance in self._queue for chunk in utterance.chunks):
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            parts.append(chunk[skip : skip + wanted])
            skip = 0
            wanted -= len(parts[-1])
            if not wanted:
                break
        seen = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)
        return faded_in(seen, self._fade) if rising else seen

    @property
    def position(self) -> int:
        """Samples handed out since the start, silence included."""
        return self._clock

    def sent(self, until: int, samples: int) -> Pcm:
        """The `samples` samples handed out before position `until`, of the last second; zeros where nothing
        was handed out, or not yet."""
        out = np.zeros(samples, dtype=np.int16)
        end = self._clock
        for block in reversed(self._sent):
            start = end - len(block)
            low, high = max(start, until - samples), min(end, until)
            if low < high:
                out[low - until + samples : high - until + samples] = block[low - start : high - start]
            if start <= until - samples:
                break
            end = start
        return out

    def put(self, pcm: Pcm) -> None:
        """Append to the utterance being made; the first put (empty or not) begins one."""
        if not self._queue or self._queue[-1].ended:
            self._queue.append(_Utterance())
        self._queue[-1].put(pcm)

    def end(self) -> None:
        """The utterance being made is complete; without one this does nothing."""
        if self._queue:
            self._queue[-1].ended = True

    def clear(self) -> None:
        """Drop everything: 5 ms fade to silence, and every utterance is finished as interrupted.

        The fade is not counted as heard. A pause stays in force until `resume`.
        """
        if not self._queue:
            return
        if self._on_cut:
            self._on_cut()
        positions_s = [utterance.taken / self.rate for utterance in self._queue]
        self._cut()
        self._queue.clear()
        self._rising = False
        for position_s in positions_s:
            self._finished(position_s, interrupted=True)

    def pause(self) -> None:
        """Mute from the next block on (5 ms fade) and keep the rest."""
        if self._paused:
            return
        if self._on_cut:
            self._on_cut()
        self._paused = True
        if self._cut():
            self._rising = True

    def resume(self) -> None:
        """Go on with the next sample, faded in over 5 ms."""
        self._paused = False

    def rest(self, samples: int) -> None:
        """Let silence go by and keep what waits: nothing of it is played at the far end now."""
        if samples > 0:
            self._sounding = False
            self._remember(np.zeros(samples, dtype=np.int16))

    def read(self, samples: int) -> Pcm:
        """The next `samples` samples; zeros where there is nothing to play."""
        out = np.zeros(samples, dtype=np.int16)
        at = min(samples, len(self._tail))
        out[:at], self._tail = self._tail[:at], self._tail[at:]
        self._sounding = False
        if not self._paused and not len(self._tail):
            self._fill(out, at)
        self._remember(out)
        if self._tap:
            self._tap(out)
        if self._listener:
            self._listener.on_read()
        return out

    def _fill(self, out: Pcm, at: int) -> None:
        while self._queue:
            utterance = self._queue[0]
            first = utterance.taken == 0
            piece = utterance.take(len(out) - at)
            if len(piece):
                if self._rising:
                    self._rising = False
                    piece = faded_in(piece, self._fade)
                out[at : at + len(piece)] = piece
                at += len(piece)
                self._sounding = True
                if first and self._listener:
                    self._listener.on_started()
            if utterance.waiting:
                return  # the block is full
            if not utterance.ended:
                if at < len(out):
                    self._sounding = False
                    self.underruns += utterance.taken > 0
                return
            self._queue.popleft()
            self._sounding = self._sounding and at == len(out)
            self._finished(utterance.taken / self.rate, interrupted=False)

    def _cut(self) -> bool:
        """Take the next 5 ms as the faded tail, if an utterance is sounding."""
        if not (self._sounding and self._queue and self._queue[0].taken):
            return False
        self._sounding = False
        if not self._tails:
            return True
        piece = self._queue[0].take(self._fade)
        self._tail = faded_out(piece, self._fade)
        return True

    def _remember(self, block: Pcm) -> None:
        if not len(block):
            return
        self._clock += len(block)
        self._levels.append((self._clock, level_dbfs(block)))
        while self._levels[0][0] <= self._clock - LEVEL_MEMORY_S * self.rate:
            self._levels.popleft()
        self._sent.append(block)
        if len(self._sent) * len(block) > SENT_MEMORY_S * self.rate:
            self._sent.popleft()

    def _finished(self, position_s: float, *, interrupted: bool) -> None:
        if self._listener:
            self._listener.on_finished(position_s, interrupted)
