"""What LiveKit expects of an AudioOutput and an AudioInput, held by ours."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from livekit import rtc
from livekit.agents.voice import io

from agent.media_io import Control, PlayoutOutput, QueueInput
from agent.playout import Playout
from tts_plugin.audio import Pcm, bytes_of


def tone(seconds: float, rate: int = 24000, hz: float = 440.0) -> Pcm:
    wave = 8000 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)
    return wave.astype(np.int16)


def frames_of(pcm: Pcm, rate: int = 24000) -> list[rtc.AudioFrame]:
    size = rate // 50
    return [
        rtc.AudioFrame(bytes_of(pcm[at : at + size]), rate, 1, len(pcm[at : at + size]))
        for at in range(0, len(pcm), size)
    ]


class Sink:
    """A PlayoutOutput on a playout at `rate`, with everything it reports."""

    def __init__(self, rate: int = 24000, lead_s: float = 10.0) -> None:
        self.playout = Playout(rate)
        self.output = PlayoutOutput(self.playout, rate=24000, lead_s=lead_s)
        self.started: list[io.PlaybackStartedEvent] = []
        self.finished: list[tuple[float, bool]] = []
        self.controls: list[Control] = []
        self.output.on("playback_started", self.started.append)
        self.output.on(
            "playback_finished",
            lambda ev: self.finished.append((round(ev.playback_position, 2), ev.interrupted)),
        )
        self.output.on_control(self.controls.append)

    async def say(self, pcm: Pcm) -> None:
        for frame in frames_of(pcm):
            await self.output.capture_frame(frame)

    def play(self, seconds: float) -> Pcm:
        block = self.playout.rate // 50
        return np.concatenate([self.playout.read(block) for _ in range(round(seconds * 50))])


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
async def test_a_flushed_segment_is_heard_whole_and_finishes_once(rate: int) -> None:
    sink = Sink(rate)
    await sink.say(tone(0.5))
    sink.output.flush()
    heard = sink.play(0.6)
    assert sink.finished == [(0.5, False)]
    assert len(sink.started) == 1
    # the whole tone: energy until its very end, and none after
    assert np.abs(heard[round(0.49 * rate) : round(0.5 * rate)]).max() > 4000
    assert not heard[round(0.505 * rate) :].any()
    event = await asyncio.wait_for(sink.output.wait_for_playout(), 1)
    assert event.interrupted is False


async def test_equal_rates_pass_samples_through_unchanged() -> None:
    sink = Sink(24000)
    await sink.say(tone(0.2))
    sink.output.flush()
    assert np.array_equal(sink.play(0.2), tone(0.2))


async def test_playback_starts_with_the_first_sample_played_not_captured() -> None:
    sink = Sink()
    await sink.say(tone(0.1))
    assert sink.started == []
    sink.play(0.02)
    assert len(sink.started) == 1
    assert sink.controls == [Control.START]


async def test_clear_reports_what_was_heard_and_only_once() -> None:
    sink = Sink()
    await sink.say(tone(1.0))
    sink.play(0.3)
    sink.output.clear_buffer()
    sink.output.flush()
    sink.output.clear_buffer()
    await asyncio.sleep(0)
    assert sink.finished == [(0.3, True)]
    event = await asyncio.wait_for(sink.output.wait_for_playout(), 1)
    assert event.interrupted


async def test_flush_then_clear_finishes_once() -> None:
    sink = Sink()
    await sink.say(tone(1.0))
    sink.output.flush()
    sink.play(0.1)
    sink.output.clear_buffer()
    sink.output.clear_buffer()
    await asyncio.sleep(0)
    assert sink.finished == [(0.1, True)]


async def test_clear_and_flush_of_nothing_are_ignored() -> None:
    sink = Sink()
    sink.output.clear_buffer()
    sink.output.flush()
    sink.play(0.1)
    assert sink.finished == []
    assert sink.controls == []


async def test_a_late_frame_of_a_cleared_segment_is_never_heard() -> None:
    sink = Sink()
    await sink.say(tone(0.5))
    sink.play(0.1)
    sink.output.clear_buffer()
    await sink.say(tone(0.5, hz=2000))
    sink.output.flush()
    assert not sink.play(0.6)[480:].any()
    await asyncio.sleep(0)
    assert sink.finished == [(0.1, True)]
    await sink.say(tone(0.2))
    sink.output.flush()
    assert np.array_equal(sink.play(0.2), tone(0.2))
    assert len(sink.finished) == 2


async def test_nothing_of_the_old_segment_is_left_in_the_resampler() -> None:
    sink = Sink(8000)
    await sink.say(np.full(24000, 20000, dtype=np.int16))
    sink.play(0.1)
    sink.output.clear_buffer()
    sink.output.flush()
    await sink.say(np.zeros(4800, dtype=np.int16))
    sink.output.flush()
    heard = sink.play(0.3)
    assert np.abs(heard[40:]).max() <= 2  # after the 5 ms fade of the cut; the converter may dither


async def test_a_fast_engine_waits_for_the_listener() -> None:
    sink = Sink(lead_s=0.2)
    talking = asyncio.create_task(sink.say(tone(1.0)))
    await asyncio.sleep(0)
    assert sink.playout.buffered_s <= 0.24
    assert not talking.done()
    for _ in range(60):
        sink.play(0.02)
        await asyncio.sleep(0)
    await asyncio.wait_for(talking, 1)
    assert sink.playout.heard_s == pytest.approx(1.0)


async def test_an_interrupt_during_a_pause_does_not_deadlock_a_waiting_capture() -> None:
    sink = Sink(lead_s=0.2)
    talking = asyncio.create_task(sink.say(tone(2.0)))
    await asyncio.sleep(0)
    sink.play(0.1)
    sink.output.pause()
    sink.play(0.5)
    await asyncio.sleep(0)
    assert not talking.done()
    sink.output.clear_buffer()
    await asyncio.wait_for(talking, 1)
    sink.output.flush()
    assert len(sink.finished) == 1
    await asyncio.wait_for(sink.output.wait_for_playout(), 1)


async def test_cancelling_a_waiting_capture_then_clearing_finishes_once() -> None:
    sink = Sink(lead_s=0.2)
    talking = asyncio.create_task(sink.say(tone(2.0)))
    await asyncio.sleep(0)
    talking.cancel()
    await asyncio.wait([talking])
    sink.output.flush()
    sink.output.clear_buffer()
    await asyncio.sleep(0)
    assert len(sink.finished) == 1
    assert sink.finished[0][1] is True


async def test_the_first_frame_of_a_segment_never_waits() -> None:
    sink = Sink(lead_s=0.2)
    filling = asyncio.create_task(sink.say(tone(0.22)))
    await asyncio.wait_for(filling, 1)
    sink.output.flush()
    await asyncio.wait_for(sink.output.capture_frame(frames_of(tone(0.02))[0]), 1)


async def test_pause_and_resume_are_passed_on_once_each() -> None:
    sink = Sink()
    assert sink.output.can_pause
    await sink.say(tone(0.5))
    sink.output.resume()  # not paused: the session does this before every segment
    sink.output.pause()
    sink.output.pause()
    sink.output.resume()
    assert sink.controls == [Control.PAUSE, Control.RESUME]


async def test_a_position_is_waited_for_until_it_is_handed_out_and_a_pause_holds_it() -> None:
    sink = Sink()
    reached = asyncio.create_task(sink.output.heard(0, 0.3))
    await asyncio.sleep(0)  # waits before the first frame
    await sink.say(tone(0.5))
    sink.play(0.2)
    sink.output.pause()
    sink.play(0.5)
    await asyncio.sleep(0)
    sink.output.resume()
    sink.play(0.08)
    await asyncio.sleep(0)
    assert not reached.done()
    sink.play(0.04)
    assert await asyncio.wait_for(reached, 1)


async def test_a_position_that_never_comes_is_waited_for_until_the_segment_is_over() -> None:
    sink = Sink()
    await sink.say(tone(0.2))
    sink.output.flush()
    beyond = asyncio.create_task(sink.output.heard(0, 9.0))
    sink.play(0.2)
    assert await asyncio.wait_for(beyond, 1)
    assert await sink.output.heard(0, 9.0)  # also asked later


async def test_of_a_segment_that_is_cut_the_rest_is_not_heard() -> None:
    sink = Sink()
    await sink.say(tone(0.5))
    sink.play(0.2)
    assert await sink.output.heard(0, 0.1)
    beyond = asyncio.create_task(sink.output.heard(0, 0.3))
    await asyncio.sleep(0)
    sink.output.clear_buffer()
    sink.output.flush()
    assert not await asyncio.wait_for(beyond, 1)
    later = asyncio.create_task(sink.output.heard(1, 0.1))
    await sink.say(tone(0.2))
    await asyncio.sleep(0)
    assert not later.done()
    sink.play(0.2)
    assert await asyncio.wait_for(later, 1)


async def test_the_input_gives_frames_in_order_and_ends_when_closed() -> None:
    source = QueueInput(16000)
    source.push(np.full(320, 1, dtype=np.int16))
    source.push(np.full(320, 2, dtype=np.int16))
    source.close()
    source.push(np.full(320, 3, dtype=np.int16))
    frames = [frame async for frame in source]
    assert [frame.data[0] for frame in frames] == [1, 2]
    assert {frame.sample_rate for frame in frames} == {16000}


async def test_a_full_input_drops_the_oldest() -> None:
    source = QueueInput(16000, frames=3)
    for value in range(1, 6):
        source.push(np.full(320, value, dtype=np.int16))
    source.close()
    assert [frame.data[0] async for frame in source] == [3, 4, 5]
    assert source.dropped == 2


async def test_closing_wakes_a_reader_that_waits() -> None:
    source = QueueInput(16000)
    reader = asyncio.create_task(anext(source, None))
    await asyncio.sleep(0)
    source.close()
    assert await asyncio.wait_for(reader, 1) is None
