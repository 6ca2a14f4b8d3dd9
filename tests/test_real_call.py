"""A real call: a caller in Chromium asks, is answered in a neural voice, talks over it, and it falls silent.

Nothing is a stand-in: the page, WebRTC, speech recognition, the FAQ, the engine server as a child, the voice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import expect

from agent.bench.caller import spoken
from agent.cli import agent_behind_the_page
from agent.config import load_settings as load_agent_side
from agent.serving import serving
from agent.web import Doors, build_app
from tests.chromium import MIC_RATE, chromium_page, heard, marks, needs_chromium, until, write_mic
from tts_plugin.audio import silence
from tts_plugin.config import load_settings
from tts_plugin.listener import listen

pytestmark = [*needs_chromium, pytest.mark.ears]

STATIC = Path(__file__).parents[1] / "demo" / "static"
SOUND = 0.01  # RMS; the voice is at 0.05 to 0.2


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Waits for the greeting to end, asks for a long story, and asks something else in the middle of it."""
    story, opening = asyncio.run(spoken(("Tell me a long story.", "When are you open?"), MIC_RATE))
    said = [silence(6.0, MIC_RATE), story, silence(5.0, MIC_RATE), opening, silence(30.0, MIC_RATE)]
    return write_mic(tmp_path_factory.mktemp("caller") / "caller.wav", np.concatenate(said))


async def test_a_caller_asks_is_answered_interrupts_and_is_answered_again(caller: Path) -> None:
    sides = load_settings(environ={}), load_agent_side(environ={})
    async with agent_behind_the_page(*sides, None) as (converse, voices):
        app = build_app(STATIC, converse, voices, Doors())
        async with (
            serving(app, listen("127.0.0.1", 0)) as port,
            chromium_page(f"http://127.0.0.1:{port}/", mic=caller) as page,
        ):
            await expect(page.get_by_label("Voice")).to_have_value("hibari")
            log = page.get_by_role("log")
            await page.get_by_role("button", name="Call", exact=True).click()

            # greeted, heard, understood, answered
            await expect(log).to_contain_text(
                "Hello, this is Harbour Lamps. How can I help you?", timeout=20_000
            )
            # a busy machine may hear the question in two parts
            await expect(log).to_contain_text("long story", timeout=20_000)
            await expect(log).to_contain_text("It began with a storm", timeout=20_000)
            asked_ms = await page.evaluate("sparkvoice.now()")

            # interrupted: the page cuts its own gain, while the agent was to be heard
            await until(page, "sparkvoice.marks.some(mark => mark.name === 'caption cut')", within_s=20)
            # a pause mutes at once, the transcript makes it an interruption; where words come fast it is one
            cut = next(mark for mark in await marks(page, "cut") if mark["page_ms"] > asked_ms)
            sound = await heard(page, cut["page_ms"] - 1500)
            assert sound.loudest(sound.heard, cut["page_ms"] - 1000, cut["page_ms"]) > SOUND
            assert sound.loudest(sound.mic, cut["page_ms"] - 400, cut["page_ms"]) > SOUND
            assert sound.loudest(sound.heard, cut["page_ms"] + 20, cut["page_ms"] + 200) < SOUND
            spoke_up = await heard(page, cut["page_ms"] - 3000)  # the caller was silent for 5 s before
            onset = next(n for n, level in enumerate(spoke_up.mic) if level > SOUND)
            assert 0 < cut["page_ms"] - (spoke_up.from_ms + onset * spoke_up.block_ms) < 2000

            # the caption ends where it was cut, and the rest of the story is gone
            await expect(log).to_contain_text("interrupted")
            await expect(log).not_to_contain_text("by hand")

            # answered again, and heard
            await expect(log).to_contain_text("When are you open", timeout=20_000)
            await expect(log).to_contain_text("from nine to six", timeout=20_000)
            answers = await marks(page, "heard")
            assert answers[-1]["page_ms"] > cut["page_ms"]
            latency = await page.evaluate("sparkvoice.latency")
            assert 0 < latency["reply_ms"][-1] < 8000
            await page.get_by_role("button", name="Hang up", exact=True).click()
            await expect(page.get_by_role("status")).to_have_text("Call ended")
