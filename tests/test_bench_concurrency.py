"""The benches of many streams count what they say, and speak through a real engine server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_plugin import capacity
from tts_plugin.audio import AudioFrame, silence
from tts_plugin.bench.capacity import most_that
from tts_plugin.bench.chunks import CROSS_FADED, Chunker, ChunkPolicy, CrossFader
from tts_plugin.bench.crowd import Load, Take, gather
from tts_plugin.bench.levels import level
from tts_plugin.bench.listener import Listener
from tts_plugin.bench.process import spent_by
from tts_plugin.bench.speakers import cast, in_process
from tts_plugin.cli import main
from tts_plugin.config import load_settings
from tts_plugin.engines.tone import ToneEngine, tone
from tts_plugin.server.admission import Admitted, Gate

RATE = 24_000


def frame(seconds: float, *, loud: bool = True) -> AudioFrame:
    pcm = tone("a", round(seconds * RATE), RATE) if loud else silence(seconds, RATE)
    return AudioFrame(pcm, RATE, 0, 0)


# --- the listener


def test_a_listener_who_is_served_in_time_never_runs_dry() -> None:
    listener = Listener(buffer_s=0.0)
    for at_s in (5.0, 5.4, 5.8, 6.5):
        listener.frame(frame(0.5), at_s)
    assert (listener.first_s, listener.underruns, listener.dry_s) == (5.0, 0, 0.0)
    assert listener.over_at_s == pytest.approx(7.0)


def test_a_late_frame_is_an_underrun_of_its_lateness() -> None:
    listener = Listener(buffer_s=0.0)
    for at_s in (0.0, 0.75, 1.0, 2.0):
        listener.frame(frame(0.5), at_s)
    assert listener.underruns == 2
    assert listener.dry_s == pytest.approx(0.25 + 0.25)


def test_a_buffer_forgives_as_much_as_it_holds() -> None:
    arrivals = (0.0, 0.6, 1.2, 1.8)  # half a second of audio each: behind by 0.3 s in the end
    for buffer_s, underruns in ((0.0, 3), (0.6, 0)):
        listener = Listener(buffer_s)
        for at_s in arrivals:
            listener.frame(frame(0.5), at_s)
        assert listener.underruns == underruns


def test_what_is_shorter_than_the_buffer_is_heard_when_no_more_comes() -> None:
    listener = Listener(buffer_s=1.0)
    listener.frame(frame(0.5), 3.0)
    waiting = listener.onset_s
    assert waiting is None
    listener.end(3.2)
    onset_s, over_at_s = listener.onset_s, listener.over_at_s
    assert onset_s == pytest.approx(3.2, abs=0.02)
    assert over_at_s == pytest.approx(3.7)


def test_the_onset_is_heard_behind_the_silence_before_it_and_the_buffer() -> None:
    listener = Listener(buffer_s=0.4)
    listener.frame(frame(0.3, loud=False), 1.0)
    listener.frame(frame(0.3), 1.2)
    assert listener.onset_s == pytest.approx(1.2 + 0.3, abs=0.02)


def test_silence_at_the_end_of_the_time_counts_if_more_should_have_come() -> None:
    listener = Listener(buffer_s=0.0)
    listener.frame(frame(0.5), 0.0)
    listener.leave(0.4)
    assert listener.underruns == 0
    listener.leave(2.0)
    assert listener.underruns == 1
    assert listener.dry_s == pytest.approx(1.5)


# --- a level


def test_a_level_counts_turns_not_frames() -> None:
    report = {
        "first_segment_ms": 200.0,
        "first_frame_ms": 230.0,
        "stages_ms": {"tokens": 150.0},
        "rtf": 0.5,
    }
    takes = [
        Take(first_s=0.2, onset_s=0.25, audio_s=2.0, report=report),
        Take(first_s=0.4, onset_s=0.45, audio_s=2.0, underruns=7, dry_s=0.3, report=report),
        Take(first_s=0.3, onset_s=0.35, audio_s=1.0, free_s=0.002, orphan_ms=80.0),
        Take(silent_s=0.1),  # it had just begun
        Take(error="overloaded"),
    ]
    row = level("x", 3, takes, 10.0, None, 15)
    assert (row.turns, row.first_p50, row.onset_p50, row.made_p50) == (5, 300.0, 350.0, 30.0)
    assert (row.dry, row.dry_ms, row.errors, row.audio_per_s) == (1, 300.0, 1, 0.5)
    assert (row.step_ms, row.rtf_p50, row.free_p95, row.orphan_p50) == (10.0, 0.5, 2.0, 80.0)
    assert not row.holds


def test_a_turn_that_stays_silent_is_no_fast_turn() -> None:
    row = level("x", 2, [Take(first_s=0.1), Take(silent_s=9.0)], 10.0, None, 15)
    assert row.first_p95 is not None
    assert row.first_p95 > 8_000


# --- the search


async def test_a_turn_that_is_refused_is_an_error_of_its_level_and_the_others_go_on() -> None:
    engine = Admitted(ToneEngine(), Gate("tone", streams=1, waiting=0, wait_s=0.0))
    voice = cast(load_settings(engine={"voice": "tone"}), None)
    stage = in_process(engine, voice, None, os.getpid())
    takes = await gather(stage.open, Load(streams=8, seconds=1.5, tokens_per_s=300.0))
    assert {take.error for take in takes} == {None, "overloaded"}
    assert any(take.audio_s for take in takes)


def carrying(limit: Callable[[int], int]) -> tuple[Callable[[int, int], Any], list[tuple[int, int]]]:
    """A machine that carries `limit(attempt)` streams, and what it was tried with."""
    tried: list[tuple[int, int]] = []

    async def carries(streams: int, attempt: int) -> bool:
        tried.append((streams, attempt))
        return streams <= limit(attempt)

    return carries, tried


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 30, 63, 64, 100])
async def test_the_search_finds_what_is_carried(limit: int) -> None:
    carries, tried = carrying(lambda _: limit)
    assert await most_that(carries, 64, 2) == min(limit, 64)
    assert len(tried) <= 16


async def test_a_number_that_fails_a_confirmation_steps_down() -> None:
    carries, tried = carrying(lambda attempt: 30 if attempt == 0 else 28)
    assert await most_that(carries, 64, 2) == 28
    assert tried[-2:] == [(28, 1), (28, 2)]


# --- the other policy


def test_chunks_grow_and_share_their_ends() -> None:
    chunker = Chunker(CROSS_FADED)
    found = [chunk for _ in range(230) for chunk in chunker.push(1)]
    assert [*found, chunker.flush()] == [(0, 50), (45, 145), (140, 230)]


def test_cross_fades_of_one_wave_are_that_wave() -> None:
    wave = np.sin(np.arange(230 * 10) / 7)
    fader, chunker = CrossFader(5 * 10), Chunker(CROSS_FADED)
    chunks = [*chunker.push(230), chunker.flush()]
    parts = [
        fader.push(wave[start * 10 : stop * 10], is_last=(start, stop) == chunks[-1])
        for start, stop in chunks
    ]
    assert np.allclose(np.concatenate(parts), wave)


def test_a_policy_without_end_waits_for_the_end() -> None:
    chunker = Chunker(ChunkPolicy(first=10**9, growth=1.0, most=10**9, overlap=0))
    assert list(chunker.push(500)) == []
    assert chunker.flush() == (0, 500)


# --- the commands


@pytest.fixture
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARKVOICE_URL", "SPARKVOICE_VOICE", "SPARKVOICE_VOICES", "SPARKVOICE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_it_measures_every_level(quiet_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "bench",
        "concurrency",
        "--voice",
        "tone",
        "--streams",
        "1,3",
        "--seconds",
        "4",
        "--cancel",
        "0.5",
    ]
    assert main([*argv, "--text-rate", "0", "--json", "out.json", "--plot", "out.png"]) == 0
    told = json.loads((quiet_place / "out.json").read_text())
    assert [row["streams"] for row in told["rows"]] == [1, 3]
    assert (told["engine"], told["cancel"], told["rows"][0]["errors"]) == ("tone", 0.5, 0)
    many = told["rows"][1]
    assert many["turns"] >= 3
    assert 0 < many["first_p50"] <= many["first_p95"]
    assert many["audio_per_s"] > 0.5
    assert (quiet_place / "out.png").read_bytes()[:4] == b"\x89PNG"
    assert "first_p95" in capsys.readouterr().out


@pytest.mark.usefixtures("quiet_place")
def test_a_measured_capacity_is_kept_for_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "capacity", "--voice", "tone", "--most", "2", "--seconds", "2", "--confirm", "1"]
    # however busy this machine is, a buffer of 10 s never runs dry
    assert main([*argv, "--buffer-ms", "10000", "--text-rate", "0"]) == 0
    found = capacity.load("tone", load_settings().engine)
    assert found is not None
    assert found.streams == 2
    assert "next start" in capsys.readouterr().out


def test_a_soak_tells_what_memory_grew_by(quiet_place: Path) -> None:
    argv = ["bench", "concurrency", "--voice", "tone", "--soak", "40", "--cancel", "0.3", "--json", "s.json"]
    assert main(argv) in (0, 1)  # forty turns are too few to tell
    (row,) = json.loads((quiet_place / "s.json").read_text())["rows"]
    assert (row["turns"], row["end_mb"] > 10) == (40, True)
    assert 0 < row["cancelled"] < 40


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["concurrency", "--streams", "0"], "whole number"),
        (["concurrency", "--voice", "tuna"], 'did you mean "tone"'),
        (["concurrency", "--voice", "tone", "--baseline"], "Spark"),
        (["concurrency", "--voice", "tone", "--backend", "nothing"], "lm"),
        (["capacity", "--most", "0"], "whole number"),
    ],
)
@pytest.mark.usefixtures("quiet_place")
def test_a_mistake_is_one_line(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_process_that_is_not_there_has_spent_nothing() -> None:
    assert spent_by(2**22 + 1) is None
