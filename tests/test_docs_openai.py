"""The example in docs/openai.md runs as it stands there, and its tables name what the code knows."""

from __future__ import annotations

import asyncio
import re
import wave
from pathlib import Path

import pytest

from tests.engine_server import running, settings_of
from tts_plugin.limits import SPEEDS
from tts_plugin.server.encoders import FORMATS
from tts_plugin.server.openai_request import ALIASES, SpeechRequest

PAGE = (Path(__file__).parents[1] / "docs" / "openai.md").read_text(encoding="utf-8")


async def test_the_example_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(
        tmp_path
    )  # before the server looks for ./voices, which it would lose when it looks again
    async with running(settings_of(engine={"voice": "hibari"})) as port:
        code = block.replace("127.0.0.1:8081", f"127.0.0.1:{port}")
        assert code != block
        names: dict[str, object] = {}
        await asyncio.to_thread(exec, compile(code + "client.close()\n", "docs/openai.md", "exec"), names)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert len(file.readframes(file.getnframes())) > 2 * 24_000


def test_the_page_names_every_parameter_format_and_model() -> None:
    for name in (*SpeechRequest.model_fields, *FORMATS, *ALIASES):
        assert f"`{name}`" in PAGE
    assert f"{SPEEDS[0]} to {SPEEDS[1]}" in PAGE
