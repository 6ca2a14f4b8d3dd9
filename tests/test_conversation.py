"""A caller's words go through real ears, a real brain and the session, and the right answer comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from logging import WARNING

import numpy as np
import pytest

from agent.assistant import Assistant
from agent.bench.caller import spoken
from agent.brains import FaqBrain
from agent.config import AgentSettings
from agent.ears import STT
from agent.faq import load_faq
from agent.role_log import AgentSaid, Event, UserSaid
from agent.session import build_session, build_vad, converse
from tests.fakes_livekit import Engine, WordTTS, handset
from tts_plugin.audio import Framer, silence

pytestmark = pytest.mark.ears

RATE = 16_000  # Hz, of the handset's microphone


@pytest.fixture(autouse=True)
def nobody_complains(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    complaints = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= WARNING]
    assert complaints == []


async def test_a_spoken_question_gets_its_answer_and_noise_gets_none() -> None:
    settings = AgentSettings(greeting="")
    faq = load_faq(settings.faq_source)
    (delivery,) = [entry for entry in faq.entries if "how long does delivery take" in entry.questions]
    bang = np.random.default_rng(1).normal(0, 6_000, RATE // 4).astype(np.int16)
    (question,) = await spoken(("How long does delivery take?",), RATE)
    parts = [silence(1.2, RATE), bang, silence(1, RATE), question]
    events: list[Event] = []
    answered = asyncio.Event()

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, AgentSaid) and len(event.text.split()) >= 3:
            answered.set()

    async with (
        STT(settings.ears_model) as ears,
        handset() as far_end,
        converse(
            build_session(
                tts=WordTTS(Engine()),
                stt=ears,
                llm=FaqBrain(faq),
                vad=build_vad(settings, far_end.playout),
                settings=settings,
            ),
            Assistant(settings),
            audio_in=far_end.input,
            audio_out=far_end.output,
            tell=tell,
        ),
        asyncio.timeout(20),
    ):
        far_end.mic += Framer(RATE // 50).push(np.concatenate(parts))
        await answered.wait()
    assert [event.text for event in events if isinstance(event, UserSaid) and event.final] == [
        "How long does delivery take?"
    ]
    said = [event.text for event in events if isinstance(event, AgentSaid)]
    assert said[0].startswith("Delivery")
    assert all(delivery.answer[0].startswith(text) for text in said)
