"""FarBuffer: what a far end that buffers has been sent of a Playout, and what of it has been played there.

Sans-IO but for the clock. A block counts as heard when the far end's mark for it or a later one comes back,
or without a mark of its own when it should begin to play. A cut is heard of at the far end as late as the
audio was, so what was due by now has been played by then, however long the way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent.playout import Playout
from tts_plugin.audio import Pcm, silence
from tts_plugin.timing import Clock

RATE = 8000
BLOCK_S = 0.02
BLOCK = 160  # samples
LEAD_S = 0.2  # of audio at the far end at most, so that a late block of ours is not a gap there
MARK_BLOCKS = 5  # every 100 ms of audio has a mark
MAX_LAG_S = 1.0  # a later mark is not waited for: it was lost
MAX_LOST = 2  # in a row; from then on time alone counts, until one comes back
STANDSTILL_S = 0.2  # a mark overdue by more shows that the far end does not play on


@dataclass(frozen=True, slots=True)
class Block:
    """20 ms for the far end, and the mark to send right after it."""

    pcm: Pcm
    mark: str | None


@dataclass(slots=True)
class _Sent:
    samples: int  # of the playout; the rest of the block is silence
    end_s: float  # when it has been played, if it was on its way for no time at all
    mark: str | None


class FarBuffer:
    """Drives a Playout of its own, at 8 kHz. on_clear: tells the far end to drop what it has not played."""

    def __init__(self, on_clear: Callable[[], None], *, clock: Clock = time.monotonic) -> None:
        self.playout = Playout(RATE, on_cut=self._cut)
        self._on_clear = on_clear
        self._clock = clock
        self._began_s = clock()
        self._sent: deque[_Sent] = deque()  # and not heard yet
        self._ahead = 0  # samples of the playout in `_sent`
        self._full_until_s = 0.0  # when the far end runs dry
        self._lag_s = 0.0  # from a block's `end_s` to its mark's return
        self._marks = 0
        self._unmarked = 0  # blocks since the last mark
        self._lost: deque[str] = deque(maxlen=64)  # marks given up since one last came back
        self._clean = True  # nothing was sent since the last clear

    def tick(self, due_s: float | None = None) -> list[Block]:
        """What to send now; to be called every 20 ms. due_s: when that should have been, by the clock. The
        lateness of a tick would else decide whether it sends no block, one or two."""
        now_s = self._clock() if due_s is None else due_s
        self._hear(now_s)
        blocks: list[Block] = []
        while max(self._full_until_s, now_s) + BLOCK_S <= now_s + LEAD_S + 1e-6:
            block = self._next(now_s)
            if block is None:
                break
            blocks.append(block)
        self._pass_time(now_s)
        return blocks

    def played(self, mark: str) -> None:
        """The far end has played everything up to `mark`. Marks from before a clear, or lost ones that come
        after all, are ignored."""
        if mark in self._lost:
            self._lost.clear()  # late, but they do come
        if not any(sent.mark == mark for sent in self._sent):
            return
        self._lost.clear()
        while True:
            sent = self._sent[0]
            self._heard()
            if sent.mark == mark:
                self._lag_s = min(MAX_LAG_S, max(0.0, self._clock() - sent.end_s))
                return

    def _next(self, now_s: float) -> Block | None:
        pcm = self.playout.look(self._ahead, BLOCK)
        last = self.playout.complete and not len(self.playout.look(self._ahead + len(pcm), 1))
        if not len(pcm) or (len(pcm) < BLOCK and not last):
            return None  # carriers want whole blocks: the rest of this one is being made
        self._unmarked += 1
        mark = None
        if last or self._unmarked == MARK_BLOCKS:
            self._unmarked = 0
            self._marks += 1
            mark = f"m{self._marks}"
        self._full_until_s = max(self._full_until_s, now_s) + BLOCK_S
        self._sent.append(_Sent(len(pcm), self._full_until_s, mark))
        self._ahead += len(pcm)
        self._clean = False
        padded = pcm if len(pcm) == BLOCK else _padded(pcm)
        return Block(padded, mark)

    def _hear(self, now_s: float) -> None:
        """What has been played by now. A mark holds back all behind it until it returns."""
        while self._sent:
            sent = self._sent[0]
            awaited = sent.mark is not None and len(self._lost) < MAX_LOST
            if now_s < (sent.end_s + MAX_LAG_S if awaited else self._begins_s(sent)):
                return
            if sent.mark is not None:
                self._lost.append(sent.mark)
            self._heard()

    def _begins_s(self, sent: _Sent) -> float:
        """When a block begins to be played: half of a mark's delay is its own way back."""
        return sent.end_s - BLOCK_S + self._lag_s / 2

    def _heard(self) -> None:
        sent = self._sent.popleft()
        self._ahead -= sent.samples
        self.playout.read(sent.samples)
        self.playout.rest(BLOCK - sent.samples)

    def _pass_time(self, now_s: float) -> None:
        """Let silence go by where the far end plays nothing: the playout's position keeps its time."""
        due = max(0, round((now_s - self._began_s + BLOCK_S) * RATE) - self.playout.position)
        if self._sent:
            if now_s + BLOCK_S / 2 < self._begins_s(self._sent[0]):
                self.playout.rest(due)  # the first block has not reached it yet
        elif self.playout.buffered_s:
            self.playout.rest(due)  # paused, or less than a block is there
        else:
            self.playout.read(due)

    def _cut(self) -> None:
        now_s = self._clock()
        while self._sent and self._sent[0].end_s <= now_s:
            sent = self._sent[0]
            if sent.mark is not None and now_s > sent.end_s + self._lag_s + STANDSTILL_S:
                break
            self._heard()
        self._sent.clear()
        self._lost.clear()
        self._ahead = self._unmarked = 0
        self._full_until_s = 0.0
        if not self._clean:
            self._clean = True
            self._on_clear()


def _padded(pcm: Pcm) -> Pcm:
    block = silence(BLOCK_S, RATE)
    block[: len(pcm)] = pcm
    return block
