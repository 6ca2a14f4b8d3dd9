"""The conversation: one LiveKit AgentSession, the same for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from livekit import rtc
from livekit.agents import AgentSession, llm, stt, tts, vad
from livekit.agents.voice import SpeechHandle, io, room_io

from agent.brains import FaqBrain
from agent.config import AgentSettings, LlmSettings, Settings
from agent.echo_guard import EchoGuard, Sent
from agent.faq import load_faq
from agent.heard import HeardAgent
from agent.line_ear import LineEar, NoiseFloor
from agent.media_io import QueueInput
from agent.playout import Playout
from agent.role_log import Event, RoleLog
from agent.vad import VAD

# a start of speech (100 ms of it by the VAD) pauses at once; resume or transcript decides what it was
MIN_INTERRUPTION_S = 0.05
CLOSE_S = 5.0  # a session that takes longer to close is left behind

logger = logging.getLogger("sparkvoice.session")


def build_session(
    # Any: a plugin's own event names, of no use here
    *,
    tts: tts.TTS[Any],
    stt: stt.STT[Any],
    llm: llm.LLM[Any],
    vad: vad.VAD,
    settings: AgentSettings,
) -> AgentSession[None]:
    """An AgentSession with this project's turn-taking; start it with `converse`.

    A caller's sound pauses the agent at once; words commit the interruption, silence resumes it.
    """
    return AgentSession[None](
        tts=tts,
        stt=stt,
        llm=llm,
        vad=vad,
        turn_handling={
            # None: neither of the models that come with livekit-agents
            "turn_detection": None,
            "endpointing": {
                "min_delay": settings.endpointing_s,
                "max_delay": max(settings.endpointing_s, settings.max_endpointing_s),
            },
            "interruption": {
                "mode": "vad",
                "min_duration": MIN_INTERRUPTION_S,
                "resume_false_interruption": True,
                "false_interruption_timeout": settings.false_interruption_s,
            },
            # the answer is thought of while the turn's end is awaited, but not yet spoken: speech
            # begun for nothing costs the engine far more than the few ms it would save
            "preemptive_generation": {"enabled": True, "preemptive_tts": False},
        },
        aec_warmup_duration=None,
        use_tts_aligned_transcript=True,
        tts_text_transforms=None,  # the engine's own normaliser reads markup and emoji
        user_away_timeout=None,
        session_close_transcript_timeout=0.0,  # nobody waits for words after hanging up
    )


def build_vad(settings: AgentSettings, sent: Sent | None) -> VAD:
    """The VAD of one call, which knows what is sent, by a Playout, and so tells its echo from the caller.
    None: nobody knows, and echo is taken for the caller."""
    guard = EchoGuard(sent) if settings.echo_guard and sent is not None else None
    return VAD(guard=guard, min_silence_s=settings.min_silence_s)


def build_line_vad(settings: AgentSettings, audio: QueueInput, playout: Playout) -> VAD:
    """The VAD of a telephone call, adaptive to the line's noise. From now on `audio`, for the recogniser as
    well, comes without the echo of what `playout` sends, unless the settings turn that off."""
    if settings.echo_guard:
        audio.hear_through(LineEar(playout).push)
    return VAD(guard=NoiseFloor(), min_silence_s=settings.min_silence_s)


def build_llm(settings: Settings) -> llm.LLM[Any]:
    """The language model that the environment asks for, else the one that answers from the FAQ."""
    if settings.llm is not None:
        return _openai(settings.llm)
    return FaqBrain(load_faq(settings.agent.faq_source))


def _openai(settings: LlmSettings) -> llm.LLM[Any]:
    from livekit.plugins import openai

    if settings.base_url is None:
        return openai.LLM(model=settings.model, api_key=settings.api_key)
    return openai.LLM(model=settings.model, api_key=settings.api_key, base_url=settings.base_url)


class Conversation:
    """A running call. Made by `converse`."""

    def __init__(self, session: AgentSession[None], log: RoleLog) -> None:
        self.session = session
        self._log = log
        self._closed = asyncio.Event()
        session.once("close", lambda _: self._closed.set())

    def say(self, text: str) -> SpeechHandle:
        """Have the agent say `text` after what it says now."""
        return self.session.say(text)

    async def ask(self, text: str) -> SpeechHandle:
        """Take `text` as the caller's turn, typed instead of spoken; stops what the agent says now."""
        await self.session.interrupt()
        self._log.typed(text)
        return self.session.generate_reply(user_input=text)

    async def interrupt(self) -> None:
        """Silence the agent; what it said stays in the history as far as it was heard."""
        await self.session.interrupt()

    async def closed(self) -> None:
        """Wait until the session is over, for instance because a part of it failed for good."""
        await self._closed.wait()


@dataclass(frozen=True, slots=True)
class Seat:
    """Where in a LiveKit room a conversation's text goes and comes from: transcripts, the agent's state, and
    what `caller` (an identity) types."""

    room: rtc.Room
    caller: str


@asynccontextmanager
async def converse(
    session: AgentSession[None],
    agent: HeardAgent,
    *,
    audio_in: io.AudioInput,
    audio_out: io.AudioOutput,
    tell: Callable[[Event], None] = lambda _: None,
    seat: Seat | None = None,
) -> AsyncIterator[Conversation]:
    """Run `session` on a transport's audio; leaving the block ends it.

    tell: gets the role log's events as they happen; it must not block. seat: shows the conversation to a
    LiveKit room. The transport closes its own audio, and whoever made the session's STT, LLM, TTS and VAD
    closes those.
    """
    log = RoleLog(session, tell)
    conversation = Conversation(session, log)
    session.input.audio = audio_in
    session.output.audio = audio_out
    try:
        if seat is None:
            session.output.transcription = log.captions
            await session.start(agent, record=False)
        else:
            options = _text_only(seat.caller, conversation, log)
            await session.start(agent, room=seat.room, room_options=options, record=False)
        yield conversation
    finally:
        await _close(session)


def _text_only(caller: str, conversation: Conversation, log: RoleLog) -> room_io.RoomOptions:
    """A RoomIO that leaves the audio, and when to end, to the transport."""

    async def typed(_: AgentSession[None], event: room_io.TextInputEvent) -> None:
        if event.text.strip():
            await conversation.ask(event.text.strip())

    return room_io.RoomOptions(
        audio_input=False,
        audio_output=False,
        text_input=room_io.TextInputOptions(text_input_cb=typed),
        # the agent passes each word on when it is heard
        text_output=room_io.TextOutputOptions(sync_transcription=False, next_in_chain=log.captions),
        participant_identity=caller,
        close_on_disconnect=False,
    )


async def _close(session: AgentSession[None]) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            with _without_complaints_of_half_a_turn():
                await session.aclose()
    except TimeoutError:
        logger.error("a session did not close within %.0f s", CLOSE_S)


# What LiveKit warns of when a session closes while the caller speaks. It does what is wanted, though: the
# words so far become a last, unanswered turn of the history. There is no option that keeps it quiet.
_EXPECTED_AT_CLOSE = frozenset(
    {"final transcript not received after timeout", "skipping user input, speech scheduling is paused"}
)


@contextmanager
def _without_complaints_of_half_a_turn() -> Iterator[None]:
    def wanted(record: logging.LogRecord) -> bool:
        return record.msg not in _EXPECTED_AT_CLOSE

    livekit = logging.getLogger("livekit.agents")
    livekit.addFilter(wanted)
    try:
        yield
    finally:
        livekit.removeFilter(wanted)
