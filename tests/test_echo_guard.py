"""Barge-in next to an agent's own echo, on real speech through a synthetic room."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from agent.echo_guard import EchoGuard
from agent.playout import Playout
from agent.vad import Edge, SpeechGate
from tts_plugin.audio import Wave, level_dbfs, samples_of, to_float32, to_int16
from tts_plugin.resample import StreamResampler

RATE = 16000
BLOCK = RATE // 50
DATA = Path(__file__).parent / "data"
AGENT_TEXT = (
    "Thank you for calling the harbour office. The ferry to the island leaves at nine every morning, "
    "and it takes about two hours to cross the bay. You can buy a ticket at the kiosk by the old "
    "lighthouse, or from the steward on board. Please bring a warm coat, because it gets windy on deck. "
    "On Sundays there is a second boat in the afternoon, which stops at the fishing village as well. "
    "Children under six travel for free, and dogs are welcome as long as they stay on a leash. "
)
BARGE_INS = 15


@cache
def agent_speech() -> Wave:
    """About 70 s of the embedded voice at 16 kHz, -20 dBFS."""
    wave_24k = np.concatenate([Hibari()(AGENT_TEXT, seed=seed) for seed in range(3)])
    resampler = StreamResampler(24000, RATE)
    pcm = resampler.push(to_int16(wave_24k))
    return at_level(to_float32(np.concatenate([pcm, resampler.flush()])), -20)


@cache
def caller_speech() -> Wave:
    """A man saying "go forward ten meters", 16 kHz, -20 dBFS, without the silence around it."""
    with wave.open(str(DATA / "goforward.wav")) as file:
        assert file.getframerate() == RATE
        pcm = samples_of(file.readframes(file.getnframes()))
    loud = np.flatnonzero(np.abs(pcm) > 0.05 * np.abs(pcm).max())
    return at_level(to_float32(pcm[loud[0] : loud[-1]]), -20)


def at_level(wave_: Wave, dbfs: float) -> Wave:
    return (wave_ * 10 ** ((dbfs - level_dbfs(to_int16(wave_))) / 20)).astype(np.float32)


def room(seed: int, delay_s: float = 0.06, tail_s: float = 0.12) -> Wave:
    """An impulse response: a direct path after `delay_s`, then a decaying tail."""
    tail = np.random.default_rng(seed).standard_normal(round(tail_s * RATE))
    tail *= np.exp(-np.arange(len(tail)) / (0.03 * RATE)) * 0.3
    tail[0] = 1.0
    return np.concatenate([np.zeros(round(delay_s * RATE)), tail]).astype(np.float32)


@dataclass(frozen=True)
class Steady:
    """An agent that speaks at one level without a pause."""

    sent_dbfs: float
    sounding: bool = True


@dataclass(frozen=True)
class Outcome:
    false_starts: int
    hits: int
    latencies_ms: list[float]


def call(echo_dbfs: float, *, guarded: bool, barge_ins: int = BARGE_INS, seed: int = 0) -> Outcome:
    """The agent speaks without end, its echo and a quiet room reach the microphone, and the caller
    barges in every four seconds from the third on; the agent falls silent when it notices."""
    speech = agent_speech()
    impulse = room(seed)
    gain = 10 ** ((echo_dbfs - -20) / 20) / np.sqrt(np.sum(impulse**2))
    rng = np.random.default_rng(seed)
    playout = Playout(RATE)
    guard = EchoGuard(playout) if guarded else None
    gate = SpeechGate(RATE, guard=guard)
    caller = caller_speech()
    false_starts = hits = 0
    latencies: list[float] = []
    sent = np.zeros(len(impulse) - 1, dtype=np.float32)
    agent_at = 0
    onsets = [round((3 + 4 * index + rng.uniform(0, 1)) * 50) for index in range(barge_ins)]
    total = onsets[-1] + 200 if onsets else 60 * 50
    noticed: set[int] = set()
    for step in range(total):
        talking = next((onset for onset in onsets if 0 <= step - onset < len(caller) // BLOCK), None)
        # a noticed caller silences the agent until a second after the caller is done
        quiet_until = max((onset + len(caller) // BLOCK + 50 for onset in noticed), default=0)
        if step >= quiet_until:
            playout.put(to_int16(np.take(speech, range(agent_at, agent_at + BLOCK), mode="wrap")))
            agent_at += BLOCK
        elif not playout.idle:
            playout.clear()
        sent = np.concatenate([sent, to_float32(playout.read(BLOCK))])[-(len(impulse) - 1 + BLOCK) :]
        mic = np.convolve(sent, impulse, mode="valid")[-BLOCK:] * gain
        mic = mic + rng.standard_normal(BLOCK) * 10 ** (-65 / 20)
        if talking is not None:
            at = (step - talking) * BLOCK
            mic = mic + caller[at : at + BLOCK]
        heard = gate.push(to_int16(mic))
        if heard.edge is not Edge.START:
            continue
        if talking is None:
            false_starts += 1
        elif talking not in noticed:
            noticed.add(talking)
            hits += 1
            latencies.append((step + 1 - talking) * 20.0)
    return Outcome(false_starts, hits, latencies)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("echo_dbfs", [-60, -50, -40, -30])
def test_the_guard_hears_the_caller_and_never_the_agent(echo_dbfs: float, seed: int) -> None:
    outcome = call(echo_dbfs, guarded=True, seed=seed)
    assert outcome.false_starts == 0
    assert outcome.hits >= 0.9 * BARGE_INS
    no_echo_at_all = call(-100, guarded=False, barge_ins=3)
    assert np.median(outcome.latencies_ms) <= np.median(no_echo_at_all.latencies_ms) + 60


def test_without_the_guard_the_agent_interrupts_itself() -> None:
    assert call(-40, guarded=False, barge_ins=0).false_starts > 0


def test_a_caller_is_heard_while_the_agent_is_silent() -> None:
    guard = EchoGuard(Steady(-120.0))
    assert guard.allows(to_int16(np.full(BLOCK, 0.001)))
    assert guard.return_loss_db is None


def test_the_return_loss_is_learnt_from_what_comes_back() -> None:
    guard = EchoGuard(Steady(-20.0))
    echo = to_int16(0.01 * np.sqrt(2) * np.sin(np.arange(BLOCK)))
    for _ in range(100):
        assert not guard.allows(echo)
    assert guard.return_loss_db == pytest.approx(20, abs=0.5)


def test_a_louder_loudspeaker_is_followed_within_seconds() -> None:
    guard = EchoGuard(Steady(-20.0))
    quiet = to_int16(0.003 * np.sin(np.arange(BLOCK)))
    loud = to_int16(0.03 * np.sin(np.arange(BLOCK)))
    for _ in range(200):
        guard.allows(quiet)
    allowed = [guard.allows(loud) for _ in range(200)]
    assert allowed[0]
    assert not any(allowed[125:])
