"""What runs here is nobody else's business: no library that the product loads reports to its makers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "a voice": (
        "import asyncio\n"
        "from tts_plugin.engine import open_engine\n"
        "async def speak():\n"
        "    async with open_engine('hibari'):\n"
        "        pass\n"
        "asyncio.run(speak())\n"
    ),
    "the ears": (
        "import numpy as np\n"
        "from agent.ears import bundled_model\n"
        "from agent.recogniser import Whisper\n"
        "Whisper(bundled_model(), language='en', threads=1).recognise(np.zeros(16000, np.int16))\n"
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_onnxruntime_keeps_nothing_to_report(name: str, tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    environ |= {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAMS[name]], env=environ, check=True, timeout=120)
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []
