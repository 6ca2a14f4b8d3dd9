"""What the gate calls speech, and that LiveKit gets the events it expects from a VAD."""

from __future__ import annotations

import asyncio
import wave
from pathlib import Path

import numpy as np
import pytest
from livekit import rtc
from livekit.agents import vad
from livekit.agents.metrics import VADMetrics

from agent.vad import FRAME_S, VAD, Edge, Heard, SpeechGate
from tts_plugin.audio import Pcm, bytes_of, samples_of, silence
from tts_plugin.resample import StreamResampler

RATE = 16000
FRAME = 320
DATA = Path(__file__).parent / "data"


def speech(rate: int = RATE) -> Pcm:
    """A man saying four words (1.6 s of speech in 2.8 s)."""
    with wave.open(str(DATA / "goforward.wav")) as file:
        pcm = samples_of(file.readframes(file.getnframes()))
    resampler = StreamResampler(RATE, rate)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


def noise(seconds: float, dbfs: float = -50.0, rate: int = RATE) -> Pcm:
    wave_ = np.random.default_rng(0).standard_normal(round(seconds * rate)) * 10 ** (dbfs / 20) * 32767
    return wave_.astype(np.int16)


def run(gate: SpeechGate, pcm: Pcm, frame: int = FRAME) -> list[Heard]:
    return [gate.push(pcm[at : at + frame]) for at in range(0, len(pcm) - frame + 1, frame)]


def edges(heard: list[Heard]) -> list[Edge]:
    return [step.edge for step in heard if step.edge]


@pytest.mark.parametrize("rate", [8000, 16000, 32000, 48000])
def test_speech_after_noise_starts_and_ends_once(rate: int) -> None:
    gate = SpeechGate(rate)
    pcm = np.concatenate([noise(1.5, rate=rate), speech(rate), noise(1.0, rate=rate)])
    heard = run(gate, pcm, rate // 50)
    assert edges(heard)[0] is Edge.START
    assert edges(heard)[-1] is Edge.END
    assert 1.0 < max(step.speech_s for step in heard) < 2.6


def test_the_first_second_of_a_call_starts_nothing() -> None:
    gate = SpeechGate(RATE)
    heard = run(gate, speech()[round(0.3 * RATE) :][:RATE])
    assert edges(heard) == []
    assert not any(step.voiced for step in heard)
    assert Edge.START in edges(run(gate, speech()[round(0.3 * RATE) :]))


def test_steady_noise_starts_nothing() -> None:
    assert edges(run(SpeechGate(RATE), noise(20.0))) == []


def test_a_start_carries_the_length_of_what_began_it() -> None:
    heard = run(SpeechGate(RATE), np.concatenate([noise(1.2), speech()]))
    start = next(step for step in heard if step.edge is Edge.START)
    assert 5 * FRAME_S <= start.speech_s <= 8 * FRAME_S + 1e-9
    assert start.speaking
    assert start.silence_s == 0


def test_an_end_comes_after_the_silence_asked_for_and_leaves_it_out_of_the_speech() -> None:
    for min_silence_s in (0.2, 0.4):
        gate = SpeechGate(RATE, min_silence_s=min_silence_s)
        heard = run(gate, np.concatenate([noise(1.2), speech(), silence(1.0, RATE)]))
        end = next(step for step in reversed(heard) if step.edge is Edge.END)
        before = heard[heard.index(end) - 1]
        assert end.silence_s == pytest.approx(min_silence_s)
        assert end.speech_s == pytest.approx(before.speech_s + FRAME_S - min_silence_s)
        assert not end.speaking
        assert heard[-1].speech_s == 0
        assert heard[-1].silence_s > min_silence_s


def test_reset_ends_the_speech_without_an_edge() -> None:
    gate = SpeechGate(RATE)
    heard = run(gate, np.concatenate([noise(1.2), speech()[: round(1.3 * RATE)]]))
    assert heard[-1].speaking
    gate.reset()
    after = gate.push(silence(FRAME_S, RATE))
    assert (after.edge, after.speaking, after.speech_s) == (None, False, 0)


class Never:
    """A guard that takes everything for echo."""

    def allows(self, frame: Pcm) -> bool:
        return len(frame) == 0


def test_a_guard_has_the_last_word() -> None:
    assert edges(run(SpeechGate(RATE, guard=Never()), np.concatenate([noise(1.2), speech()]))) == []


async def events_of(pcm: Pcm, rate: int, chunk: int, detector: VAD | None = None) -> list[vad.VADEvent]:
    stream = (detector or VAD()).stream()
    for at in range(0, len(pcm), chunk):
        part = pcm[at : at + chunk]
        stream.push_frame(rtc.AudioFrame(bytes_of(part), rate, 1, len(part)))
    stream.end_input()
    events = [event async for event in stream]
    await stream.aclose()
    return events


def of_kind(events: list[vad.VADEvent], kind: vad.VADEventType) -> list[vad.VADEvent]:
    return [event for event in events if event.type is kind]


@pytest.mark.parametrize(("rate", "chunk"), [(16000, 320), (48000, 480), (24000, 480), (8000, 333)])
async def test_livekit_gets_a_start_an_end_and_one_inference_a_frame(rate: int, chunk: int) -> None:
    pcm = np.concatenate([noise(1.2, rate=rate), speech(rate), noise(0.8, rate=rate)])
    events = await events_of(pcm, rate, chunk)
    assert events[0].type is vad.VADEventType.INFERENCE_DONE
    inferences = of_kind(events, vad.VADEventType.INFERENCE_DONE)
    assert len(inferences) == pytest.approx(len(pcm) / rate / FRAME_S, abs=4)
    assert len(of_kind(events, vad.VADEventType.START_OF_SPEECH)) >= 1
    assert len(of_kind(events, vad.VADEventType.END_OF_SPEECH)) >= 1
    assert [event.timestamp for event in inferences] == sorted(event.timestamp for event in inferences)


async def test_the_inference_of_the_starting_frame_already_counts_as_an_interruption() -> None:
    events = await events_of(np.concatenate([noise(1.2), speech()]), RATE, FRAME)
    at = next(i for i, event in enumerate(events) if event.type is vad.VADEventType.START_OF_SPEECH)
    following = events[at + 1]
    assert following.type is vad.VADEventType.INFERENCE_DONE
    assert following.timestamp == events[at].timestamp
    assert following.speech_duration >= 0.06
    assert following.speaking


async def test_durations_are_those_livekit_reasons_with() -> None:
    events = await events_of(np.concatenate([noise(1.2), speech(), silence(0.8, RATE)]), RATE, FRAME)
    for event in of_kind(events, vad.VADEventType.INFERENCE_DONE):
        assert (event.speech_duration > 0) == event.speaking
        assert event.raw_accumulated_speech == 0 or event.raw_accumulated_silence == 0
        assert event.silence_duration == 0 or not event.speaking
    end = of_kind(events, vad.VADEventType.END_OF_SPEECH)[-1]
    assert end.silence_duration == pytest.approx(0.28)
    assert end.speech_duration > 0.1


async def test_an_end_carries_the_speech_with_what_came_just_before() -> None:
    events = await events_of(np.concatenate([noise(1.2), speech(), silence(0.8, RATE)]), RATE, FRAME)
    end = of_kind(events, vad.VADEventType.END_OF_SPEECH)[0]
    (frame,) = end.frames
    assert frame.sample_rate == RATE
    assert frame.duration >= end.speech_duration + end.silence_duration
    assert frame.duration <= end.speech_duration + end.silence_duration + 0.5


async def test_stereo_is_mixed_down() -> None:
    mono = np.concatenate([noise(1.2), speech()])
    stereo = np.repeat(mono, 2)
    stream = VAD().stream()
    for at in range(0, len(stereo), 640):
        part = stereo[at : at + 640]
        stream.push_frame(rtc.AudioFrame(bytes_of(part), RATE, 2, len(part) // 2))
    stream.end_input()
    kinds = [event.type async for event in stream]
    await stream.aclose()
    assert vad.VADEventType.START_OF_SPEECH in kinds


async def test_metrics_come_once_a_second() -> None:
    detector = VAD()
    collected: list[VADMetrics] = []
    detector.on("metrics_collected", collected.append)
    await events_of(noise(3.0), RATE, FRAME, detector)
    assert len(collected) == 3
    assert collected[0].inference_count == 50
    assert collected[0].metadata is not None
    assert collected[0].metadata.model_provider == "webrtcvad"


async def test_closing_in_the_middle_is_quick_and_twice_is_fine() -> None:
    stream = VAD().stream()
    stream.push_frame(rtc.AudioFrame(bytes_of(noise(0.1)), RATE, 1, 1600))
    await asyncio.wait_for(stream.aclose(), 1)
    await asyncio.wait_for(stream.aclose(), 1)
