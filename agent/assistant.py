"""Assistant: the LiveKit Agent that a deployment's settings describe."""

from __future__ import annotations

from collections.abc import Sequence

from livekit.agents import Agent, llm

from agent.brains import FaqBrain
from agent.config import GREETING, AgentSettings


class Assistant(Agent):
    """Greets when it enters the call, then answers with the session's language model.

    The greeting is the settings'; None leaves it to the FAQ if that answers, else it is GREETING.
    """

    def __init__(self, settings: AgentSettings, *, tools: Sequence[llm.Tool | llm.Toolset] = ()) -> None:
        super().__init__(instructions=settings.instructions, tools=list(tools))
        self._greeting = settings.greeting

    async def on_enter(self) -> None:
        greeting = self._greeting
        if greeting is None:
            brain = self.session.llm
            greeting = brain.greeting if isinstance(brain, FaqBrain) else GREETING
        if greeting.strip():
            self.session.say(greeting.strip())
