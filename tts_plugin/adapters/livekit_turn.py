"""Attempt: one turn between LiveKit's streams and an utterance, tried once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from livekit.agents import APITimeoutError, tts
from livekit.agents.types import TimedString

from tts_plugin.adapters.patience import Patience
from tts_plugin.adapters.source import Options, Speech
from tts_plugin.audio import AudioFrame, bytes_of
from tts_plugin.spoken import SpokenText, without_half_pairs

logger = logging.getLogger("livekit.plugins.sparkvoice")


class Attempt:
    """One attempt at one turn: text to the utterance, its frames and words to the emitter.

    anchor: called with each delta up to the one that completed the first piece. LiveKit's TTFB counts from
    its last call, because what comes before is the language model's time.
    """

    def __init__(
        self,
        emitter: tts.AudioEmitter,
        options: Options,
        timeout_s: float,
        lead_s: float | None,
        anchor: Callable[[], None],
    ) -> None:
        self.emitter = emitter
        self.options = options
        self.timeout_s = timeout_s
        self.lead_s = lead_s
        self.acquire_s = 0.0  # until the utterance was open
        self.connection_reused = False
        self._anchor = anchor
        self._anchored = False
        self._worded_s = 0.0  # end of the last word handed out

    async def run(self, speech: Speech, opening: str, texts: AsyncIterator[str | None]) -> bool:
        """Speak it all; False if nothing of it could be spoken."""
        patience = Patience(speech.text, self.timeout_s, self.lead_s)
        feeding = asyncio.create_task(self._feed(speech, patience, opening, texts), name="sparkvoice-feed")
        try:
            while (frame := await self._next(speech, patience)) is not None:
                patience.frame(frame, time.monotonic())
                self._anchored = True
                self._push_words(speech.text, frame.stop / frame.rate)
                self.emitter.push(bytes_of(frame.pcm))
            await feeding  # raises what it met
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        end_s = patience.received_s
        for word in speech.text.take_rest(end_s):
            self.emitter.push_timed_transcript(_timed(word.text, end_s, end_s))
        logger.debug("spoken", extra={"timeline": speech.timeline.report()})
        return end_s > 0

    async def _feed(
        self, speech: Speech, patience: Patience, opening: str, texts: AsyncIterator[str | None]
    ) -> None:
        try:
            self._push(speech, patience, opening)
            async for text in texts:
                if text is None:
                    patience.flush(time.monotonic())
                    self._note_time(patience)
                    speech.flush()
                else:
                    self._push(speech, patience, text)
        except Exception:
            speech.end()  # ends the iteration, after which run() raises what was met here
            raise
        patience.end(time.monotonic())
        self._note_time(patience)
        speech.end()

    def _push(self, speech: Speech, patience: Patience, text: str) -> None:
        text = without_half_pairs(text)
        patience.push(text, time.monotonic())
        self._note_time(patience)
        speech.push(text)

    def _note_time(self, patience: Patience) -> None:
        if not self._anchored:
            self._anchor()
            self._anchored = patience.released

    async def _next(self, speech: Speech, patience: Patience) -> AudioFrame | None:
        """The next frame, None after the last; APITimeoutError if the engine is silent for too long."""
        while True:
            try:
                async with asyncio.timeout(patience.left_s(time.monotonic())):
                    return await anext(speech, None)
            except TimeoutError:
                if patience.left_s(time.monotonic()) <= 0:
                    raise APITimeoutError(f"the engine made no sound for {self.timeout_s} s") from None

    def _push_words(self, text: SpokenText, until_s: float) -> None:
        """The words that begin before `until_s`. LiveKit wants them in order, so a word that was placed
        by estimate does not end after the audio at hand, or the next could begin before it."""
        estimated = not text.spans or text.spans[-1].sample_to is None
        for word in text.take(until_s):
            start_s = max(word.start_s, self._worded_s)
            end_s = max(start_s, min(word.end_s, until_s) if estimated else word.end_s)
            self._worded_s = end_s
            self.emitter.push_timed_transcript(_timed(word.text, start_s, end_s))


async def opening_of(texts: AsyncIterator[str | None]) -> str:
    """The text up to the first delta that holds more than whitespace; empty if none comes."""
    opening = ""
    async for text in texts:
        opening += text or ""
        if opening.strip():
            return opening
    return ""


def _timed(text: str, start_s: float, end_s: float) -> TimedString:
    return TimedString(text, start_time=start_s, end_time=end_s)
