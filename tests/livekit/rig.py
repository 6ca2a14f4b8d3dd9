"""A real AgentSession without a server: scripted ears and brain, and a listener who hears in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit import rtc
from livekit.agents import (
    NOT_GIVEN,
    Agent,
    AgentSession,
    CloseEvent,
    InterruptionOptions,
    LanguageCode,
    llm,
    stt,
    tts,
    vad,
)
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, NotGivenOr
from livekit.agents.voice import io
from livekit.agents.voice.transcription.synchronizer import TranscriptSynchronizer

from tests.livekit.helpers import until
from tts_plugin.audio import Pcm, samples_of

_TICK_S = 0.01


class EchoLLM(llm.LLM[Any]):
    """Answers `reply`, or with what the user said last in it, a word at a time."""

    def __init__(self, reply: str, word_s: float = 0.01) -> None:
        super().__init__()
        self.reply = reply
        self.word_s = word_s
        self.asked: list[str] = []

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        **_: Any,  # the base class's own; none of them matters here
    ) -> llm.LLMStream:
        return _EchoStream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)


class _EchoStream(llm.LLMStream):
    async def _run(self) -> None:
        brain = self._llm
        assert isinstance(brain, EchoLLM)
        said = [item.text_content or "" for item in self._chat_ctx.messages() if item.role == "user"]
        brain.asked.append(said[-1] if said else "")
        for word in brain.reply.format(said=brain.asked[-1]).split(" "):
            await asyncio.sleep(brain.word_s)
            delta = llm.ChoiceDelta(role="assistant", content=word + " ")
            self._event_ch.send_nowait(llm.ChatChunk(id="reply", delta=delta))


class ScriptedVAD(vad.VAD):
    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.05))
        self._stream: _ScriptedVADStream | None = None

    def stream(self) -> vad.VADStream:
        self._stream = _ScriptedVADStream(self)
        return self._stream

    async def hear(self, seconds: float) -> None:
        """Hear the caller talk that long."""
        assert self._stream is not None
        self._stream.emit(vad.VADEventType.START_OF_SPEECH, seconds=0.0)
        start_s = time.monotonic()
        while (spoken_s := time.monotonic() - start_s) < seconds:
            self._stream.emit(vad.VADEventType.INFERENCE_DONE, seconds=spoken_s)
            await asyncio.sleep(0.05)
        self._stream.emit(vad.VADEventType.END_OF_SPEECH, seconds=seconds)


class _ScriptedVADStream(vad.VADStream):
    async def _main_task(self) -> None:
        async for _ in self._input_ch:
            pass

    def emit(self, kind: vad.VADEventType, *, seconds: float) -> None:
        talking = kind is not vad.VADEventType.END_OF_SPEECH
        event = vad.VADEvent(
            type=kind,
            samples_index=0,
            timestamp=time.time(),
            speech_duration=seconds,
            silence_duration=0.0 if talking else 0.2,
            raw_accumulated_speech=seconds if talking else 0.0,
            raw_accumulated_silence=0.0 if talking else 0.2,
        )
        self._event_ch.send_nowait(event)


class ScriptedSTT(stt.STT[Any]):
    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self._stream: _ScriptedSTTStream | None = None

    async def _recognize_impl(
        self,
        buffer: object,
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
        self._stream = _ScriptedSTTStream(stt=self, conn_options=conn_options)
        return self._stream

    def understand(self, text: str, kind: stt.SpeechEventType = stt.SpeechEventType.FINAL_TRANSCRIPT) -> None:
        assert self._stream is not None
        self._stream.emit(text, kind)


class _ScriptedSTTStream(stt.RecognizeStream):
    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass

    def emit(self, text: str, kind: stt.SpeechEventType) -> None:
        data = stt.SpeechData(text=text, language=LanguageCode("en"))
        self._event_ch.send_nowait(stt.SpeechEvent(type=kind, alternatives=[data]))


class Silence(io.AudioInput):
    """A caller who says nothing, in real time."""

    def __init__(self) -> None:
        super().__init__(label="silence")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(0.02)
        return rtc.AudioFrame(bytes(640), 16000, 1, 320)


class Listener(io.AudioOutput):
    """Plays in real time, 10 ms a tick, and keeps what was heard.

    heard: samples played, silence between turns left out. ticks: when sound was heard (monotonic).
    """

    def __init__(self, rate: int, *, can_pause: bool) -> None:
        capabilities = io.AudioOutputCapabilities(pause=can_pause)
        super().__init__(label="listener", capabilities=capabilities, sample_rate=rate)
        self.rate = rate
        self.heard: list[Pcm] = []
        self.ticks: list[float] = []
        self.positions: list[float] = []
        self._waiting: list[Pcm] = []
        self._queue = samples_of(b"")
        self._captured = self._played = 0
        self._flushed = self._started = self._paused = False
        self._clock = asyncio.create_task(self._play(), name="listener")

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        assert frame.sample_rate == self.rate
        self._queue = np.concatenate((self._queue, samples_of(bytes(frame.data))))
        self._captured += frame.samples_per_channel

    def flush(self) -> None:
        super().flush()
        self._flushed = self._captured > 0

    def clear_buffer(self) -> None:
        if self._captured:
            self._queue = self._queue[:0]
            self._finish(interrupted=True)

    def pause(self) -> None:
        super().pause()
        self._paused = True

    def resume(self) -> None:
        super().resume()
        self._paused = False

    async def aclose(self) -> None:
        self._clock.cancel()
        await asyncio.wait([self._clock])

    def _finish(self, *, interrupted: bool) -> None:
        position_s = self._played / self.rate
        self._captured = self._played = 0
        self._flushed = self._started = False
        self.positions.append(position_s)
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)

    async def _play(self) -> None:
        samples = round(self.rate * _TICK_S)
        due_s = time.monotonic()
        while True:
            due_s += _TICK_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if self._paused:
                continue
            if len(self._queue):
                if not self._started:
                    self._started = True
                    self.on_playback_started(created_at=time.time())
                tick, self._queue = self._queue[:samples], self._queue[samples:]
                self._played += len(tick)
                self.heard.append(tick)
                if tick.any():
                    self.ticks.append(time.monotonic())
            elif self._flushed:
                self._finish(interrupted=False)


class Captions(io.TextOutput):
    def __init__(self) -> None:
        super().__init__(label="captions", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """A turn's end; the tests look at the text only."""


@dataclass
class Rig:
    session: AgentSession[None]
    vad: ScriptedVAD
    stt: ScriptedSTT
    brain: EchoLLM
    listener: Listener
    captions: Captions
    closed: list[CloseEvent] = field(default_factory=list)
    resumed: list[object] = field(default_factory=list)

    @property
    def messages(self) -> list[llm.ChatMessage]:
        """What the history says the agent said."""
        return [message for message in self.session.history.messages() if message.role == "assistant"]

    @property
    def heard(self) -> Pcm:
        return np.concatenate([samples_of(b""), *self.listener.heard])

    async def sounding(self, seconds: float = 0.0) -> None:
        """Wait until so much has been heard."""
        await until(lambda: len(self.heard) > seconds * self.listener.rate, 10.0)


@asynccontextmanager
async def rig(
    plugin: tts.TTS[Any],
    *,
    reply: str = "You said {said}.",
    rate: int = 24000,
    can_pause: bool = False,
    interruption: InterruptionOptions | None = None,
    preemptive_tts: bool = False,
) -> AsyncIterator[Rig]:
    """A started session that speaks by `plugin`."""
    ears, brain, activity = ScriptedSTT(), EchoLLM(reply), ScriptedVAD()
    session = AgentSession[None](
        vad=activity,
        stt=ears,
        llm=brain,
        tts=plugin,
        use_tts_aligned_transcript=True,
        aec_warmup_duration=None,  # or interruptions in the first 3 s are ignored
        session_close_transcript_timeout=0.05,  # or closing waits 2 s for a last transcript
        turn_handling={
            "turn_detection": None,  # or a model that may not be used is loaded
            "endpointing": {"min_delay": 0.1, "max_delay": 0.5},
            "interruption": {"mode": "vad", "min_duration": 0.1, **(interruption or {})},
            "preemptive_generation": {"enabled": preemptive_tts, "preemptive_tts": preemptive_tts},
        },
    )
    listener, captions = Listener(rate, can_pause=can_pause), Captions()
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=listener, next_in_chain_text=captions)
    session.input.audio = Silence()
    session.output.audio = synchronizer.audio_output
    session.output.transcription = synchronizer.text_output
    made = Rig(session, activity, ears, brain, listener, captions)
    session.on("close", made.closed.append)
    session.on("agent_false_interruption", made.resumed.append)
    await session.start(Agent(instructions="Answer."), record=False)
    try:
        yield made
    finally:
        await session.aclose()
        await synchronizer.aclose()
        await listener.aclose()
