"""A stand-in for the agent behind the page: tones for a voice, and it is silent when it hears the caller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from agent.browser import control_message
from agent.media_io import Control
from agent.transports.track import BLOCK, RATE
from agent.transports.webrtc import Json, WebRtcCall
from agent.vad import Edge, SpeechGate
from agent.web import Offered
from tts_plugin.audio import Pcm, samples_of, to_int16

WORD_S = 0.2
GREETING = "Hello there, I am a parrot and I say what you say until you stop me from doing so."


def tone(seconds: float) -> Pcm:
    times = np.arange(round(seconds * RATE)) / RATE
    return to_int16(0.25 * np.sin(2 * np.pi * 320 * times) * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * times)))


async def voices() -> list[Offered]:
    return [Offered("hibari", "Hibari", "en-US", default=True), Offered("tone", "Tone", "und")]


@dataclass(slots=True)
class Parrot:
    """Talks with one browser; `greeting` first, then whatever was typed, or a reply to what was heard."""

    greeting: str = GREETING
    chosen: list[str | None] = field(default_factory=list)
    why_ended: list[str] = field(default_factory=list)
    calls: list[WebRtcCall] = field(default_factory=list)

    async def __call__(self, call: WebRtcCall, voice: str | None) -> None:
        self.chosen.append(voice)
        self.calls.append(call)
        if await call.connected():
            talk = _Talk(call, self.chosen)
            call.on_message(talk.take)
            talk.speak(self.greeting)
            listening = asyncio.create_task(talk.listen())
            try:
                await call.ended()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        self.why_ended.append(call.ended_because)


class _Talk:
    def __init__(self, call: WebRtcCall, chosen: list[str | None]) -> None:
        self._call = call
        self._chosen = chosen
        self._words: list[str] = []
        self._turn = 0
        call.playout.listen(self)

    def speak(self, text: str) -> None:
        self._words = text.split()
        self._call.playout.put(tone(len(self._words) * WORD_S))
        self._call.playout.end()

    def take(self, message: Json) -> None:
        if message["type"] == "voice":
            self._chosen.append(message["id"])
            return
        self.stop()
        self._caption(f"u{self._turn}", "user", message["text"])
        self.speak(f"You wrote {message['text']}")

    def stop(self) -> None:
        if not self._call.playout.idle:
            self._tell(Control.CLEAR)
            self._call.playout.clear()

    async def listen(self) -> None:
        gate = SpeechGate(RATE)
        async for frame in self._call.audio:
            match gate.push(samples_of(bytes(frame.data.cast("b")))[:BLOCK]).edge:
                case Edge.START:
                    self.stop()
                    self._call.send({"type": "state", "state": "listening"})
                case Edge.END:
                    self._caption(f"u{self._turn}", "user", "something")
                    self._call.send({"type": "state", "state": "thinking"})
                    self.speak("You said something but I am only a parrot so I say this and nothing else")

    def on_started(self) -> None:
        self._tell(Control.START)
        self._call.send({"type": "state", "state": "speaking"})

    def on_finished(self, position_s: float, interrupted: bool) -> None:
        said = self._words[: round(position_s / WORD_S)] if interrupted else self._words
        self._caption(f"a{self._turn}", "agent", " ".join(said), cut=interrupted)
        self._turn += 1
        self._call.send({"type": "state", "state": "listening"})

    def on_read(self) -> None:
        heard = int(self._call.playout.heard_s / WORD_S)
        if heard:
            # one word too many, so that a cut has something to take away
            self._caption(f"a{self._turn}", "agent", " ".join(self._words[: heard + 1]), final=False)

    def _tell(self, control: Control) -> None:
        self._call.send(control_message(control, self._call.now_ms))

    def _caption(self, id: str, role: str, text: str, *, final: bool = True, cut: bool = False) -> None:
        self._call.send({"type": "caption", "id": id, "role": role, "text": text, "final": final, "cut": cut})
