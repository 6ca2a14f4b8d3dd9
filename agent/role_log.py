"""The role log: who said what and what happened in a call, as events a page or a test can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from livekit.agents import (
    AgentFalseInterruptionEvent,
    AgentSession,
    AgentStateChangedEvent,
    CloseEvent,
    ConversationItemAddedEvent,
    ErrorEvent,
    SpeechCreatedEvent,
    UserInputTranscribedEvent,
    UserStateChangedEvent,
    llm,
)
from livekit.agents.voice import SpeechHandle, io


@dataclass(frozen=True, slots=True)
class UserSaid:
    """The caller's words as recognised. A later event replaces an earlier one until one is final."""

    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """The agent's words heard so far in its `turn` (0, 1, ...), word by word.

    The final one is what stands in the chat history: cut to what was heard if interrupted.
    """

    turn: int
    text: str
    final: bool
    interrupted: bool


@dataclass(frozen=True, slots=True)
class StateChanged:
    """`who` is now: agent initializing, listening, thinking, speaking; user listening, speaking."""

    who: Literal["agent", "user"]
    state: str


@dataclass(frozen=True, slots=True)
class FalseInterruption:
    """The caller made a sound without words; `resumed` tells whether the agent went on."""

    resumed: bool


@dataclass(frozen=True, slots=True)
class TurnMeasured:
    """Where the time went between the end of the caller's speech and the agent's first sound.

    recognition: until the transcript. endpointing: from there until the turn was the agent's.
    answer: the language model's first token. speech: the voice's first audio. Milliseconds, None
    where nothing was measured; the answer may have been begun before the turn was the agent's, so
    the parts can add up to more than `total`.
    """

    recognition_ms: float | None
    endpointing_ms: float | None
    answer_ms: float | None
    speech_ms: float | None
    total_ms: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A part of the pipeline failed; recoverable means it is tried again."""

    source: str
    message: str
    recoverable: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The session is over. error: why, if it was not asked to."""

    reason: str
    error: str | None


Event = UserSaid | AgentSaid | StateChanged | FalseInterruption | TurnMeasured | Failed | Ended


class RoleLog:
    """Turns what `session` emits into events for `tell`, which must not block; made before it starts."""

    def __init__(self, session: AgentSession[None], tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._session = session
        self.captions = _Captions(self._agent_spoke)
        self._turn = 0
        self._speaker: SpeechHandle | None = None  # whose words were captioned and are not final yet
        self._user_metrics: llm.MetricsReport = {}
        session.on("speech_created", self._speech_created)
        session.on("user_input_transcribed", self._user_spoke)
        session.on("conversation_item_added", self._item_added)
        session.on("agent_state_changed", self._agent_changed)
        session.on("user_state_changed", self._user_changed)
        session.on("agent_false_interruption", self._false_interruption)
        session.on("error", self._failed)
        session.on("close", self._ended)

    def typed(self, text: str) -> None:
        """The caller wrote `text` instead of saying it."""
        self._tell(UserSaid(text, final=True))

    def _user_spoke(self, event: UserInputTranscribedEvent) -> None:
        self._tell(UserSaid(event.transcript, event.is_final))

    def _speech_created(self, event: SpeechCreatedEvent) -> None:
        event.speech_handle.add_done_callback(self._speech_done)

    def _speech_done(self, handle: SpeechHandle) -> None:
        if handle is self._speaker:  # cut so early that not one whole word stands in the history
            self._agent_final("", interrupted=True)

    def _agent_spoke(self, text: str) -> None:
        self._speaker = self._session.current_speech
        self._tell(AgentSaid(self._turn, text, final=False, interrupted=False))

    def _item_added(self, event: ConversationItemAddedEvent) -> None:
        item = event.item
        if not isinstance(item, llm.ChatMessage):
            return
        if item.role == "user":
            self._user_metrics = item.metrics
        elif item.role == "assistant":
            self._agent_final((item.text_content or "").strip(), interrupted=item.interrupted)
            self._tell(_measured(self._user_metrics, item.metrics))
            self._user_metrics = {}

    def _agent_final(self, text: str, *, interrupted: bool) -> None:
        self._tell(AgentSaid(self._turn, text, final=True, interrupted=interrupted))
        self._turn += 1
        self._speaker = None
        self.captions.turn_ended()

    def _agent_changed(self, event: AgentStateChangedEvent) -> None:
        self._tell(StateChanged("agent", event.new_state))

    def _user_changed(self, event: UserStateChangedEvent) -> None:
        self._tell(StateChanged("user", event.new_state))

    def _false_interruption(self, event: AgentFalseInterruptionEvent) -> None:
        self._tell(FalseInterruption(event.resumed))

    def _failed(self, event: ErrorEvent) -> None:
        cause = getattr(event.error, "error", event.error)
        recoverable = bool(getattr(event.error, "recoverable", False))
        self._tell(
            Failed(getattr(event.source, "label", type(event.source).__name__), str(cause), recoverable)
        )

    def _ended(self, event: CloseEvent) -> None:
        cause = getattr(event.error, "error", event.error)
        self._tell(Ended(event.reason.value, None if cause is None else str(cause)))


class _Captions(io.TextOutput):
    """The end of the transcript's chain: gets each word as it is heard."""

    def __init__(self, spoke: Callable[[str], None]) -> None:
        super().__init__(label="captions", next_in_chain=None)
        self._spoke = spoke
        self._text = ""
        self._open = False  # words of a segment have come and its flush has not
        self._late = False  # the turn is over: what still comes of the segment is old

    async def capture_text(self, text: str) -> None:
        self._open = True
        if not self._late:
            self._text += text
            if text.strip():
                self._spoke(self._text.strip())

    def flush(self) -> None:
        self._open = self._late = False

    def turn_ended(self) -> None:
        self._text = ""
        self._late = self._open


def _measured(user: llm.MetricsReport, agent: llm.MetricsReport) -> TurnMeasured:
    recognition_s = user.get("transcription_delay")
    commit_s = user.get("end_of_turn_delay")
    waited_s = None if commit_s is None else max(0.0, commit_s - (recognition_s or 0.0))
    return TurnMeasured(
        recognition_ms=_ms(recognition_s),
        endpointing_ms=_ms(waited_s),
        answer_ms=_ms(agent.get("llm_node_ttft")),
        speech_ms=_ms(agent.get("tts_node_ttfb")),
        total_ms=_ms(agent.get("e2e_latency")),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
