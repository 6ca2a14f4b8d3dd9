"""LiveKit's own plugin for OpenAI's voices, pointed at this server: raw audio and events, every format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError
from livekit.plugins import openai

from tests.engine_server import running, settings_of
from tests.openai_rig import GatedEngine, gated, until, url
from tests.test_encoders import PADDING_S
from tts_plugin.audio import Pcm, level_dbfs, samples_of
from tts_plugin.errors import Overloaded
from tts_plugin.server.encoders import FORMATS, Format

TEXT = "The ferry leaves at nine."
# LiveKit's decoder loses the first packet that it looks at to learn the format; of MP3 that one is empty
DROPPED_S: dict[Format, float] = {"opus": 0.02, "flac": 0.048}
TONE = settings_of(engine={"voice": "tone"})
ONCE = APIConnectOptions(max_retry=0, retry_interval=0.0, timeout=10.0)
TWICE = APIConnectOptions(max_retry=1, retry_interval=0.0, timeout=10.0)


@asynccontextmanager
async def plugin(
    port: int, *, model: str = "tts-1", voice: str = "tone", form: Format = "pcm"
) -> AsyncIterator[openai.TTS]:
    speaker = openai.TTS(model=model, voice=voice, response_format=form, base_url=url(port), api_key="any")
    try:
        yield speaker
    finally:
        await speaker.aclose()


async def heard_of(speaker: openai.TTS, text: str, options: APIConnectOptions = ONCE) -> Pcm:
    async with speaker.synthesize(text, conn_options=options) as stream:
        frames = [event.frame async for event in stream]
    assert {(frame.sample_rate, frame.num_channels) for frame in frames} == {(24_000, 1)}
    return np.concatenate([samples_of(bytes(frame.data)) for frame in frames])


@pytest.mark.parametrize(
    "model", ["tts-1", "gpt-4o-mini-tts", "tone"], ids=["raw", "events", "events of ours"]
)
@pytest.mark.parametrize("form", FORMATS)
async def test_it_hears_the_voice(form: Format, model: str) -> None:
    async with running(TONE) as port:
        async with plugin(port, model=model, form=form) as speaker:
            pcm = await heard_of(speaker, TEXT)
    expected_s = len(TEXT) * 0.06  # and LiveKit adds 10 ms of silence
    assert -DROPPED_S.get(form, 0.0) - 0.001 <= len(pcm) / 24_000 - expected_s <= PADDING_S[form] + 0.011
    assert level_dbfs(pcm) == pytest.approx(-17.5, abs=1.0)


@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts"])
async def test_it_hears_the_first_sound_while_the_engine_still_speaks(model: str, tmp_path: Path) -> None:
    engine = GatedEngine()
    engine.open(4)
    async with gated(tmp_path, engine) as port, plugin(port, model=model, voice="gated") as speaker:
        async with speaker.synthesize("Hello there.", conn_options=ONCE) as stream:
            await anext(stream)
            assert (engine.made, engine.active) == (4, 1)
        await until(lambda: engine.active == 0)
        assert engine.made == 4


async def test_a_voice_that_is_not_there_is_refused_once(tmp_path: Path) -> None:
    engine = GatedEngine()
    async with gated(tmp_path, engine) as port, plugin(port, voice="ash") as speaker:
        with pytest.raises(APIStatusError, match='no voice "ash"') as refused:
            await heard_of(speaker, TEXT, TWICE)
    assert (refused.value.status_code, refused.value.retryable) == (400, False)


async def test_an_engine_that_is_full_is_asked_again(tmp_path: Path) -> None:
    engine = GatedEngine(fail_at=0, error=Overloaded("full"))
    engine.open(2)
    async with gated(tmp_path, engine) as port, plugin(port, voice="gated") as speaker:
        with pytest.raises(APIError):
            await heard_of(speaker, TEXT, TWICE)
    assert len(engine.turns) == 2


@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts"])
async def test_half_an_answer_is_an_error(model: str, tmp_path: Path) -> None:
    engine = GatedEngine(fail_at=3)
    engine.open(4)
    async with gated(tmp_path, engine) as port, plugin(port, model=model, voice="gated") as speaker:
        with pytest.raises(APIConnectionError):
            await heard_of(speaker, TEXT)
