"""Utterance: one turn, text in and frames out; leaving its block is the cancel."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Self

from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Engine, Segment, Turn
from tts_plugin.errors import SynthesisFailed, TTSError, UnsupportedText
from tts_plugin.hearing import Hearing
from tts_plugin.limits import LEAD_S
from tts_plugin.resample import FrameResampler
from tts_plugin.spoken import Span, SpokenText, without_half_pairs
from tts_plugin.text.normalise import normalise
from tts_plugin.text.split import Piece, Splitter
from tts_plugin.timing import Clock, Timeline

_PIECE_S = 0.08  # longest frame handed out: small enough to pace and to cancel between, cheap to send
_BITE = 2000  # characters split at once: a few milliseconds of the event loop
_WAITING = 4  # frames that may wait for a slow reader, beside the lead


class Utterance:
    """One turn of one engine.

    `push` text as it comes, `end` it, iterate the frames; leave the block at any time and the engine is
    freed. Frames come at `rate` Hz (None = the engine's) and at most `lead_s` seconds ahead of a listener
    who hears the first frame at once (None = as fast as the engine goes). Errors reach the iterator, once.
    """

    def __init__(
        self,
        engine: Engine,
        turn: Turn,
        *,
        rate: int | None = None,
        lead_s: float | None = LEAD_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rate = rate or engine.rate
        self.text = SpokenText(self.rate)
        self.timeline = Timeline(clock)
        self.foreign = ""  # a sample of what was left out because the voice does not speak its language
        self._hearing = Hearing(self.timeline, clock)
        self._engine = engine
        self._turn = replace(turn, note=self.timeline.stage, count=self.timeline.count)
        self._lead_s = lead_s
        self._clock = clock
        self._splitter = Splitter()
        self._pushed: deque[str | None] = deque()  # text not yet split; None = flush
        self._pieces: deque[Piece] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._segments_made: list[Segment] = []
        self._frames: asyncio.Queue[AudioFrame | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_WAITING)  # bounds the queue; the end mark needs no room
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._pump = asyncio.create_task(self._run(), name="utterance")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._pump is not None
        self._pump.cancel()
        await asyncio.wait([self._pump])
        self.timeline.mark("ended")

    def push(self, text: str) -> None:
        """More text; deltas may cut words anywhere."""
        text = without_half_pairs(text)
        if not text:
            return
        self.timeline.mark("first_text")
        self.text.add_text(text)
        self._pushed.extend(text[at : at + _BITE] for at in range(0, len(text), _BITE))
        self._arrived.set()

    def flush(self) -> None:
        """Speak what was pushed without waiting for the end of its sentence."""
        self._pushed.append(None)
        self._arrived.set()

    def end(self) -> None:
        """No more text; iteration ends after the last sample. Twice is fine."""
        self._ended = True
        self.flush()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioFrame:
        assert self._pump is not None, "iterate inside `async with`"
        if self._frames.empty() and self._pump.done():
            raise StopAsyncIteration
        frame = await self._frames.get()
        if frame is None:
            await self._pump  # raises what the engine raised
            raise StopAsyncIteration
        self._room.release()
        return frame

    def spoken(self, heard_s: float) -> str:
        """The text that a listener has heard `heard_s` seconds into the utterance, right to about a word."""
        return self.text.heard(heard_s)

    @property
    def orphan_s(self) -> float:
        """Seconds made so far that a listener who heard the first frame at once has not heard by now."""
        if self.timeline.first_frame_s is None:
            return 0.0
        return max(0.0, self.timeline.audio_s - (self._clock() - self.timeline.first_frame_s))

    async def _run(self) -> None:
        try:
            await self._speak()
        except TTSError:
            raise
        except Exception as error:  # the engine's outermost frame: whatever it raised becomes ours
            raise SynthesisFailed(
                f"engine {self._turn.voice.engine} failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            self.timeline.mark("ended")
            self._frames.put_nowait(None)

    async def _speak(self) -> None:
        edge = FrameResampler(self._engine.rate, self.rate)
        async with (
            aclosing(self._segments()) as segments,
            aclosing(self._engine.speak(self._turn, segments)) as frames,
        ):
            async for frame in frames:
                self.timeline.stage("engine")
                self._note(frame)
                for ready in edge.push(frame):
                    await self._hand_out(ready)
        for ready in edge.flush():
            await self._hand_out(ready)
        if not self._segments_made and self.foreign:
            raise UnsupportedText(
                f'voice "{self._turn.voice.id}" speaks {self._turn.voice.language} and can read nothing of '
                f'"{self.foreign}"; choose a voice of that language'
            )

    async def _segments(self) -> AsyncGenerator[Segment]:
        """Segments as the text allows them; a pause in the text releases what waits."""
        while True:
            while self._pieces:
                segment = self._segment(self._pieces.popleft())
                if segment is not None:
                    yield segment
            if self._pushed:
                text = self._pushed.popleft()
                self._pieces.extend(self._splitter.flush() if text is None else self._splitter.push(text))
                await asyncio.sleep(0)
                continue
            if self._ended:
                return
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._splitter.stall_s if self._splitter.pending else None):
                    await self._arrived.wait()
            except TimeoutError:
                self._pieces.extend(self._splitter.release())

    def _segment(self, piece: Piece) -> Segment | None:
        """The piece as a segment, or None if nothing in it can be spoken."""
        language = self._turn.voice.language if self._engine.languages else ""
        spoken = normalise(piece.raw, language)
        self.foreign = self.foreign or spoken.foreign
        if not spoken.text:
            return None
        segment = Segment(len(self._segments_made), spoken.text, piece.start, piece.end)
        self._segments_made.append(segment)
        self.timeline.segments += 1
        self._hearing.asked()
        self.timeline.mark("first_segment")
        return segment

    def _note(self, frame: AudioFrame) -> None:
        """Keep the books before the frame goes out: spans at our rate, first frame, seconds made."""
        segment = self._segments_made[frame.segment]
        spans = self.text.spans
        known = spans[-1] if spans and spans[-1].text_from == segment.start else None
        if known is None or frame.ends_segment:
            self.text.add_span(
                Span(
                    text_from=segment.start,
                    text_to=segment.end,
                    sample_from=known.sample_from if known else self._at_our_rate(frame.start),
                    sample_to=self._at_our_rate(frame.stop) if frame.ends_segment else None,
                )
            )
        self.timeline.audio_s = frame.stop / frame.rate

    def _at_our_rate(self, sample: int) -> int:
        return round(sample * self.rate / self._engine.rate)

    async def _hand_out(self, frame: AudioFrame) -> None:
        for piece in frame.pieces(round(_PIECE_S * self.rate)):
            self.timeline.stage("resample")
            self.timeline.mark("first_frame")
            if self._lead_s is not None and self.timeline.first_frame_s is not None:
                due_s = self.timeline.first_frame_s + piece.start / self.rate - self._lead_s
                await asyncio.sleep(max(0.0, due_s - self._clock()))
            begun_s = self._clock()
            await self._room.acquire()
            self._hearing.held_up(self._clock() - begun_s)
            self._hearing.frame(piece)
            self._frames.put_nowait(piece)
