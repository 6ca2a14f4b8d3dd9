"""A browser's conversation: what happens in the session told to the page, what the page asks for done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from livekit.agents import llm, stt

from agent.assistant import Assistant
from agent.config import AgentSettings
from agent.media_io import Control, PlayoutOutput
from agent.role_log import (
    AgentSaid,
    Ended,
    Event,
    Failed,
    FalseInterruption,
    StateChanged,
    TurnMeasured,
    UserSaid,
)
from agent.session import Conversation, build_session, build_vad, converse
from agent.transports.webrtc import Json, WebRtcCall
from agent.web import ListVoices, require_voice
from tts_plugin import TTS
from tts_plugin.errors import BadRequest, TTSError
from tts_plugin.text.markup import plain

MAX_TEXT_CHARS = 2000  # as the page's text box
MAX_WISHES = 16  # that may wait

_CONTROLS = {
    Control.START: ("unmute", "start"),
    Control.RESUME: ("unmute", "resume"),
    Control.PAUSE: ("mute", "pause"),
    Control.CLEAR: ("mute", "clear"),
}


@dataclass(frozen=True, slots=True)
class Talker:
    """Holds a conversation with each browser that calls; the parts are shared by all calls.

    make_tts: a TTS for one call, which is closed with it; None asks for the default voice. voices: those
    there are. meet: is told of each conversation when it begins.
    """

    settings: AgentSettings
    ears: stt.STT[Any]
    brain: llm.LLM[Any]
    make_tts: Callable[[str | None], Awaitable[TTS]]
    voices: ListVoices
    meet: Callable[[Conversation], None] = lambda _: None

    async def __call__(self, call: WebRtcCall, voice: str | None) -> None:
        """Talk until the browser is gone or the session is over."""
        mouth = await self.make_tts(voice or self.settings.voice)
        try:
            if await call.connected():
                await self._talk(call, mouth)
        finally:
            await mouth.aclose()

    async def _talk(self, call: WebRtcCall, mouth: TTS) -> None:
        output = PlayoutOutput(call.playout)
        output.on_control(lambda control: call.send(control_message(control, call.now_ms)))
        session = build_session(
            tts=mouth,
            stt=self.ears,
            llm=self.brain,
            vad=build_vad(self.settings, call.playout),
            settings=self.settings,
        )
        captions = Captions(call.send)
        running = converse(
            session, Assistant(self.settings), audio_in=call.audio, audio_out=output, tell=captions.show
        )
        async with running as conversation:
            self.meet(conversation)
            await self._until_over(call, conversation, mouth)

    async def _until_over(self, call: WebRtcCall, conversation: Conversation, mouth: TTS) -> None:
        wishes: asyncio.Queue[Wish] = asyncio.Queue(MAX_WISHES)
        call.on_message(lambda message: take_wish(message, wishes))

        async def fulfil() -> None:
            while True:
                match await wishes.get():
                    case Typed(text):
                        await conversation.ask(text)
                    case Chosen(voice):
                        await self._choose(voice, call, mouth)

        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("wishes", fulfil()),
                ("call's end", call.ended()),
                ("session's end", conversation.closed()),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            call.hang_up("the agent hung up")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choose(self, voice: str, call: WebRtcCall, mouth: TTS) -> None:
        """Speak with that voice from the next turn on; one that is not there would end the call."""
        try:
            require_voice(voice, await self.voices())
        except TTSError as error:
            call.send({"type": "error", "code": error.code, "message": str(error)})
        else:
            mouth.update_options(voice=voice)


@dataclass(frozen=True, slots=True)
class Typed:
    """A turn of the caller that was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The id of a voice for the turns to come."""

    voice: str


Wish = Typed | Chosen


def take_wish(message: Json, wishes: asyncio.Queue[Wish]) -> None:
    """Queue what a message of the page asks for; BadRequest says what is wrong with it."""
    match message:
        case {"type": "text", "text": str(text)} if 0 < len(text.strip()) <= MAX_TEXT_CHARS:
            wish: Wish = Typed(text.strip())
        case {"type": "text"}:
            raise BadRequest(f'a text message has a "text" of 1 to {MAX_TEXT_CHARS} characters')
        case {"type": "voice", "id": str(voice)} if voice:
            wish = Chosen(voice)
        case {"type": kind}:
            raise BadRequest(f'"{str(kind)[:40]}" is not a message of the page, or not a complete one')
    try:
        wishes.put_nowait(wish)
    except asyncio.QueueFull as full:
        raise BadRequest("too many messages at once; wait for the answers") from full


def control_message(control: Control, now_ms: float) -> Json:
    """What tells the page to cut or open its own gain. at: ms of the clock that answers its pings."""
    kind, why = _CONTROLS[control]
    return {"type": kind, "why": why, "at": now_ms}


class Captions:
    """The role log's events as messages for the page; a caption replaces the one with its id."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        self._send = send
        self._user_turn = 0

    def show(self, event: Event) -> None:
        match event:
            case UserSaid(text, final):
                self._caption(f"u{self._user_turn}", "user", text, final, cut=False)
                self._user_turn += final
            case AgentSaid(turn, text, final, interrupted):
                self._caption(f"a{turn}", "agent", plain(text), final, cut=interrupted)
            case StateChanged("agent", state):
                self._send({"type": "state", "state": state})
            case StateChanged(_, state):
                self._send({"type": "caller", "state": state})
            case FalseInterruption(resumed):
                self._send({"type": "false_interruption", "resumed": resumed})
            case TurnMeasured():
                self._send({"type": "latency", **asdict(event)})
            case Failed(source, message, recoverable):
                self._send({"type": "error", "code": source, "message": message, "fatal": not recoverable})
            case Ended(_, error) if error is not None:
                self._send({"type": "error", "code": "ended", "message": error, "fatal": True})
            case Ended():
                pass

    def _caption(self, id: str, role: str, text: str, final: bool, *, cut: bool) -> None:
        self._send({"type": "caption", "id": id, "role": role, "text": text, "final": final, "cut": cut})
