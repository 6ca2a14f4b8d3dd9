"""An engine server with vLLM speaks, and however it ends, no process of vLLM stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.random_model import write_model
from tts_plugin.link import Address
from tts_plugin.remote import Remote, Request

# Half a minute on an idle machine. On a busy one everybody else comes first: the server and all it starts
# are nice.
START_S = 900.0
GONE_S = 30.0
TOKEN = "of this test"
VOICE = f"id: ava\nengine: spark\nlanguage: en\nlicence: CC0-1.0\nglobal_tokens: {list(range(100, 132))}\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a tiny model with the published numbers of codes, its heads as wide as vLLM needs them."""
    folder = tmp_path_factory.mktemp("served")
    checkpoint = write_model(folder / "model")
    small = Qwen2Config(
        vocab_size=checkpoint.sizes.rows,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=checkpoint.vocabulary.eos,
    )
    Qwen2ForCausalLM(small).save_pretrained(folder / "model" / "LLM")
    Checkpoint.open(folder / "model")
    (folder / "voices").mkdir()
    (folder / "voices" / "ava.yaml").write_text(VOICE)
    path = folder / "served.yaml"
    path.write_text(
        "engine:\n  voice: ava\n  voices: [voices]\n  warm: [spark]\n"
        "  spark:\n    model: model\n    lm: vllm\n    dtype: float32\n"
    )
    return path


@contextmanager
def served(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The server and its port, once it is ready; whatever is left of it in the end is killed."""
    command = [sys.executable, "-m", "tts_plugin.server", "--child", "--config", str(config)]
    env = {**os.environ, "SPARKVOICE_TOKEN": TOKEN}
    started: list[psutil.Process] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as server:
        try:
            assert server.stdout is not None
            port = int(json.loads(server.stdout.readline())["port"])
            deadline_s = time.monotonic() + START_S
            while not ready(port):
                assert server.poll() is None, "it ended"
                assert time.monotonic() < deadline_s, "it is not ready"
                time.sleep(0.5)
            started = psutil.Process(server.pid).children(recursive=True)
            yield server, port
        finally:
            for process in (psutil.Process(server.pid), *started) if server.poll() is None else started:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def ready(port: int) -> bool:
    """Whether it is; a server that never will be fails the test at once, with the reason."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as not_yet:
        with not_yet:
            state = json.load(not_yet)
    except OSError:
        return False
    assert "error" not in state, state["error"]
    return False


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that live after GONE_S."""
    alive: list[psutil.Process] = psutil.wait_procs(processes, timeout=GONE_S)[1]
    return alive


async def speech_of(port: int) -> int:
    """Samples of a sentence and of one that is left in its middle."""

    async def locate() -> Address:
        return Address(f"http://127.0.0.1:{port}", TOKEN)

    remote = Remote(locate)
    try:
        async with remote.utterance(Request(rate=16_000, voice="ava", lead_s=None)) as left:
            left.push("This sentence is not heard to its end.")
            left.end()
            await anext(aiter(left))
        async with remote.utterance(Request(rate=16_000, voice="ava", lead_s=None)) as utterance:
            utterance.push("Good morning, how are you today?")
            utterance.end()
            return sum([len(frame.pcm) async for frame in utterance])
    finally:
        await remote.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
async def test_a_server_with_vllm_speaks_and_its_end_leaves_no_process(
    config: Path, number: signal.Signals
) -> None:
    with served(config) as (server, port):
        assert await asyncio.wait_for(speech_of(port), START_S) > 16_000
        children = psutil.Process(server.pid).children(recursive=True)
        assert any("EngineCore" in child.name() for child in children), children
        server.send_signal(number)
        assert server.wait(GONE_S) == (0 if number is signal.SIGTERM else -number)
        assert not left_of(children)


def test_a_parent_that_dies_while_vllm_starts_leaves_no_process(config: Path) -> None:
    """Before there is a model, in the process that imports."""
    command = [sys.executable, "-m", "tts_plugin.server", "--child", "--config", str(config)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        children: list[psutil.Process] = []
        deadline_s = time.monotonic() + START_S
        while not any("spawn_main" in " ".join(child.cmdline()) for child in children):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(server.pid).children(recursive=True)
        server.kill()
    left = psutil.wait_procs(children, timeout=START_S)[1]
    assert not left
