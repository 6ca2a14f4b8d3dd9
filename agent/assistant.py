"""Assistant: the LiveKit Agent that a deployment's settings describe."""

from __future__ import annotations

from collections.abc import Sequence

from livekit.agents import Agent, llm

from agent.config import AgentSettings


class Assistant(Agent):
    """Greets when it enters the call, then answers with the session's language model."""

    def __init__(self, settings: AgentSettings, *, tools: Sequence[llm.Tool | llm.Toolset] = ()) -> None:
        super().__init__(instructions=settings.instructions, tools=list(tools))
        self._greeting = settings.greeting.strip()

    async def on_enter(self) -> None:
        if self._greeting:
            self.session.say(self._greeting)
