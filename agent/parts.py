"""The parts that all calls of a process share: engine server, ears and brain, warm and ended together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from livekit.agents import llm

from agent.config import Settings as AgentSide
from agent.ears import STT
from agent.serving import settle
from agent.session import build_llm
from tts_plugin import TTS
from tts_plugin.config import Settings
from tts_plugin.link import Address
from tts_plugin.server.local import LocalServer
from tts_plugin.strict_yaml import shown

OPENAI = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Parts:
    """Made by `open_parts`."""

    ears: STT
    brain: llm.LLM[Any]
    engine_side: Settings
    config: Path | None

    async def engine(self) -> Address:
        """Where the engine server is now: a child that lost its port when it died has another one."""
        return await engine_server(self.engine_side, self.config)

    async def make_tts(self, voice: str | None) -> TTS:
        """A TTS for one call; None takes the engine's default voice."""
        await self.engine()  # a call that could not be spoken in is not begun
        return TTS(voice=voice, locate=self.engine)  # the child may die and move while the call lasts


@asynccontextmanager
async def open_parts(
    engine_side: Settings, agent_side: AgentSide, config: Path | None
) -> AsyncIterator[Parts]:
    """The parts, warm; ended with the block."""
    await engine_server(engine_side, config)  # what does not work is said before anything else is loaded
    brain = build_llm(agent_side)
    async with STT(agent_side.agent.ears_model) as ears:
        ears.prewarm()
        settle()
        try:
            yield Parts(ears, brain, engine_side, config)
        finally:
            await brain.aclose()


async def engine_server(settings: Settings, config: Path | None) -> Address:
    """The running one that the settings name, else the child of this process."""
    if settings.url is not None:
        return Address(settings.url, settings.server.token)
    return await LocalServer.shared(config).address()


def who_answers(settings: AgentSide) -> str:
    """One line that tells what answers the callers."""
    if settings.llm is None:
        return f"Sparkvoice: answers come from the FAQ {shown(settings.agent.faq_source)}"
    # an address may hold a password
    address = urlsplit(settings.llm.base_url or OPENAI)
    where = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    return f"Sparkvoice: answers come from the language model {settings.llm.model} at {where}"
