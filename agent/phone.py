"""A telephone's conversation: a line answered by the agent, until one of the two is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from livekit.agents import llm, stt

from agent.assistant import Assistant
from agent.calls import Calls, Meter
from agent.config import AgentSettings
from agent.heard import HeardAgent
from agent.limiter import TELEPHONE_DBFS
from agent.line import Line, MediaLine
from agent.media_io import Control, PlayoutOutput
from agent.role_log import AgentSaid, Event
from agent.session import Conversation, build_line_vad, build_session, converse
from agent.shared_calls import CallMeter
from tts_plugin import TTS
from tts_plugin.errors import Overloaded, TTSError

# holds the conversation of a line until that is over, and raises nothing: what transports call
Answer = Callable[[MediaLine], Awaitable[None]]

log = logging.getLogger("sparkvoice.phone")


class Bot(Protocol):
    """What talks on one line; made for it, and told of everything that happens there."""

    @property
    def agent(self) -> HeardAgent:
        """Enters the session when the line is answered."""

    def show(self, event: Event) -> None:
        """The role log, as it happens; must not block."""

    async def attend(self, conversation: Conversation) -> None:
        """Runs beside the conversation (keys, silence, the clock); the call outlives its return and cancels
        it at the call's end. Hanging up and handing over are the line's."""

    def over(self) -> None:
        """The conversation is over, if there was one, and all of it has been shown; called once."""


MakeBot = Callable[[Line], Bot]


@dataclass(frozen=True, slots=True)
class PlainBot:
    """Nothing but an agent."""

    agent: HeardAgent

    def show(self, event: Event) -> None:
        pass

    async def attend(self, conversation: Conversation) -> None:
        pass

    def over(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Receptionist:
    """An Answer: holds a conversation on every line it is called with; the parts are shared by all calls.

    make_tts: a TTS for one call, which is closed with it. make_bot: what talks on a line (None: Assistant).
    meet: is told of each conversation when it begins.
    """

    settings: AgentSettings
    ears: stt.STT[Any]
    brain: llm.LLM[Any]
    make_tts: Callable[[], Awaitable[TTS]]
    calls: Calls
    make_bot: MakeBot | None = None
    meet: Callable[[MediaLine, Conversation], None] = lambda _line, _conversation: None

    async def __call__(self, line: MediaLine) -> None:
        """Talk until the line or the session is over; a failure is logged and ends the call."""
        why = "the agent failed"
        try:
            with self.calls.measured(line.kind) as meter:
                mouth = await self.make_tts()
                try:
                    await self._talk(line, mouth, meter)
                finally:
                    await mouth.aclose()
            why = "the agent hung up"
        except TTSError as error:
            log.warning("a call ended: %s", error)
        except Exception:  # a call's outermost frame
            log.exception("a call failed")
        finally:
            line.hang_up(why)

    async def _talk(self, line: MediaLine, mouth: TTS, meter: Meter) -> None:
        bot = self.make_bot(line) if self.make_bot else PlainBot(Assistant(self.settings))
        output = PlayoutOutput(line.playout, ceiling_dbfs=TELEPHONE_DBFS)
        output.on_control(lambda control: meter.spoke() if control is Control.START else None)
        session = build_session(
            tts=mouth,
            stt=self.ears,
            llm=self.brain,
            vad=build_line_vad(self.settings, line.audio, line.playout),
            settings=self.settings,
        )
        tally = Tally(bot, meter)
        running = converse(session, bot.agent, audio_in=line.audio, audio_out=output, tell=tally.tell)
        try:
            async with running as conversation:
                try:
                    self.meet(line, conversation)
                    await until_over(line, conversation, bot)
                finally:
                    tally.over = True
        finally:
            bot.over()


class Tally:
    """Shows a bot what happens on its line, and counts the barge-ins. over: set at the call's end, which cuts
    the agent short, too."""

    def __init__(self, bot: Bot, meter: CallMeter) -> None:
        self.over = False
        self._bot = bot
        self._meter = meter

    def tell(self, event: Event) -> None:
        if isinstance(event, AgentSaid) and event.final and event.interrupted and not self.over:
            self._meter.barged_in()
        self._bot.show(event)


async def until_over(line: Line, conversation: Conversation, bot: Bot) -> None:
    """Wait until the line or the session is over; the bot attends meanwhile."""
    attending = asyncio.create_task(bot.attend(conversation), name="bot")
    ends = [
        asyncio.create_task(line.ended(), name="line's end"),
        asyncio.create_task(conversation.closed(), name="session's end"),
    ]
    tasks = [attending, *ends]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if attending in done:
            attending.result()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def if_free(calls: Calls, answer: Answer) -> Answer:
    """`answer` for transports without a busy signal: the line is hung up at once when all are taken."""

    async def answer_or_hang_up(line: MediaLine) -> None:
        try:
            place = calls.place(line.kind)
        except Overloaded as error:
            line.hang_up(str(error))
            return
        with place:
            await answer(line)

    return answer_or_hang_up
