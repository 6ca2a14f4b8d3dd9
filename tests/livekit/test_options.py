"""C40 to C46: options, prewarming, equivalence of the two ways to speak, LiveKit's adapters, the package."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from livekit.agents import Plugin
from livekit.agents import tts as lk

from tests.engine_server import ProbedTone, running, settings_of, voices_for
from tests.livekit.conftest import PluginOver
from tests.livekit.engines import BookedEngine
from tests.livekit.helpers import (
    FERRY,
    ONCE,
    Log,
    Stopwatch,
    collect,
    pcm_of,
    say,
    say_to_error,
    seconds_of,
    text_of,
    until,
)
from tts_plugin.adapters.livekit import TTS
from tts_plugin.config import bundled
from tts_plugin.engine import ENGINES, open_engine
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.errors import BadRequest, ConfigError, EngineUnavailable
from tts_plugin.voices import VoiceRegistry


async def test_c40_new_options_hold_for_the_next_stream_only(plugin: TTS, engine: BookedEngine) -> None:
    running = plugin.stream(conn_options=ONCE)
    plugin.update_options(voice="hibari", seed=3, speed=2.0, latency="low")
    running.push_text("Hello there.")
    running.end_input()
    await collect(running)
    await say(plugin, "Hello there.")
    plugin.update_options(seed=None)
    plugin.update_options()
    await collect(plugin.synthesize("Hello there.", conn_options=ONCE))
    said = [(turn.voice.id, turn.seed, turn.pace, turn.latency) for turn in engine.turns]
    assert said[0] == ("tone", 7, 1.0, "balanced")
    assert said[1] == ("hibari", 3, 2.0, "low")
    assert said[2] == ("hibari", None, 2.0, "low")
    assert (plugin.model, plugin.provider) == ("hibari", "sparkvoice")


@pytest.mark.parametrize("wrong", [{"speed": 9.0}, {"seed": -1}, {"latency": "fast"}])
async def test_c40_options_that_cannot_be_are_refused_and_change_nothing(
    plugin: TTS, engine: BookedEngine, wrong: dict[str, object]
) -> None:
    with pytest.raises(BadRequest):
        plugin.update_options(voice="hibari", **wrong)  # type: ignore[arg-type]  # that is the point
    await say(plugin, "Hello there.")
    assert engine.turns[0].voice.id == "tone"


class SlowToWarm(ToneEngine):
    """Takes a second to warm up, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.asked = 0
        self._error = error

    async def warm_up(self) -> None:
        self.asked += 1
        if self._error is not None:
            raise self._error
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("where", ["in process"], indirect=True)
async def test_c42_prewarming_returns_at_once_and_twice_is_once(plugin_over: PluginOver) -> None:
    engine = SlowToWarm()
    plugin = await plugin_over(engine)
    watch = Stopwatch()
    plugin.prewarm()
    plugin.prewarm()
    assert watch.s < 0.05
    await until(lambda: engine.asked)
    assert seconds_of(await say(plugin, "Hello there.")) > 0
    assert engine.asked == 1
    await plugin.aclose()
    assert watch.s < 1.0


@pytest.mark.parametrize("where", ["in process"], indirect=True)
@pytest.mark.parametrize("error", [EngineUnavailable("not yet"), RuntimeError("a bug")])
async def test_c42_a_failure_to_prewarm_is_not_fatal(
    plugin_over: PluginOver, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    plugin = await plugin_over(SlowToWarm(error))
    plugin.prewarm()
    await until(lambda: "prewarm failed" in caplog.text)
    assert str(error) in caplog.text
    assert seconds_of(await say(plugin, "Hello there.")) > 0


async def test_c42_prewarming_a_server_that_is_down_is_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    plugin = TTS(url="http://127.0.0.1:9")
    plugin.prewarm()
    await until(lambda: "prewarm failed" in caplog.text)
    await plugin.aclose()


async def test_c42_prewarming_loads_the_engine_of_the_voice_and_not_only_the_servers_default(
    tmp_path: Path,
) -> None:
    built: list[str] = []

    def build(name: str) -> ProbedTone:
        built.append(name)
        return ProbedTone()

    registry = voices_for(tmp_path, {"tone": "und", "hibari": "en"})
    settings = settings_of(engine={"voice": "tone"})
    async with running(settings, registry=registry, build=build) as port:
        plugin = TTS(url=f"http://127.0.0.1:{port}", voice="hibari")
        plugin.prewarm()
        await until(lambda: "hibari" in built)
        plugin.update_options(voice="tone")
        await say(plugin, "Hello there.")
        await plugin.aclose()


async def test_c42_prewarming_opens_the_connection(plugin: TTS, where: str) -> None:
    log = Log.of(plugin)
    plugin.prewarm()
    await asyncio.sleep(0.2)
    await say(plugin, "Hello there.")
    assert log.metrics[0].connection_reused, where


async def test_c43_synthesize_makes_the_samples_of_a_stream(plugin_over: PluginOver) -> None:
    text = "The ferry leaves at nine, and it takes two hours."
    async with open_engine("hibari") as hibari:
        plugin = await plugin_over(hibari, voice="hibari")
        whole = await collect(plugin.synthesize(text, conn_options=ONCE))
        streamed = await say(plugin, *text)
    assert seconds_of(whole) > 2.0
    assert np.array_equal(pcm_of(whole), pcm_of(streamed))
    assert text_of(whole) == text


async def test_c44_it_works_under_a_stream_adapter(plugin: TTS, engine: BookedEngine) -> None:
    adapter = lk.StreamAdapter(tts=plugin)
    log = Log.of(adapter)
    events = await say(adapter, *FERRY)
    assert " ".join(engine.texts) == FERRY
    assert seconds_of(events) == pytest.approx(engine.samples / engine.rate, abs=0.05)
    assert "".join(text_of(events).split()) == "".join(FERRY.split())
    assert sum(metrics.characters_count for metrics in log.metrics) == len(FERRY) - 1
    assert await say(adapter) == []
    await adapter.aclose()


async def test_c44_a_fallback_adapter_takes_over(plugin: TTS) -> None:
    down = TTS(url="http://127.0.0.1:9", rate=16000)
    adapter = lk.FallbackAdapter([down, plugin], max_retry_per_tts=0, sample_rate=24000)
    lost: list[lk.AvailabilityChangedEvent] = []
    adapter.on("tts_availability_changed", lost.append)
    events = await say(adapter, FERRY)
    assert {event.frame.sample_rate for event in events} == {24000}
    assert seconds_of(events) == pytest.approx(len(FERRY) * 0.02, abs=0.05)
    assert [(event.tts, event.available) for event in lost] == [(down, False)]
    await adapter.aclose()
    await down.aclose()


async def test_c44_a_fallback_adapter_resamples(plugin_over: PluginOver) -> None:
    adapter = lk.FallbackAdapter([await plugin_over(BookedEngine(), rate=16000)], sample_rate=24000)
    events = await say(adapter, FERRY)
    assert {event.frame.sample_rate for event in events} == {24000}
    assert seconds_of(events) == pytest.approx(len(FERRY) * 0.02, abs=0.05)
    await adapter.aclose()


async def test_c44_a_turn_that_says_nothing_is_no_outage(plugin: TTS) -> None:
    adapter = lk.FallbackAdapter([plugin])
    lost: list[lk.AvailabilityChangedEvent] = []
    adapter.on("tts_availability_changed", lost.append)
    for text in ("", "...", "🙂"):
        await say(adapter, *([text] if text else []))
    assert lost == []
    await adapter.aclose()


def test_c46_a_job_thread_imports_it_without_any_engine() -> None:
    code = """
import sys, threading
for engine in ("hibari", "torch", "onnxruntime", "fastapi", "uvicorn"):
    sys.modules[engine] = None
def job():
    from tts_plugin import TTS
    plugin = TTS(url="http://127.0.0.1:1")
    print(plugin.sample_rate, plugin.label, plugin.model)
thread = threading.Thread(target=job)
thread.start()
thread.join()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["24000", "tts_plugin.adapters.livekit.TTS", "default"], done.stderr


def test_c46_the_plugin_is_registered_once_and_typed() -> None:
    assert [plugin.title for plugin in Plugin.registered_plugins].count("sparkvoice") == 1
    assert (files("tts_plugin") / "py.typed").is_file()


def test_making_one_needs_no_event_loop_and_connects_to_nothing() -> None:
    plugin = TTS(url="http://127.0.0.1:1", rate=8000)
    plugin.prewarm()
    assert plugin.sample_rate == 8000


def test_arguments_that_contradict_each_other_are_refused() -> None:
    engine = ToneEngine()
    voices = VoiceRegistry([], ENGINES, bundled=bundled("voices"))
    with pytest.raises(ConfigError, match="engine="):
        TTS(engine=engine, url="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="voices="):
        TTS(url="http://127.0.0.1:1", voices=voices)
    with pytest.raises(ConfigError, match="token="):
        TTS(token="secret")
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        TTS(url="127.0.0.1:8081")
    with pytest.raises(BadRequest, match="rate"):
        TTS(engine=engine, rate=4000)


async def test_the_address_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARKVOICE_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    plugin = TTS()
    _, error = await say_to_error(plugin, "Hello there.")
    assert "http://127.0.0.1:9" in str(error)
    await plugin.aclose()
