"""Tongues: what it takes to talk in each of a desk's languages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from livekit.agents import llm, stt

from agent.brains import FaqBrain
from agent.config import Settings
from agent.desk.settings import DeskSettings
from agent.ears import STT
from agent.faq import load_faq


@dataclass(frozen=True, slots=True)
class Tongue:
    """One language.

    desk: with its texts. greeting: said when it is chosen; closed: the same outside the hours. voice: id,
    None for the default. brain, ears: None for the session's own.
    """

    name: str
    desk: DeskSettings
    greeting: str
    closed: str
    instructions: str
    voice: str | None
    brain: llm.LLM[Any] | None = None
    ears: stt.STT[Any] | None = None


@asynccontextmanager
async def open_tongues(settings: Settings, desk: DeskSettings) -> AsyncIterator[Mapping[str, Tongue]]:
    """By name, the first language included; ConfigError where an FAQ or a recogniser cannot be had."""
    agent = settings.agent
    first = Tongue(desk.language, desk, desk.back, desk.back, agent.instructions, agent.voice)
    async with AsyncExitStack() as stack:
        tongues = {first.name: first}
        for name, told in desk.languages.items():
            brain = None
            if settings.llm is None and told.faq is not None:
                brain = FaqBrain(load_faq(told.faq))
            ears = None
            if told.ears_model is not None:
                ears = await stack.enter_async_context(STT(told.ears_model, language=told.ears_language))
                ears.prewarm()
            tongues[name] = Tongue(
                name,
                desk.spoken_in(name),
                told.greeting,
                told.closed or told.greeting,
                told.instructions or first.instructions,
                told.voice or first.voice,
                brain,
                ears,
            )
        yield tongues
