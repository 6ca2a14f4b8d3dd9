"""Hearing that the caller speaks: webrtcvad as a LiveKit VAD, with an optional echo guard."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import webrtcvad
from livekit import rtc
from livekit.agents import vad

from agent.media_io import mono
from tts_plugin.audio import Framer, Pcm, bytes_of
from tts_plugin.resample import StreamResampler

FRAME_S = 0.02
MODE = 3  # the strictest; with 5 of 8 frames it has the fewest false starts of the fast settings
NEED, OF = 5, 8  # frames of speech that begin a speech: 100-140 ms after the onset
MIN_SILENCE_S = 0.28
IGNORE_S = 1.0  # every mode fires in the first 0.3 s of white noise while it adapts
PREFIX_S = 0.5  # audio before the start that belongs to a speech
MAX_SPEECH_S = 60.0  # audio kept of one speech
NATIVE_RATES = (8000, 16000, 32000, 48000)  # judged as they come: a converter would hold 20-60 ms back
OTHER_RATE = 16000  # everything else is converted to this


class Guard(Protocol):
    """Has the last word on whether a frame may be the caller's speech."""

    def allows(self, frame: Pcm) -> bool: ...


class Edge(Enum):
    """What changed with a frame."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Heard:
    """What the gate knows after a frame; all durations in seconds.

    speech_s: length of the speech that goes on (with END: that has ended), else 0.
    silence_s: since the last speech ended, 0 while one goes on.
    speech_run_s, silence_run_s: the current run of frames of one kind; a lone frame of speech
    counts as silence.
    """

    edge: Edge | None
    voiced: bool
    speaking: bool
    speech_s: float
    silence_s: float
    speech_run_s: float
    silence_run_s: float


class SpeechGate:
    """Frames of 20 ms at `rate` Hz (8000, 16000, 32000 or 48000) in, what was heard out. Sans-IO.

    A speech starts when 5 of the last 8 frames are speech, and ends after `min_silence_s` without two
    speech frames in a row. Nothing starts in the first `ignore_s` seconds.
    """

    def __init__(
        self,
        rate: int,
        *,
        guard: Guard | None = None,
        min_silence_s: float = MIN_SILENCE_S,
        ignore_s: float = IGNORE_S,
        mode: int = MODE,
    ) -> None:
        self._rate = rate
        self._guard = guard
        self._vad = webrtcvad.Vad(mode)
        self._silent_frames = round(min_silence_s / FRAME_S)
        self._ignored = round(ignore_s / FRAME_S)
        self.reset()

    def reset(self) -> None:
        """Forget the speech that goes on; what was learnt about noise and echo stays."""
        self._recent: deque[bool] = deque(maxlen=OF)
        self._streak = 0  # speech frames in a row
        self._quiet = 0  # frames since two speech frames in a row
        self._speaking = False
        self._speech = 0  # frames of the speech
        self._silence = 0  # frames since it ended

    def push(self, frame: Pcm) -> Heard:
        # both are asked at every frame, so both keep learning
        voiced = bool(self._vad.is_speech(bytes_of(frame), self._rate))
        allowed = self._guard is None or self._guard.allows(frame)
        voiced = voiced and allowed and self._ignored == 0
        self._ignored = max(0, self._ignored - 1)

        self._recent.append(voiced)
        self._streak = self._streak + 1 if voiced else 0
        self._quiet = 0 if self._streak >= 2 else self._quiet + 1
        if self._speaking:
            self._speech += 1
            if self._quiet >= self._silent_frames:
                return self._end()
        else:
            self._silence += 1
            if sum(self._recent) >= NEED:
                return self._start()
        return self._heard(None, self._speech)

    def _start(self) -> Heard:
        self._speaking = True
        self._speech = len(self._recent) - self._recent.index(True)
        self._silence = 0
        return self._heard(Edge.START, self._speech)

    def _end(self) -> Heard:
        spoken = max(0, self._speech - self._quiet)
        self._speaking = False
        self._speech = 0
        self._silence = self._quiet
        self._recent.clear()
        return self._heard(Edge.END, spoken)

    def _heard(self, edge: Edge | None, speech: int) -> Heard:
        return Heard(
            edge=edge,
            voiced=self._streak > 0,
            speaking=self._speaking,
            speech_s=speech * FRAME_S,
            silence_s=self._silence * FRAME_S,
            speech_run_s=self._streak * FRAME_S if self._streak >= 2 else 0.0,
            silence_run_s=self._quiet * FRAME_S,
        )


class VAD(vad.VAD):
    """A LiveKit VAD that judges each 20 ms where it stands: 4 us a frame, no model, no thread.

    guard: an EchoGuard of this call; with one, use the VAD for one call only.
    """

    def __init__(
        self,
        *,
        guard: Guard | None = None,
        min_silence_s: float = MIN_SILENCE_S,
        ignore_s: float = IGNORE_S,
    ) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=FRAME_S))
        self._guard = guard
        self._min_silence_s = min_silence_s
        self._ignore_s = ignore_s

    @property
    def model(self) -> str:
        return f"webrtcvad-mode{MODE}"

    @property
    def provider(self) -> str:
        return "webrtcvad"

    def stream(self) -> vad.VADStream:
        return _Stream(self)

    def gate(self, rate: int) -> SpeechGate:
        """A new gate with these settings for frames at `rate` Hz."""
        return SpeechGate(rate, guard=self._guard, min_silence_s=self._min_silence_s, ignore_s=self._ignore_s)


class _Stream(vad.VADStream):
    def __init__(self, owner: VAD) -> None:
        self._owner = owner
        super().__init__(owner)

    async def _main_task(self) -> None:
        ear: _Ear | None = None
        async for item in self._input_ch:
            if not isinstance(item, rtc.AudioFrame):
                if ear:
                    ear.reset()
                continue
            if ear is None or ear.rate_in != item.sample_rate:
                ear = _Ear(self._owner, item.sample_rate)
            for event in ear.hear(item):
                self._event_ch.send_nowait(event)


class _Ear:
    """LiveKit frames of one rate and any length in, VADEvents out."""

    def __init__(self, owner: VAD, rate_in: int) -> None:
        self.rate_in = rate_in
        self._rate = rate_in if rate_in in NATIVE_RATES else OTHER_RATE
        self._resampler = StreamResampler(rate_in, self._rate, "LQ")
        self._framer = Framer(round(FRAME_S * self._rate))
        self._gate = owner.gate(self._rate)
        self._frames = 0
        self._kept: deque[Pcm] = deque(maxlen=round(PREFIX_S / FRAME_S))

    def reset(self) -> None:
        self._gate.reset()
        self._keep_prefix(clear=True)

    def hear(self, frame: rtc.AudioFrame) -> list[vad.VADEvent]:
        parts = self._framer.push(self._resampler.push(mono(frame)))
        return [event for part in parts for event in self._judge(part)]

    def _judge(self, pcm: Pcm) -> list[vad.VADEvent]:
        began_s = time.perf_counter()
        heard = self._gate.push(pcm)
        self._frames += 1
        self._kept.append(pcm)
        took_s = time.perf_counter() - began_s
        events = []
        # the edge goes first, so that a start interrupts with its own frame, not with the next one
        if heard.edge is Edge.START:
            events.append(self._event(vad.VADEventType.START_OF_SPEECH, heard, took_s, list(self._kept)))
            self._kept = deque(self._kept, maxlen=round(MAX_SPEECH_S / FRAME_S))
        elif heard.edge is Edge.END:
            events.append(self._event(vad.VADEventType.END_OF_SPEECH, heard, took_s, list(self._kept)))
            self._keep_prefix(clear=False)
        events.append(self._event(vad.VADEventType.INFERENCE_DONE, heard, took_s, [pcm]))
        return events

    def _keep_prefix(self, *, clear: bool) -> None:
        self._kept = deque([] if clear else self._kept, maxlen=round(PREFIX_S / FRAME_S))

    def _event(self, kind: vad.VADEventType, heard: Heard, took_s: float, audio: list[Pcm]) -> vad.VADEvent:
        pcm = np.concatenate(audio)
        ended = kind is vad.VADEventType.INFERENCE_DONE and heard.edge is Edge.END
        return vad.VADEvent(
            type=kind,
            samples_index=self._frames * round(FRAME_S * self._rate),
            timestamp=self._frames * FRAME_S,
            speech_duration=0.0 if ended else heard.speech_s,
            silence_duration=heard.silence_s,
            frames=[rtc.AudioFrame(bytes_of(pcm), self._rate, 1, len(pcm))],
            probability=float(heard.voiced),
            inference_duration=took_s,
            speaking=heard.speaking,
            raw_accumulated_silence=heard.silence_run_s,
            raw_accumulated_speech=heard.speech_run_s,
        )
