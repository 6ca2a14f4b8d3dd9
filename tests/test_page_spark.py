"""A call in Chromium with a Spark voice of random weights: noise, but it comes, goes on, and is cut off.

Nothing is a stand-in: the page, WebRTC, the session, the engine server as a child, and Spark's own engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page, expect

from agent.cli import agent_behind_the_page
from agent.config import load_settings as load_agent_side
from agent.serving import serving
from agent.web import Doors, build_app
from tests.chromium import MIC_RATE, chromium_page, heard, marks, needs_chromium, until, write_mic
from tts_plugin.audio import silence
from tts_plugin.config import load_settings
from tts_plugin.engines.spark.random_model import write_model
from tts_plugin.listener import listen
from tts_plugin.server.local import LocalServer

pytestmark = [*needs_chromium, pytest.mark.ears]

STATIC = Path(__file__).parents[1] / "demo" / "static"
SOUND = 0.003  # RMS; a tiny random codec hums at about 0.02
CUT_MS = 200  # from the question to the gain; the best of some, because the machine has other work
GREETING = "Hello, this is a voice that nobody has ever trained, and it goes on and on and on. " * 4
CONFIG = """\
engine:
  voice: ava
  voices: [voices]
  warm: [spark]
  spark: {model: model, lm: hf, device: cpu, dtype: bfloat16}
agent:
  greeting: >-
    %s
"""
VOICE = "id: ava\nengine: spark\nname: Ava\nlanguage: en-US\nlicence: CC0-1.0\ncreate: {gender: female}\n"


@pytest.fixture
async def config(tmp_path: Path) -> AsyncIterator[Path]:
    """As configs/spark-cpu.yaml, with a model and a voice of its own."""
    write_model(tmp_path / "model")
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "ava.yaml").write_text(VOICE)
    path = tmp_path / "spark.yaml"
    path.write_text(CONFIG % GREETING)
    yield path
    LocalServer.shared(path).close()


async def test_a_random_voice_is_heard_streams_and_is_cut_off_by_a_typed_question(
    config: Path, tmp_path: Path
) -> None:
    mic = write_mic(tmp_path / "quiet.wav", silence(10, MIC_RATE))
    sides = load_settings(config, environ={}), load_agent_side(config, environ={})
    async with agent_behind_the_page(*sides, config) as (converse, voices):
        app = build_app(STATIC, converse, voices, Doors())
        async with (
            serving(app, listen("127.0.0.1", 0)) as port,
            chromium_page(f"http://127.0.0.1:{port}/", mic=mic) as page,
        ):
            await expect(page.get_by_label("Voice")).to_have_value("ava")
            await page.get_by_role("button", name="Call", exact=True).click()

            # it comes, and goes on for longer than is made ahead
            await until(page, "sparkvoice.marks.some(mark => mark.name === 'heard')", within_s=20)
            (opened, *_) = await marks(page, "heard")
            await page.wait_for_timeout(5000)
            sound = await heard(page, opened["page_ms"])
            loud = np.array(sound.heard) > SOUND
            assert loud.mean() > 0.9, "without gaps"
            assert loud[-round(1000 / sound.block_ms) :].mean() > 0.9, "to this moment"
            assert (tmp_path / "voices" / "ava.tokens.json").exists(), "and the speaker is kept"

            # a question cuts it off, and so does the next one its answer
            waits_ms = [await _cut_off(page, question) for question in ["Tell me a long story."] * 3]
            assert min(waits_ms) < CUT_MS, waits_ms
            await expect(page.get_by_role("log")).to_contain_text("interrupted")
            await page.get_by_role("button", name="Hang up", exact=True).click()
            await expect(page.get_by_role("status")).to_have_text("Call ended")


async def _cut_off(page: Page, question: str) -> float:
    """Ask while it speaks; from then to the page's gain being down, in ms. Ends when the answer is heard."""
    await page.get_by_label("Message to the agent").fill(question)
    asked_ms: float = await page.evaluate("sparkvoice.now()")
    await page.keyboard.press("Enter")
    after = f"(mark => mark.page_ms > {asked_ms}"
    await until(page, f"sparkvoice.marks.some{after} && mark.name === 'cut')")
    cut_ms = next(mark["page_ms"] for mark in await marks(page, "cut") if mark["page_ms"] > asked_ms)
    await until(page, f"sparkvoice.marks.some{after} && mark.name === 'heard')")
    await page.wait_for_timeout(1000)
    sound = await heard(page, asked_ms - 500)
    assert sound.loudest(sound.heard, asked_ms - 300, asked_ms) > SOUND, "it was speaking"
    assert sound.loudest(sound.heard, cut_ms + 20, cut_ms + 60) < SOUND, "and is silent"
    return float(cut_ms - asked_ms)
