"""hibari among many: when a segment of a turn counts as due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from tts_plugin.audio import Pcm
from tts_plugin.crew import Crew
from tts_plugin.engine import Segment, Turn
from tts_plugin.engines.hibari import HibariEngine
from tts_plugin.voices import Voice

VOICE = Voice(id="hibari", engine="hibari", language="en-US", licence="Apache-2.0")


async def segments(*texts: str) -> AsyncGenerator[Segment]:
    at = 0
    for index, text in enumerate(texts):
        yield Segment(index, text, at, at + len(text))
        at += len(text)


async def test_a_reader_who_stalled_has_waited_only_since_it_reads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its next segment would go ahead of those whose listeners have run dry meanwhile."""
    dues, run = list[float](), Crew.run

    async def noted(crew: Crew, due_s: float, call: Callable[..., Pcm], *args: object) -> Pcm:
        dues.append(due_s)
        return await run(crew, due_s, call, *args)

    monkeypatch.setattr(Crew, "run", noted)
    engine = HibariEngine()
    async with aclosing(engine.speak(Turn(VOICE, seed=1), segments("Yes.", "No."))) as frames:
        first = await anext(frames)
        handed_out_s = time.monotonic()
        while time.monotonic() < handed_out_s + first.seconds:
            await asyncio.sleep(0.01)  # its listener would have heard it all
        reads_again_s = time.monotonic()
        await anext(frames)
    assert dues[1] >= reads_again_s
    await engine.aclose()
