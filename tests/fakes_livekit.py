"""Small real implementations of what an AgentSession is made of, and a call without a network.

They follow scripts instead of models and run in real time, so keep what they say short.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit.agents import APIConnectOptions, LanguageCode, llm, stt, tts, utils, vad
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, NotGivenOr, TimedString

from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.playout import Playout
from tts_plugin.audio import Pcm, bytes_of, silence

RATE = 24000
S_PER_CHAR = 0.04
TICK_S = 0.02
TONE = 9000  # amplitude of the audible voice


def voice(samples: int, start: int = 0) -> Pcm:
    """The fake voice: no sample is zero and neighbours are near, so a gap or a repeat shows."""
    return (5000 + (np.arange(start, start + samples) % 15000)).astype(np.int16)


def spoken_by(text: str, heard_s: float) -> str:
    """What of `text` the fake voice has said after `heard_s` seconds."""
    return text[: round(heard_s / S_PER_CHAR)]


def one_word_around(text: str, heard: str, kept: str) -> bool:
    """Whether `kept` begins `text` and ends with the word that ends what was `heard` of it, or one of its
    neighbours; `heard` may end within a word."""
    words = kept.split()
    begun, whole = len(heard.split()), len(heard.split(" ")) - 1
    return text.split()[: len(words)] == words and begun - 1 <= len(words) <= whole + 1


# ------------------------------------------------------------------------------------ speech
class Engine:
    """Pretends to synthesise: `ttfa_s` to the first chunk, then `speed` times real time."""

    def __init__(self, *, ttfa_s: float = 0.05, speed: float = 4.0) -> None:
        self.ttfa_s = ttfa_s
        self.speed = speed
        self.active = 0
        self.cancelled = 0
        self.texts: list[str] = []

    async def speak(self, text: str, start: int) -> AsyncGenerator[Pcm]:
        self.active += 1
        self.texts.append(text)
        done = False
        try:
            if start == 0:
                await asyncio.sleep(self.ttfa_s)
            if not any(char.isalnum() for char in text):
                done = True
                yield silence(0.1, RATE)
                return
            total = round(len(text) * S_PER_CHAR * RATE)
            step = round(0.08 * RATE)
            for at in range(0, total, step):
                count = min(step, total - at)
                await asyncio.sleep(count / RATE / self.speed)
                yield voice(count, start + at)
            done = True
        finally:
            self.active -= 1
            self.cancelled += not done


class Audible(Engine):
    """Speaks in a tone of 400 Hz: Opus takes the other fake voice for a direct current."""

    async def speak(self, text: str, start: int) -> AsyncGenerator[Pcm]:
        async with aclosing(super().speak(text, start)) as chunks:
            async for pcm in chunks:
                times = np.arange(start, start + len(pcm)) / RATE
                start += len(pcm)
                yield (TONE * np.sin(2 * np.pi * 400 * times)).astype(np.int16)


class WordTTS(tts.TTS[str]):
    """Streams each word as it comes and says when it is heard."""

    def __init__(self, engine: Engine | None = None) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=RATE,
            num_channels=1,
        )
        self.engine = engine or Engine()

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.SynthesizeStream:
        return _WordStream(self, conn_options)


class _WordStream(tts.SynthesizeStream):
    def __init__(self, owner: WordTTS, conn_options: APIConnectOptions) -> None:
        self._engine = owner.engine
        super().__init__(tts=owner, conn_options=conn_options)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=RATE,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        start = 0
        async for text in self._words():
            if start == 0:
                output_emitter.start_segment(segment_id=utils.shortuuid())
                self._mark_started()
            output_emitter.push_timed_transcript(
                TimedString(text, start_time=start / RATE, end_time=start / RATE + len(text) * S_PER_CHAR)
            )
            async with aclosing(self._engine.speak(text, start)) as chunks:
                async for pcm in chunks:
                    output_emitter.push(bytes_of(pcm))
                    start += len(pcm)
        if start:
            output_emitter.end_segment()

    async def _words(self) -> AsyncIterator[str]:
        """Words with the space after them, as soon as they are complete."""
        rest = ""
        async for item in self._input_ch:
            rest += item if isinstance(item, str) else ""
            *whole, rest = rest.split(" ")
            for word in whole:
                yield f"{word} "
        if rest.strip():
            yield rest


# ----------------------------------------------------------------------------------- answers
@dataclass(frozen=True)
class ToolCall:
    """A turn of the language model that calls a tool and says nothing."""

    name: str
    arguments: str = "{}"


class ScriptLLM(llm.LLM[str]):
    """Gives one reply of its script after another, word by word; the last one again and again."""

    def __init__(self, replies: Sequence[str | ToolCall]) -> None:
        super().__init__()
        self._replies = list(replies)
        self.asked: list[llm.ChatContext] = []

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,
    ) -> llm.LLMStream:
        self.asked.append(chat_ctx.copy())
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return _Reply(self, reply, chat_ctx, tools or [], conn_options)


class _Reply(llm.LLMStream):
    def __init__(
        self,
        owner: ScriptLLM,
        reply: str | ToolCall,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        conn_options: APIConnectOptions,
    ) -> None:
        self._reply = reply
        super().__init__(owner, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)

    async def _run(self) -> None:
        if isinstance(self._reply, ToolCall):
            call = llm.FunctionToolCall(
                name=self._reply.name, arguments=self._reply.arguments, call_id="call"
            )
            self._send(llm.ChoiceDelta(role="assistant", tool_calls=[call]))
            return
        for word in self._reply.split(" "):
            self._send(llm.ChoiceDelta(role="assistant", content=f"{word} "))
            await asyncio.sleep(0)

    def _send(self, delta: llm.ChoiceDelta) -> None:
        self._event_ch.send_nowait(llm.ChatChunk(id="reply", delta=delta))


# ------------------------------------------------------------------------------------ hearing
class ScriptSTT(stt.STT[str]):
    """Recognises what the test tells it to."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self._stream: _ScriptHearing | None = None

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.RecognizeStream:
        self._stream = _ScriptHearing(stt=self, conn_options=conn_options)
        return self._stream

    def hear(self, text: str, *, final: bool = True) -> None:
        kind = stt.SpeechEventType.FINAL_TRANSCRIPT if final else stt.SpeechEventType.INTERIM_TRANSCRIPT
        assert self._stream
        self._stream.tell(
            stt.SpeechEvent(type=kind, alternatives=[stt.SpeechData(text=text, language=LanguageCode("en"))])
        )


class _ScriptHearing(stt.RecognizeStream):
    def tell(self, event: stt.SpeechEvent) -> None:
        self._event_ch.send_nowait(event)

    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass


class ScriptVAD(vad.VAD):
    """Hears speech when the test says so."""

    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=TICK_S))
        self._stream: _ScriptDetector | None = None

    def stream(self) -> vad.VADStream:
        self._stream = _ScriptDetector(self)
        return self._stream

    def begin(self) -> None:
        """The caller starts to speak: 100 ms of it have been heard."""
        self._tell(vad.VADEventType.START_OF_SPEECH, speech_s=0.1)
        self._tell(vad.VADEventType.INFERENCE_DONE, speech_s=0.1)

    def end(self, speech_s: float = 0.5, silence_s: float = 0.28) -> None:
        """The caller has been silent for `silence_s`."""
        self._tell(vad.VADEventType.END_OF_SPEECH, speech_s=speech_s, silence_s=silence_s)
        self._tell(vad.VADEventType.INFERENCE_DONE, silence_s=silence_s)

    def _tell(self, kind: vad.VADEventType, *, speech_s: float = 0.0, silence_s: float = 0.0) -> None:
        assert self._stream
        self._stream.tell(
            vad.VADEvent(
                type=kind,
                samples_index=0,
                timestamp=time.monotonic(),
                speech_duration=speech_s,
                silence_duration=silence_s,
                speaking=silence_s == 0,
                raw_accumulated_speech=speech_s if silence_s == 0 else 0.0,
                raw_accumulated_silence=silence_s,
            )
        )


class _ScriptDetector(vad.VADStream):
    def tell(self, event: vad.VADEvent) -> None:
        self._event_ch.send_nowait(event)

    async def _main_task(self) -> None:
        async for _ in self._input_ch:
            pass


# ------------------------------------------------------------------------------------ the call
@dataclass
class Handset:
    """The far end of a call without a network: a clock takes 20 ms blocks and sends silence back."""

    rate: int = RATE
    blocks: list[Pcm] = field(default_factory=list)
    controls: list[tuple[Control, int]] = field(default_factory=list)  # with the number of blocks so far

    def __post_init__(self) -> None:
        self.playout = Playout(self.rate)
        self.output = PlayoutOutput(self.playout)
        self.output.on_control(lambda control: self.controls.append((control, len(self.blocks))))
        self.input = QueueInput(16000)
        self.mic: list[Pcm] = []  # what the caller says next, 20 ms at 16 kHz each

    @property
    def heard(self) -> Pcm:
        """Everything handed out so far."""
        return np.concatenate(self.blocks) if self.blocks else np.zeros(0, dtype=np.int16)

    @property
    def sounding_s(self) -> float:
        """Seconds in which something else than silence was handed out."""
        return int(np.count_nonzero(self.heard)) / self.rate

    def tick(self) -> None:
        self.blocks.append(self.playout.read(round(TICK_S * self.rate)))
        self.input.push(self.mic.pop(0) if self.mic else silence(TICK_S, 16000))

    async def run(self) -> None:
        due_s = time.monotonic()
        while True:
            self.tick()
            due_s += TICK_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


@asynccontextmanager
async def handset(rate: int = RATE) -> AsyncIterator[Handset]:
    """A handset whose clock runs inside the block."""
    far_end = Handset(rate)
    clock = asyncio.create_task(far_end.run())
    try:
        yield far_end
    finally:
        clock.cancel()
        await asyncio.wait([clock])
        far_end.input.close()
