"""Recording: a call as a stereo WAV file, caller left and agent right, each where it was on the clock."""

from __future__ import annotations

import time
import wave
from collections import deque
from pathlib import Path

import numpy as np

from agent.desk.scribe import Scribe
from tts_plugin.audio import Pcm, bytes_of, silence
from tts_plugin.resample import StreamResampler
from tts_plugin.timing import Clock

_LATE_S = 0.3  # a channel is written up to here: what comes later than that was silence
_SLACK_S = 0.1  # a stream nearer to the clock than this is continuous


class Channel:
    """One direction: samples as they come, placed by the clock when there was a gap."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._waiting: deque[Pcm] = deque()
        self.end = 0  # samples from the beginning to the end of what came

    def push(self, pcm: Pcm, now_s: float) -> None:
        """Audio that was heard until `now_s`, seconds since the beginning."""
        began = round(now_s * self._rate) - len(pcm)
        gap = began - self.end
        if gap > _SLACK_S * self._rate:
            self._waiting.append(silence(gap / self._rate, self._rate))
            self.end += len(self._waiting[-1])
        self._waiting.append(pcm)
        self.end += len(pcm)

    def take(self, samples: int) -> Pcm:
        """The next `samples`, silence where none came."""
        out = np.zeros(samples, np.int16)
        at = 0
        while at < samples and self._waiting:
            piece = self._waiting.popleft()
            fits = samples - at
            out[at : at + len(piece[:fits])] = piece[:fits]
            at += len(piece[:fits])
            if len(piece) > fits:
                self._waiting.appendleft(piece[fits:])
        return out


class Recording:
    """Runs from its making on. path: gets the file when it is finished, whole; until then it ends in .part.

    rate: Hz of the file and of what the agent says; caller_rate: of what the caller says (None: the same).
    Everything is written by `scribe`.
    """

    def __init__(
        self,
        path: Path,
        rate: int,
        scribe: Scribe,
        clock: Clock = time.monotonic,
        *,
        caller_rate: int | None = None,
    ) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._rate = rate
        self._callers = StreamResampler(caller_rate or rate, rate)
        self._scribe = scribe
        self._clock = clock
        self._began_s = clock()
        self._caller, self._agent = Channel(rate), Channel(rate)
        self._written = 0
        self._over = False
        self._file = _File(self._part, rate)

    def caller(self, pcm: Pcm) -> None:
        """The caller said this just now."""
        self._push(self._caller, self._callers.push(pcm))

    def agent(self, pcm: Pcm) -> None:
        """The caller heard this just now."""
        self._push(self._agent, pcm)

    def finish(self) -> None:
        """The call is over: what there is becomes the file. Twice is fine."""
        if not self._over:
            self._over = True
            self._write(max(self._caller.end, self._agent.end))
            self._scribe.write(self._file.finish, self.path)

    def discard(self) -> None:
        """There shall be no recording: nothing of it is left."""
        if not self._over:
            self._over = True
            self._scribe.write(self._file.discard)

    def _push(self, channel: Channel, pcm: Pcm) -> None:
        if self._over:
            return
        now_s = self._clock() - self._began_s
        channel.push(pcm, now_s)
        settled = max(min(self._caller.end, self._agent.end), round((now_s - _LATE_S) * self._rate))
        if settled - self._written >= self._rate // 2:
            self._write(settled)

    def _write(self, until: int) -> None:
        count = until - self._written
        if count <= 0:
            return
        both = np.stack((self._caller.take(count), self._agent.take(count)), axis=1).reshape(-1)
        for channel in (self._caller, self._agent):
            channel.end = max(channel.end, until)  # what was not there in time was silence
        self._written = until
        self._scribe.write(self._file.append, bytes_of(both))


class _File:
    """The WAV file, touched by the scribe's thread only; its header is right after every append."""

    def __init__(self, part: Path, rate: int) -> None:
        self._part = part
        self._rate = rate
        self._wave: wave.Wave_write | None = None

    def append(self, data: bytes) -> None:
        if self._wave is None:
            self._part.parent.mkdir(parents=True, exist_ok=True)
            self._wave = wave.open(str(self._part), "wb")  # noqa: SIM115 - closed by finish or discard
            self._wave.setnchannels(2)
            self._wave.setsampwidth(2)
            self._wave.setframerate(self._rate)
        self._wave.writeframes(data)

    def finish(self, path: Path) -> None:
        if self._wave is not None:
            self._wave.close()
            self._part.replace(path)

    def discard(self) -> None:
        if self._wave is not None:
            self._wave.close()
            self._part.unlink(missing_ok=True)
