"""Talking over the agent on a telephone line without echo cancellation, and the agent never hears itself."""

from __future__ import annotations

import asyncio
import wave
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from agent.config import AgentSettings
from agent.ears import bundled_model
from agent.echo_canceller import EchoCanceller
from agent.line_ear import LineEar, NoiseFloor
from agent.media_io import QueueInput
from agent.playout import Playout
from agent.recogniser import Whisper
from agent.session import build_line_vad
from agent.vad import Edge, SpeechGate
from tests.telephone import RATE, hybrid, over_mulaw
from tests.test_echo_guard import AGENT_TEXT, at_level
from tts_plugin.audio import Pcm, Wave, level_dbfs, samples_of, silence, to_float32, to_int16
from tts_plugin.resample import StreamResampler

BLOCK = RATE // 50
DATA = Path(__file__).parent / "data"
BARGE_INS = 5


def on_the_line(wave_: Wave, rate: int, dbfs: float) -> Wave:
    down = StreamResampler(rate, RATE)
    return at_level(to_float32(np.concatenate([down.push(to_int16(wave_)), down.flush()])), dbfs)


@cache
def agent_speech() -> Wave:
    """About 25 s of the embedded voice, -20 dBFS."""
    return on_the_line(np.asarray(Hibari()(AGENT_TEXT, seed=0), dtype=np.float32), 24000, -20)


@cache
def caller_speech() -> Wave:
    """A man saying "go forward ten meters", -20 dBFS, without the silence around it."""
    with wave.open(str(DATA / "goforward.wav")) as file:
        pcm = samples_of(file.readframes(file.getnframes()))
    loud = np.flatnonzero(np.abs(pcm) > 0.05 * np.abs(pcm).max())
    return on_the_line(to_float32(pcm[loud[0] : loud[-1]]), 16000, -20)


@dataclass
class Outcome:
    """What happened in a call; the blocks are what the agent heard, 20 ms each."""

    false_starts: int = 0
    agent_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    blocks: list[Pcm] = field(default_factory=list)


def call(
    loss_db: float,
    *,
    delay_s: float = 0.1,
    snr_db: float = 30.0,
    caller_dbfs: float = -20.0,
    barge_ins: int = BARGE_INS,
    seconds: float = 0.0,
    with_ear: bool = True,
    seed: int = 0,
) -> Outcome:
    """The agent speaks without end over mu-law; its echo and the line's noise come back, and the caller
    barges in every four seconds from the fourth on; the agent falls silent when it notices, until a
    second after the caller is done. snr_db: of a caller at -20 dBFS."""
    impulse = hybrid(loss_db, delay_s, seed=seed)
    rng = np.random.default_rng(seed)
    noise = 10 ** ((-20 - snr_db) / 20)
    speech, caller = agent_speech(), at_level(caller_speech(), caller_dbfs)
    playout = Playout(RATE)
    ear = LineEar(playout)
    gate = SpeechGate(RATE, guard=NoiseFloor())
    onsets = [round((4 + 4 * index + rng.uniform(0, 1)) * 50) for index in range(barge_ins)]
    length = len(caller) // BLOCK
    outcome, noticed = Outcome(), set[int]()
    sent: Wave = np.zeros(len(impulse) - 1, dtype=np.float32)
    at = 0
    for step in range(onsets[-1] + 200 if onsets else round(seconds * 50)):
        talking = next((onset for onset in onsets if 0 <= step - onset < length), None)
        if step >= max((onset + length + 50 for onset in noticed), default=0):
            playout.put(to_int16(np.take(speech, range(at, at + BLOCK), mode="wrap")))
            at += BLOCK
            outcome.agent_s += 0.02
        elif not playout.idle:
            playout.clear()
        sent = np.concatenate([sent, to_float32(playout.read(BLOCK))])[-(len(impulse) - 1 + BLOCK) :]
        mic = np.convolve(sent, impulse, mode="valid")[-BLOCK:] + rng.standard_normal(BLOCK) * noise
        if talking is not None:
            mic = mic + caller[(step - talking) * BLOCK : (step - talking + 1) * BLOCK]
        pcm = over_mulaw(to_int16(mic))
        outcome.blocks.append(ear.push(pcm) if with_ear else pcm)
        if gate.push(outcome.blocks[-1]).edge is not Edge.START:
            continue
        if talking is None:
            outcome.false_starts += 1
        elif talking not in noticed:
            noticed.add(talking)
            outcome.latencies_ms.append((step + 1 - talking) * 20.0)
    return outcome


@cache
def latency_without_echo_ms() -> float:
    return float(np.median(call(100.0, with_ear=False).latencies_ms))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("loss_db", "delay_s", "snr_db"),
    [
        (12, 0.04, 30),
        (12, 0.1, 20),
        (12, 0.2, 30),
        (12, 0.3, 20),
        (18, 0.1, 30),
        (24, 0.05, 20),
        (12, 0.1, 10),
    ],
)
def test_the_caller_is_heard_at_once_and_the_agent_never(
    loss_db: float, delay_s: float, snr_db: float, seed: int
) -> None:
    outcome = call(loss_db, delay_s=delay_s, snr_db=snr_db, seed=seed)
    assert outcome.false_starts == 0
    assert len(outcome.latencies_ms) == BARGE_INS
    assert np.median(outcome.latencies_ms) <= latency_without_echo_ms() + 60


def test_a_quiet_caller_is_heard_over_an_echo_as_loud() -> None:
    outcome = call(12, caller_dbfs=-28)
    assert outcome.false_starts == 0
    assert len(outcome.latencies_ms) >= BARGE_INS - 1


def test_without_the_ear_the_agent_interrupts_itself() -> None:
    assert call(12, barge_ins=0, seconds=20, with_ear=False).false_starts > 0


def test_a_line_on_which_the_agent_is_silent_is_passed_on_as_it_is() -> None:
    playout = Playout(RATE)
    ear = LineEar(playout)
    speech = to_int16(caller_speech())
    heard = []
    for at in range(0, len(speech) - BLOCK, BLOCK):
        playout.read(BLOCK)
        heard.append(ear.push(speech[at : at + BLOCK]))
    np.testing.assert_allclose(np.concatenate(heard), speech[: len(heard) * BLOCK], atol=1)


def test_the_echo_is_replaced_by_noise_as_loud_as_the_line_s() -> None:
    """The recogniser gets no word of it, and no digital silence either, which detectors would adapt to."""
    outcome = call(12, barge_ins=0, seconds=15)
    levels = [level_dbfs(block) for block in outcome.blocks[250:]]
    assert np.percentile(levels, 95) < -45
    assert np.median(levels) > -75


@pytest.mark.parametrize("frame", [80, 160, 240, 333])
def test_as_much_comes_out_as_goes_in_within_one_frame(frame: int) -> None:
    ear = LineEar(Playout(RATE))
    got = sum(len(ear.push(silence(frame / RATE, RATE))) for _ in range(50))
    assert 50 * frame - BLOCK < got <= 50 * frame


def test_a_canceller_takes_out_20_db_of_an_echo_and_nothing_of_a_caller() -> None:
    impulse = hybrid(12, 0.1)
    speech, caller = agent_speech(), caller_speech()
    echo = np.convolve(speech, impulse)[: len(speech)].astype(np.float32)
    canceller = EchoCanceller(BLOCK, 17)
    left = np.concatenate(
        [
            canceller.push(echo[at : at + BLOCK], speech[at : at + BLOCK])
            for at in range(0, len(speech) - BLOCK, BLOCK)
        ]
    )
    half = slice(len(left) // 2, len(left))
    taken_db = level_dbfs(to_int16(echo[: len(left)][half])) - level_dbfs(to_int16(left[half]))
    assert taken_db > 20
    quiet = np.zeros(BLOCK, dtype=np.float32)
    for at in range(0, len(caller) - BLOCK, BLOCK):
        canceller.push(quiet, quiet)
        if at > 20 * BLOCK:  # the echo of what was sent has passed
            mic = caller[at : at + BLOCK]
            np.testing.assert_array_equal(canceller.push(mic, quiet), mic)


def test_the_noise_floor_follows_the_line() -> None:
    floor = NoiseFloor()
    rng = np.random.default_rng(0)
    for dbfs in (-60.0, -35.0, -55.0):
        for _ in range(200):
            floor.allows(to_int16(rng.standard_normal(BLOCK) * 10 ** (dbfs / 20)))
        assert floor.dbfs == pytest.approx(dbfs, abs=1.5)
        assert not floor.allows(to_int16(rng.standard_normal(BLOCK) * 10 ** (dbfs / 20)))
        assert floor.allows(to_int16(rng.standard_normal(BLOCK) * 10 ** ((dbfs + 10) / 20)))


@pytest.mark.parametrize("echo_guard", [True, False])
async def test_the_settings_decide_whether_a_call_hears_through_an_ear(echo_guard: bool) -> None:
    playout, audio = Playout(RATE), QueueInput(RATE)
    build_line_vad(AgentSettings(echo_guard=echo_guard), audio, playout)
    playout.put(to_int16(agent_speech()[: 3 * RATE]))
    levels = []
    for _ in range(100):
        audio.push(playout.read(BLOCK))  # as bad as a line can be
        frame = await anext(aiter(audio))
        levels.append(level_dbfs(samples_of(bytes(frame.data.cast("b")))))
    assert (max(levels) < -45) == echo_guard


@pytest.mark.ears
async def test_the_agent_s_words_never_appear_in_the_caller_s_transcript() -> None:
    whisper = await asyncio.to_thread(Whisper, bundled_model(), language="en", threads=2)

    def recognised(pcm: Pcm) -> str:
        up = StreamResampler(RATE, 16000)
        return whisper.recognise(np.concatenate([up.push(pcm), up.flush()])).text.lower()

    said = recognised(np.concatenate(call(12, barge_ins=1).blocks))
    assert "forward" in said
    for word in ("ferry", "island", "ticket", "lighthouse", "kiosk", "steward", "harbour", "harbor"):
        assert word not in said
