"""SupportBot: what a customer-service desk does on one line beside answering questions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from livekit.agents import NOT_GIVEN, AgentSession, llm, stt
from livekit.agents.types import NotGivenOr
from livekit.agents.voice import SpeechHandle

from agent.assistant import greeting_of
from agent.config import Settings
from agent.desk.call_log import CallLog, file_name
from agent.desk.hours import Now, is_open, utc_now
from agent.desk.patience import Patience
from agent.desk.recording import Recording
from agent.desk.scribe import Scribe
from agent.desk.settings import DeskSettings
from agent.desk.tongues import Tongue, open_tongues
from agent.desk.wishes import Ask, HandOver, HangUp, Speak, StopRecording, Wish, wish_of
from agent.faq import words_of
from agent.heard import HeardAgent
from agent.line import Line, MediaLine, TransferFailed
from agent.role_log import Event
from agent.session import Conversation
from tts_plugin import TTS
from tts_plugin.errors import ConfigError
from tts_plugin.timing import Clock

_LOOK_S = 0.1  # how often it is looked whether something is due
_LAST_WORDS_S = 20.0  # for goodbye: a noisy line pauses it again and again, and a call has an end
_CHANGE_S = 10.0  # for the next agent to enter
_MAX_WISHES = 16  # that may wait; a caller who holds keys down is not served faster

log = logging.getLogger("sparkvoice.desk")


@dataclass(frozen=True, slots=True)
class Desk:
    """What all lines share. Made by `open_desk`."""

    settings: DeskSettings
    greeting: str | None
    tongues: Mapping[str, Tongue]
    scribe: Scribe
    now: Now
    clock: Clock

    @property
    def open(self) -> bool:
        return is_open(self.settings.hours, self.now())

    def bot(self, line: Line) -> SupportBot:
        """What talks on this line."""
        return SupportBot(self, line)


@asynccontextmanager
async def open_desk(
    settings: Settings, *, now: Now = utc_now, clock: Clock = time.monotonic
) -> AsyncIterator[Desk]:
    """The desk that `phone.desk` describes; ConfigError without one. Leaving it waits for what is to be
    written."""
    told = settings.phone.desk
    if told is None:
        raise ConfigError("there is no desk: describe it under phone.desk (see configs/support-bot.yaml)")
    async with Scribe() as scribe, open_tongues(settings, told) as tongues:
        yield Desk(told, settings.agent.greeting, tongues, scribe, now, clock)


class SupportBot:
    """A Bot (agent.phone): greets by the hours, announces a recording, obeys keys, minds silence and the
    clock, hands over, hangs up, and writes down what was said."""

    def __init__(self, desk: Desk, line: Line) -> None:
        self._desk = desk
        self._settings = desk.settings  # with the texts of the language that is spoken now
        self._tongue = desk.tongues[desk.settings.language]
        self._line = line
        self._began_s = desk.clock()
        self._patience = Patience(self._settings.silence, self._settings.limit, self._began_s)
        self._wishes: asyncio.Queue[Wish] = asyncio.Queue(_MAX_WISHES)
        self._conversation: Conversation | None = None
        self._recording: Recording | None = None
        self._away = False  # handed over right now, or between two agents: nothing else may be done then
        self._why = "the agent hung up"
        self._lasted_s = 0.0
        name = file_name(line.call, desk.now())
        self._log = (
            None
            if self._settings.log is None
            else CallLog(self._settings.log / f"{name}.jsonl", desk.scribe, desk.now)
        )
        self._recording_name = f"{name}.wav"
        self.agent: HeardAgent = self._agent("", NOT_GIVEN)

    def show(self, event: Event) -> None:
        self._patience.note(event, self._desk.clock())
        if self._log:
            self._log.show(event)

    async def attend(self, conversation: Conversation) -> None:
        """Runs until it is cancelled at the call's end."""
        self._conversation = conversation
        if self._log:
            self._log.began(self._line.call)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._note_end(), name="call's end")
                tasks.create_task(self._watch(), name="patience")
                await self._welcome()
                self._line.on_digit(self._pressed)
                tasks.create_task(self._fulfil(), name="desk")
        finally:
            self._lasted_s = self._desk.clock() - self._began_s
            self._finish_recording()

    def over(self) -> None:
        if self._log and self._conversation:
            self._log.ended(self._why, self._lasted_s)

    def wish(self, wish: Wish) -> None:
        """Have it done after what was wished for before; dropped when too much waits."""
        if not self._wishes.full():
            self._wishes.put_nowait(wish)

    async def _note_end(self) -> None:
        self._why = await self._line.ended()

    async def _welcome(self) -> None:
        recorded = self._settings.recording
        if recorded is not None and isinstance(self._line, MediaLine):
            # to be heard whole: who is recorded has been told
            told = await self._say(recorded.consent, interruptible=False)
            if told:
                self._record(self._line, recorded.folder / self._recording_name)
            else:
                log.error("a call is not recorded: its announcement was not heard")
                self._note("not_recorded")
        greeting = greeting_of(self._desk.greeting, self._session.llm)
        if self._settings.closed is not None and not self._desk.open:
            greeting = self._settings.closed
        if greeting:
            self._begin(greeting)

    def _record(self, line: MediaLine, path: Path) -> None:
        self._recording = Recording(
            path, line.playout.rate, self._desk.scribe, self._desk.clock, caller_rate=line.audio.rate
        )
        line.playout.tap(self._recording.agent)
        line.audio.tap(self._recording.caller)

    def _pressed(self, digit: str) -> None:
        self._patience.alive(self._desk.clock())
        does = self._settings.keys.get(digit)
        if self._log:
            self._log.note("key", does=type(wish_of(does)).__name__ if does else "nothing")
        if does is not None:
            self.wish(wish_of(does))

    async def _fulfil(self) -> None:
        while True:
            wish = await self._wishes.get()
            match wish:
                case Ask(text):
                    await self._talk.ask(text)
                case HandOver():
                    await self._hand_over()
                case HangUp():
                    await self._hang_up(self._settings.goodbye, "the agent said goodbye")
                case Speak(language):
                    await self._speak(self._desk.tongues[language])
                case StopRecording():
                    self._forget()
                case _ as never:
                    assert_never(never)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._away:
                continue  # hanging up would lose a caller whom the carrier has for now
            due = self._patience.due(self._desk.clock())
            if due is None:
                continue
            if due.then_hang_up:
                await self._talk.interrupt()
                await self._hang_up(due.text, "the agent gave up waiting, or the time was up")
            else:
                self._begin(due.text)

    async def _hand_over(self) -> None:
        told = self._settings.hand_over
        if not self._desk.open:
            self._note("hand_over", done=False, why="closed")
            self._begin(told.closed)
        elif told.to is None:
            self._note("hand_over", done=False, why="nobody to hand over to")
            self._begin(told.failed)
        else:
            self._away = True
            try:
                await self._say(told.say, interruptible=False)
                await self._line.transfer(told.to)
            except TransferFailed as error:
                log.warning("a call was not handed over: %s", error)
                self._note("hand_over", done=False, why=str(error))
                self._begin(told.failed)
            else:
                self._note("hand_over", done=True)
            finally:
                self._away = False
                self._patience.alive(self._desk.clock())

    async def _hang_up(self, text: str, why: str) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._say(text)
        except TimeoutError:
            log.warning("a call's last words took longer than %.0f s", _LAST_WORDS_S)
        self._line.hang_up(why)

    async def _speak(self, tongue: Tongue) -> None:
        """Go on in this language, with all that was said before."""
        await self._talk.interrupt()  # what was being said is in the history from here on
        greeting = tongue.greeting if self._desk.open else tongue.closed
        self._note("language", chosen=tongue.name)
        if tongue is self._tongue:
            self._begin(greeting)
            return
        self._tongue, self._settings = tongue, tongue.desk
        self._patience.speak(tongue.desk.silence, tongue.desk.limit)
        if isinstance(self._session.tts, TTS):
            self._session.tts.update_options(voice=tongue.voice)
        said = self._session.history.copy(
            exclude_instructions=True, exclude_handoff=True, exclude_config_update=True
        )
        agent = self._agent(greeting, said)
        self._away = True
        try:
            self._session.update_agent(agent)
            async with asyncio.timeout(_CHANGE_S):
                await agent.entered.wait()
        except TimeoutError:
            log.error("a call did not go on in another language within %.0f s", _CHANGE_S)
        finally:
            self._away = False

    def _forget(self) -> None:
        if self._recording is not None:
            self._recording.discard()
            self._recording = None
            self._note("recording_stopped")

    def _agent(self, greeting: str, said: NotGivenOr[llm.ChatContext]) -> _Agent:
        return _Agent(
            instructions=self._tongue.instructions,
            # said when it has entered: what is said while agents change may be lost
            greeting=greeting,
            said=said,
            tools=[self._hand_over_tool(), self._hang_up_tool()],
            brain=self._tongue.brain,
            ears=self._tongue.ears,
        )

    def _hand_over_tool(self) -> llm.Tool:
        @llm.function_tool
        async def hand_over() -> None:
            """Connect the caller with a person. Use it when the caller asks for one, or when you cannot help.
            The caller is told; say nothing more."""
            self.wish(HandOver())

        return hand_over

    def _hang_up_tool(self) -> llm.Tool:
        @llm.function_tool
        async def hang_up() -> None:
            """End the call when the caller has said goodbye. Goodbye is said for you; say nothing more."""
            self.wish(HangUp())

        return hang_up

    def _begin(self, text: str, *, interruptible: bool = True) -> SpeechHandle | None:
        try:
            return self._session.say(text, allow_interruptions=interruptible)
        except RuntimeError:  # the session has just closed, and with it the call is over
            return None

    async def _say(self, text: str, *, interruptible: bool = True) -> bool:
        """Until it is over; whether it was heard to its end."""
        speech = self._begin(text, interruptible=interruptible)
        if speech is None:
            return False
        await speech.wait_for_playout()
        heard = [item.text_content or "" for item in speech.chat_items if isinstance(item, llm.ChatMessage)]
        return words_of(" ".join(heard)) == words_of(text) != []

    def _note(self, what: str, **facts: str | bool | float) -> None:
        if self._log:
            self._log.note(what, **facts)

    def _finish_recording(self) -> None:
        if isinstance(self._line, MediaLine):
            self._line.playout.tap(None)
            self._line.audio.tap(None)
        if self._recording is not None:
            self._recording.finish()

    @property
    def _talk(self) -> Conversation:
        assert self._conversation, "attend() has begun"
        return self._conversation

    @property
    def _session(self) -> AgentSession[None]:
        return self._talk.session


class _Agent(HeardAgent):
    """Says `greeting` when it enters, if it has one. said: what it knows of the conversation. brain, ears:
    None for the session's own."""

    def __init__(
        self,
        *,
        instructions: str,
        greeting: str,
        said: NotGivenOr[llm.ChatContext],
        tools: list[llm.Tool | llm.Toolset],
        brain: llm.LLM[Any] | None,
        ears: stt.STT[Any] | None,
    ) -> None:
        super().__init__(
            instructions=instructions,
            chat_ctx=said,
            tools=tools,
            llm=NOT_GIVEN if brain is None else brain,
            stt=NOT_GIVEN if ears is None else ears,
        )
        self.entered = asyncio.Event()
        self._greeting = greeting

    async def on_enter(self) -> None:
        self.entered.set()
        if self._greeting:
            self.session.say(self._greeting)
