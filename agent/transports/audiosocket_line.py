"""AudioSocketLine: one of Asterisk's calls as a MediaLine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from agent.dtmf import Presses, ToneKeys
from agent.inbound import Inbound
from agent.line import DIGITS, CallInfo, TransferFailed
from agent.media_io import QueueInput
from agent.playout import Playout
from agent.transports.agi import TARGET, Outcome
from agent.transports.audiosocket_wire import RATES, Kind, Message
from tts_plugin.audio import Pcm
from tts_plugin.resample import StreamResampler
from tts_plugin.timing import Clock


class AudioSocketLine:
    """One call. Its playout and audio run at the rate that Asterisk sends, 8 kHz from AudioSocket()."""

    def __init__(self, call: CallInfo, rate: int, *, clock: Clock = time.monotonic) -> None:
        self._call = call
        # a block is 20 ms: with a tail in the next one, an interruption would be heard that much later
        self._playout = Playout(rate, tails=False)
        self._audio = QueueInput(rate)
        self._clock = clock
        self._inbound = Inbound(rate)
        self._tones = ToneKeys(rate)
        self._presses = Presses()
        self._on_digit: Callable[[str], None] | None = None
        self._unread: deque[str] = deque(maxlen=64)
        self._converter: StreamResampler | None = None  # of a rate that changed in the call
        self._ended = asyncio.Event()
        self.outcome = Outcome("")

    @property
    def kind(self) -> Literal["audiosocket"]:
        return "audiosocket"

    @property
    def call(self) -> CallInfo:
        return self._call

    @property
    def playout(self) -> Playout:
        return self._playout

    @property
    def audio(self) -> QueueInput:
        return self._audio

    def on_digit(self, callback: Callable[[str], None]) -> None:
        self._on_digit = callback
        while self._unread:
            callback(self._unread.popleft())

    async def transfer(self, target: str) -> None:
        """Give the call back to the dialplan, which asks for `target` by AGI and dials it; see
        docs/asterisk.md. Nobody tells us whether it does: a dialplan that asks nothing just goes on."""
        if not TARGET.fullmatch(target):
            raise TransferFailed(
                f"{target!r} is nothing that a dialplan can dial: an extension or an address"
            )
        if self._ended.is_set():
            raise TransferFailed(f"the call is over: {self.outcome.why}")
        self._end(Outcome(f"handed over to {target}", target))

    def hang_up(self, why: str) -> None:
        self._end(Outcome(why))

    async def ended(self) -> str:
        await self._ended.wait()
        return self.outcome.why

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def _end(self, outcome: Outcome) -> None:
        if not self._ended.is_set():
            self.outcome = outcome
            self._ended.set()
            self._audio.close()

    def take(self, message: Message) -> None:
        """What Asterisk says."""
        if message.kind in RATES:
            self._hear(message.pcm, RATES[message.kind])
        elif message.kind == Kind.DTMF:
            key = message.payload[:1].decode("latin-1").upper()
            if key in DIGITS and self._presses.event(key, self._clock()):
                self._press(key)
        elif message.kind == Kind.HANGUP:
            self.hang_up("the caller hung up")
        elif message.kind == Kind.ERROR:
            self.hang_up(f"Asterisk reports error {message.payload.hex() or 'without a code'}")
        # newer kinds are skipped

    def tick(self) -> None:
        """20 ms have passed."""
        for pcm in self._inbound.tick(self._clock()):
            self._audio.push(pcm)

    def _hear(self, pcm: Pcm, rate: int) -> None:
        if rate != self._audio.rate:
            if self._converter is None or self._converter.rate_in != rate:
                self._converter = StreamResampler(rate, self._audio.rate, "LQ")
            pcm = self._converter.push(pcm)
        now_s = self._clock()
        for key in self._tones.push(pcm):
            if self._presses.tone(key, now_s):
                self._press(key)
        if self._tones.sounding is not None:
            self._presses.sounds(self._tones.sounding, now_s)
            pcm = np.zeros_like(pcm)  # no word of the caller's: any VAD takes a tone for speech
        for part in self._inbound.push(pcm, now_s):
            self._audio.push(part)

    def _press(self, key: str) -> None:
        if self._on_digit is None:
            self._unread.append(key)
        else:
            self._on_digit(key)
