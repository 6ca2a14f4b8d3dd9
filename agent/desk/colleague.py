"""Colleague: the agent that talks in one of a desk's languages, and knows what was said in the others."""

from __future__ import annotations

import asyncio
from typing import Any

from livekit.agents import NOT_GIVEN, llm, stt
from livekit.agents.types import NotGivenOr

from agent.heard import HeardAgent


class Colleague(HeardAgent):
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
