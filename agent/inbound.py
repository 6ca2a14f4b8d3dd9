"""Inbound: a caller's audio in real time, whatever the network did to it.

Sans-IO, one per call. Loss and lateness are told apart: what a later chunk shows to be lost becomes silence
of the same length and is not wanted any more, while a stream that only stands still is bridged with silence
until it goes on, and then nothing of it is dropped.
"""

from __future__ import annotations

from tts_plugin.audio import Pcm, silence

WINDOW_S = 0.06  # a missing chunk is waited for so long, three packets
SLACK_S = 0.011  # stamps are rounded to milliseconds, and some carriers' wander by half a packet
MOST_GAP_S = 2.0  # a longer jump of the stamps is the sender's clock, not a loss
STALL_S = 0.2  # nothing for so long and silence takes its place
STEP_S = 0.02


class Inbound:
    """Chunks of mono int16 at `rate` Hz as they arrive, in; the same in order, without holes, out.

    Times are seconds of one monotonic clock. Ask `tick` every 20 ms or so, also while chunks come.
    """

    def __init__(self, rate: int, *, window_s: float = WINDOW_S, stall_s: float = STALL_S) -> None:
        self.rate = rate
        self.lost_s = 0.0  # replaced by silence, because a later chunk came and it did not
        self.late = 0  # chunks that came after their place was given away, or twice
        self.bridged_s = 0.0  # silence given while nothing came
        self._window = round(window_s * rate)
        self._window_s = window_s
        self._stall_s = stall_s
        self._slack = round(SLACK_S * rate)
        self._next: int | None = None  # sample of the sender's count that is due
        self._early: dict[int, Pcm] = {}
        self._waiting_since_s = 0.0
        self._filled_to_s: float | None = None  # up to when the clock's time has been given out
        self._bridged = 0  # samples of silence given since the last chunk

    def push(self, pcm: Pcm, now_s: float, at: int | None = None) -> list[Pcm]:
        """A chunk that starts at sample `at` of the sender's count; None where the transport keeps order
        and counts nothing."""
        if len(pcm) == 0:
            return []
        at = (self._next or 0) if at is None else at
        if self._next is None or abs(at - self._next) > MOST_GAP_S * self.rate:
            self._early.clear()
            self._next = at  # the sender begins to count, or counts anew
        if at < self._next - self._slack or at in self._early:
            self.late += 1
            return []
        if not self._early:
            self._waiting_since_s = now_s
        self._early[at] = pcm
        hole = min(self._early) > self._next + self._slack
        newest = max(start + len(early) for start, early in self._early.items())
        if hole and newest - self._next <= self._window + len(pcm):
            return []
        return self._given_out(now_s)

    def tick(self, now_s: float) -> list[Pcm]:
        """What is due by now though nothing came: what waited behind a hole for too long, or silence."""
        if self._early:
            return self._given_out(now_s) if now_s - self._waiting_since_s >= self._window_s else []
        if self._filled_to_s is None or now_s - self._filled_to_s < self._stall_s:
            return []
        steps = int((now_s - self._filled_to_s - self._stall_s) / STEP_S) + 1
        self._filled_to_s += steps * STEP_S
        self.bridged_s += steps * STEP_S
        step = silence(STEP_S, self.rate)
        self._bridged += steps * len(step)
        return [step] * steps

    def _given_out(self, now_s: float) -> list[Pcm]:
        """The earliest of what waits, silence for the hole before it, and what follows without another."""
        assert self._next is not None
        parts: list[Pcm] = []
        start = min(self._early)
        # a stream that stood still and then jumped has had its silence already
        missing = start - self._next - self._bridged
        if missing > self._slack:
            self.lost_s += missing / self.rate
            parts.append(silence(missing / self.rate, self.rate))
        self._next = start
        while self._early and (start := min(self._early)) <= self._next + self._slack:
            pcm = self._early.pop(start)
            if start < self._next - self._slack:
                self.late += 1  # it overlaps what has been given out
                continue
            parts.append(pcm)
            self._next = start + len(pcm)
        self._waiting_since_s = self._filled_to_s = now_s
        self._bridged = 0
        return parts
