"""Assistant: the LiveKit Agent that a deployment's settings describe."""

from __future__ import annotations

from collections.abc import Sequence

from livekit.agents import llm

from agent.brains import FaqBrain
from agent.config import GREETING, AgentSettings
from agent.heard import HeardAgent


class Assistant(HeardAgent):
    """Greets when it enters the call, then answers with the session's language model.

    The greeting is the settings'; None leaves it to the FAQ if that answers, else it is GREETING.
    """

    def __init__(self, settings: AgentSettings, *, tools: Sequence[llm.Tool | llm.Toolset] = ()) -> None:
        super().__init__(instructions=settings.instructions, tools=list(tools))
        self._greeting = settings.greeting

    async def on_enter(self) -> None:
        if greeting := greeting_of(self._greeting, self.session.llm):
            self.session.say(greeting)


def greeting_of(told: str | None, brain: object) -> str:
    """What is said first: `told`, or if that is None what `brain` has; "" says nothing."""
    if told is None:
        return brain.greeting if isinstance(brain, FaqBrain) else GREETING
    return told.strip()
