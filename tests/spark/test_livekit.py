"""A Spark voice through the LiveKit plugin: nothing above the engine knows which engine it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tts_plugin import TTS, VoiceRegistry, open_engine
from tts_plugin.audio import samples_of
from tts_plugin.config import load_settings

TEXT = "Hello there, how are you today? I am well, thank you."


@pytest.fixture
def voices(tmp_path: Path) -> VoiceRegistry:
    (tmp_path / "mine.yaml").write_text(
        "id: mine\nengine: spark\nlanguage: en-US\nlicence: LicenseRef-private\n"
        f"global_tokens: {list(range(0, 3200, 100))}\n"
    )
    return VoiceRegistry([tmp_path], ["spark"])


async def test_it_streams_and_frees_the_engine_when_it_is_closed(
    tiny_model: Path, voices: VoiceRegistry
) -> None:
    settings = load_settings(environ={"SPARK_TTS_MODEL": str(tiny_model)}).engine
    async with open_engine("spark", settings) as engine:
        tts = TTS(engine=engine, voice="mine", voices=voices, seed=1)
        async with tts.stream() as stream:
            stream.push_text(TEXT)
            stream.end_input()
            frames = [event.frame async for event in stream]
        pcm = np.concatenate([samples_of(bytes(frame.data.cast("b"))) for frame in frames])
        assert {frame.sample_rate for frame in frames} == {24000}
        assert len(pcm) / 24000 > 2
        assert np.abs(pcm).max() > 0

        async with tts.stream() as stream:
            stream.push_text(TEXT * 5)
            await asyncio.wait_for(anext(stream), 20)
        assert tts.cancelled_streams == 1
        await tts.aclose()
