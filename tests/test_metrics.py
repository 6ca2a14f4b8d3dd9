"""/metrics tells what happened to turns over a real socket, and the dashboard asks for what is there."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine_server import ProbedTone, client, fetch, get, running, settings_of
from tests.test_server import LONG, SENTENCE, until
from tts_plugin import wire
from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Segment, Turn
from tts_plugin.engines.tone import ToneEngine
from tts_plugin.server.metrics import Metrics
from tts_plugin.timing import Timeline

REPOSITORY = Path(__file__).parent.parent
Samples = Mapping[str, float]  # 'name{label="value"}' as Prometheus writes it, labels in order


async def scraped(port: int) -> Samples:
    status, body = await fetch(port, "/metrics")
    assert status == 200
    return samples_of(body)


def samples_of(body: bytes) -> Samples:
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


TONE = '{engine="tone",voice="tone"}'


async def test_a_turn_is_counted_with_its_times_when_it_is_over() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, lead_s=None)
        done = (await caller.over(1)).last
        assert isinstance(done, wire.Done)
        await until_over(port, 1)
        told = await scraped(port)
    assert told['sparkvoice_utterances_total{engine="tone",outcome="done",voice="tone"}'] == 1
    assert told[f"sparkvoice_audio_seconds_total{TONE}"] == pytest.approx(done.timeline["audio_s"], abs=1e-3)
    assert told[f"sparkvoice_first_frame_seconds_count{TONE}"] == 1
    first_s = told[f"sparkvoice_first_frame_seconds_sum{TONE}"]
    assert first_s == pytest.approx(done.timeline["first_frame_ms"] / 1000, abs=1e-4)
    onset_s = told[f"sparkvoice_audible_onset_seconds_sum{TONE}"]
    assert onset_s == pytest.approx(done.timeline["onset_ms"] / 1000, abs=1e-4)
    assert first_s <= onset_s < first_s + 0.1
    for stage in ("engine", "resample"):
        assert told[f'sparkvoice_stage_seconds_count{{engine="tone",stage="{stage}"}}'] == 1
    assert told[f"sparkvoice_underruns_total{TONE}"] == done.timeline["underruns"]
    assert told["sparkvoice_connections"] == 1
    assert told['sparkvoice_streams_active{engine="tone"}'] == 0
    assert told["process_resident_memory_bytes"] > 1e6


async def until_over(port: int, turns: int) -> None:
    """The books are closed a moment after the last message."""
    for _ in range(1000):
        told = await scraped(port)
        counted = (value for name, value in told.items() if name.startswith("sparkvoice_utterances_total"))
        if sum(counted) >= turns:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the turn was not counted")


async def test_what_is_spoken_waits_and_is_refused_now_is_told_as_it_is() -> None:
    settings = settings_of(
        engine={"voice": "tone", "tone": {"max_streams": 2}}, server={"max_waiting": 1, "max_wait_s": 30}
    )
    async with running(settings) as port, client(port) as caller:
        for context in (1, 2):
            await caller.say(context, LONG)
            await caller.audio(context)
        await caller.say(3, LONG)
        await caller.say(4, LONG)
        assert isinstance((await caller.over(4)).last, wire.Error)
        told = await scraped(port)
        assert told['sparkvoice_streams_max{engine="tone"}'] == 2
        assert told['sparkvoice_streams_active{engine="tone"}'] == 2
        assert told['sparkvoice_streams_waiting{engine="tone"}'] == 1
        assert told['sparkvoice_rejected_total{engine="tone",reason="full"}'] == 1
        assert told['sparkvoice_rejected_total{engine="tone",reason="waited"}'] == 0
        assert told['sparkvoice_errors_total{code="overloaded"}'] == 1


async def test_what_was_made_for_a_turn_that_was_cut_off_is_counted_as_waste() -> None:
    engine = ProbedTone()
    async with running(build=lambda _: engine) as port:
        async with client(port) as caller:
            await caller.say(1, LONG)
            await caller.audio(1)
            await caller.send(wire.Cancel(context=1))
            cancelled = (await caller.over(1)).last
            assert isinstance(cancelled, wire.Cancelled)
            await until_over(port, 1)
            wasted = 'sparkvoice_wasted_audio_seconds_total{engine="tone"}'
            told = await scraped(port)
            assert told[wasted] == pytest.approx(cancelled.orphan_ms / 1000, abs=1e-3)
            assert told['sparkvoice_utterances_total{engine="tone",outcome="cancelled",voice="tone"}'] == 1
            await caller.say(2, LONG)
            await caller.audio(2)
        await until(lambda: engine.speaking == 0, "it is free")
        await until_over(port, 2)
        after = await scraped(port)
        assert after[wasted] > told[wasted]
        assert after['sparkvoice_utterances_total{engine="tone",outcome="disconnected",voice="tone"}'] == 1


class Slow(ToneEngine):
    """Takes longer than its sound lasts."""

    async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        async for segment in segments:
            for index in range(3):
                await asyncio.sleep(0.05)
                pcm = np.full(240, 8000, dtype=np.int16)
                yield AudioFrame(pcm, self.rate, 240 * index, segment.index, index == 2)


async def test_an_engine_slower_than_its_sound_has_underruns() -> None:
    async with running(build=lambda _: Slow()) as port, client(port) as caller:
        await caller.say(1, "Hello.")
        done = (await caller.over(1)).last
        assert isinstance(done, wire.Done)
        assert done.timeline["underruns"] == 2
        await until_over(port, 1)
        told = await scraped(port)
    assert told[f"sparkvoice_underruns_total{TONE}"] == 2
    assert told[f"sparkvoice_underrun_seconds_total{TONE}"] >= 2 * 0.035


def over(
    metrics: Metrics, voice: str = "ava", outcome: str = "done", timeline: Timeline | None = None
) -> None:
    metrics.over("spark", voice, outcome, code=None, timeline=timeline, orphan_s=0.5)


def test_tokens_and_watchdog_events_come_from_what_the_engine_counts() -> None:
    metrics, timeline = Metrics({}, lambda: 0), Timeline()
    for what, more in (("tokens", 100), ("tokens_spoken", 60), ("tokens", 20), ("watchdog_loop", 2)):
        timeline.count(what, more)
    over(metrics, timeline=timeline)
    over(metrics, outcome="cancelled", timeline=timeline)
    told = samples_of(metrics.exposition())
    assert told['sparkvoice_wasted_tokens_total{engine="spark"}'] == 60, "of the turn that was cut off only"
    assert told['sparkvoice_wasted_audio_seconds_total{engine="spark"}'] == 0.5
    assert told['sparkvoice_watchdog_events_total{engine="spark",event="loop"}'] == 4


def test_many_voices_share_a_label() -> None:
    metrics = Metrics({}, lambda: 0)
    for index in range(80):
        over(metrics, voice=f"customer-{index}")
    over(metrics, voice="customer-0")
    told = samples_of(metrics.exposition())
    counted = {name: value for name, value in told.items() if name.startswith("sparkvoice_utterances_total")}
    assert len(counted) == 51
    assert sum(counted.values()) == 81
    assert counted['sparkvoice_utterances_total{engine="spark",outcome="done",voice="customer-0"}'] == 2
    assert counted['sparkvoice_utterances_total{engine="spark",outcome="done",voice="other"}'] == 30


async def test_a_turn_whose_voice_is_not_there_is_counted_without_its_name() -> None:
    async with running() as port, client(port) as caller:
        await caller.say(1, SENTENCE, voice="a-name-that-anybody-may-send")
        await caller.over(1)
        await until_over(port, 1)
        _, body = await fetch(port, "/metrics")
    assert b"a-name-that" not in body
    other = 'sparkvoice_utterances_total{engine="other",outcome="error",voice="other"}'
    assert samples_of(body)[other] == 1


async def test_the_token_guards_the_metrics_too() -> None:
    settings = settings_of(engine={"voice": "tone"}, server={"token": "right"})
    async with running(settings) as port:
        assert (await get(port, "/metrics"))[0] == 401
        status, body = await fetch(port, "/metrics", Authorization="Bearer right")
    assert status == 200
    assert b"sparkvoice_utterances" in body


async def test_two_servers_of_one_process_keep_their_own_books_and_nothing_is_global() -> None:
    async with running() as one, running() as two, client(one) as caller:
        await caller.say(1, SENTENCE, lead_s=None)
        await caller.over(1)
        await until_over(one, 1)
        assert not any("utterances_total" in name for name in await scraped(two))
    assert b"sparkvoice" not in prometheus_client.generate_latest()


async def test_the_line_of_a_turn_in_the_log_tells_its_whole_timeline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as port, client(port) as caller:
        await caller.say(7, SENTENCE, lead_s=None)
        done = (await caller.over(7)).last
        await until_over(port, 1)
    assert isinstance(done, wire.Done)
    messages = [record.getMessage() for record in caplog.records]
    [line] = [json.loads(text.partition(" ")[2]) for text in messages if text.startswith("utterance ")]
    assert line["outcome"] == "done"
    assert (line["voice"], line["engine"], line["context"]) == ("tone", "tone", 7)
    assert line["chars"] == len(SENTENCE)
    assert {name: line[name] for name in done.timeline} == {**done.timeline, "total_ms": line["total_ms"]}


# --- the dashboard


def families() -> dict[str, str]:
    """Name of every sample that may come -> its family's kind."""
    body = Metrics({}, lambda: 0).exposition().decode()
    found: dict[str, str] = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", body, re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + part: kind for part in parts}
    return found


def queries() -> list[str]:
    board = json.loads((REPOSITORY / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [
        variable["definition"] for variable in board["templating"]["list"] if "definition" in variable
    ]


def test_every_query_of_the_dashboard_names_metrics_that_exist_and_labels_that_they_have() -> None:
    known, asked = families(), set[str]()
    for query in queries():
        names = set(re.findall(r"\b(?:sparkvoice|process)_\w+", query))
        assert names, query
        assert names <= known.keys(), query
        for counter in (name for name in names if known[name] != "gauge"):
            assert re.search(rf"rate\({counter}\b", query), f"{query}: {counter} only ever grows"
        asked |= names
    own = {name.removesuffix("_bucket") for name in known if name.startswith("sparkvoice_")}
    shown = {name.removesuffix("_bucket") for name in asked}
    assert {name for name in own if not name.endswith(("_sum", "_count"))} <= shown, "and shows all of them"
    labels = {
        label
        for query in queries()
        for by in re.findall(r"by \(([^)]+)\)", query)
        for label in by.split(", ")
    }
    assert labels <= {"le", "engine", "voice", "stage", "reason", "outcome", "event", "code"}


def test_the_page_names_every_metric() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, kind in families().items():
        if name.startswith("sparkvoice_"):
            base = re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name
            assert f"`{base}`" in page, base
