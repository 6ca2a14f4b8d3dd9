"""One turn: text in, frames out, leaving the block is the cancel."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import numpy as np
import pytest

from tests.engines import RATE, ProbeEngine, turn
from tts_plugin.audio import AudioFrame
from tts_plugin.engine import Segment, Turn
from tts_plugin.errors import EngineUnavailable, SynthesisFailed, UnsupportedText
from tts_plugin.utterance import Utterance

TEXT = "Hello there, my friend. This is a second sentence. And here is a third one, to be sure."


async def heard(utterance: Utterance) -> list[AudioFrame]:
    return [frame async for frame in utterance]


def joined(frames: list[AudioFrame]) -> np.ndarray:
    return np.concatenate([frame.pcm for frame in frames])


async def test_frames_are_contiguous_and_at_the_rate_asked_for() -> None:
    async with Utterance(ProbeEngine(), turn(), rate=24000, lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        frames = await heard(utterance)
    assert [frame.start for frame in frames] == [0, *[frame.stop for frame in frames][:-1]]
    assert {frame.rate for frame in frames} == {24000}
    assert frames[-1].stop == round(utterance.timeline.audio_s * 24000)


@pytest.mark.parametrize("cut", [1, 3, 1000])
async def test_samples_do_not_depend_on_how_the_text_was_cut(cut: int) -> None:
    async with Utterance(ProbeEngine(), turn(), lead_s=None) as whole:
        whole.push(TEXT)
        whole.end()
        expected = joined(await heard(whole))
    async with Utterance(ProbeEngine(), turn(), lead_s=None) as utterance:
        for at in range(0, len(TEXT), cut):
            utterance.push(TEXT[at : at + cut])
            await asyncio.sleep(0)
        utterance.end()
        np.testing.assert_array_equal(joined(await heard(utterance)), expected)


async def test_the_first_sentence_is_spoken_while_the_second_is_being_written() -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn()) as utterance:
        utterance.push("Hello there, my good friend. And th")
        frame = await asyncio.wait_for(anext(utterance), 0.2)
        assert frame.segment == 0
        assert engine.active == 1


async def test_text_that_stalls_is_released_but_never_in_the_middle_of_a_word() -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn()) as utterance:
        utterance.push("Let me just have a look at unbeliev")
        await asyncio.wait_for(anext(utterance), 2.0)
        assert engine.texts == ["Let me just have a look at"]
        utterance.push("able things.")
        utterance.end()
        await heard(utterance)
    assert engine.texts[1] == "unbelievable things."


@pytest.mark.parametrize("after_frames", [0, 1, 5])
async def test_leaving_the_block_frees_the_engine(after_frames: int) -> None:
    engine = ProbeEngine(wait_s=0.001)
    async with Utterance(engine, turn()) as utterance:
        utterance.push(TEXT)
        await asyncio.sleep(0)
        for _ in range(after_frames):
            await anext(utterance)
        begun = time.monotonic()
    assert engine.active == 0
    assert time.monotonic() - begun < 0.05
    made = engine.frames
    await asyncio.sleep(0.02)
    assert engine.frames == made


@pytest.mark.parametrize("stuck_in", ["waiting for a frame", "the loop body"])
async def test_cancelling_the_reader_frees_the_engine(stuck_in: str) -> None:
    engine = ProbeEngine(wait_s=10.0 if stuck_in == "waiting for a frame" else 0.0)
    inside = asyncio.Event()

    async def read() -> None:
        async with Utterance(engine, turn()) as utterance:
            utterance.push(TEXT)
            inside.set()
            async for _ in utterance:
                await asyncio.sleep(10.0)

    reader = asyncio.create_task(read())
    await inside.wait()
    await asyncio.sleep(0.02)
    assert engine.active == 1
    reader.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(reader, 0.2)
    assert engine.active == 0


async def test_a_timeout_around_one_frame_does_not_end_the_utterance() -> None:
    async with Utterance(ProbeEngine(wait_s=0.05), turn()) as utterance:
        utterance.push("Hello there, my friend.")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(utterance), 0.01)
        assert (await asyncio.wait_for(anext(utterance), 1.0)).start == 0


async def test_an_engines_own_error_reaches_the_iterator_once() -> None:
    engine = ProbeEngine(fail_at=2, error=EngineUnavailable("no device"))
    async with Utterance(engine, turn(), lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        with pytest.raises(EngineUnavailable, match="no device"):
            await heard(utterance)
        assert await heard(utterance) == []
    assert engine.active == 0


async def test_any_other_exception_becomes_synthesis_failed() -> None:
    async with Utterance(ProbeEngine(fail_at=0), turn()) as utterance:
        utterance.push(TEXT)
        utterance.end()
        with pytest.raises(SynthesisFailed, match="RuntimeError: the engine broke"):
            await heard(utterance)


@pytest.mark.parametrize("text", ["", "   \n\t ", "\0", "...", "**", "🙂", "- "])
async def test_nothing_to_speak_is_no_audio_and_no_error(text: str) -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn()) as utterance:
        utterance.push(text)
        utterance.end()
        assert await heard(utterance) == []
    assert engine.texts == []
    assert utterance.foreign == ""


async def test_text_of_another_language_is_an_error_that_names_the_voices_own() -> None:
    async with Utterance(ProbeEngine(), turn()) as utterance:
        utterance.push("你好，世界。")
        utterance.end()
        with pytest.raises(UnsupportedText, match=r'voice "probe" speaks en-US.*你好'):
            await heard(utterance)


async def test_what_can_be_spoken_of_mixed_text_is_spoken() -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn(), lead_s=None) as utterance:
        utterance.push("你好 hello my friend.")
        utterance.end()
        await heard(utterance)
    assert engine.texts == ["hello my friend."]
    assert "你好" in utterance.foreign


async def test_400_words_without_punctuation_come_in_segments_of_at_most_25() -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn(), lead_s=None) as utterance:
        utterance.push("word " * 400)
        utterance.end()
        await heard(utterance)
    assert sum(len(text.split()) for text in engine.texts) == 400
    assert max(len(text.split()) for text in engine.texts) <= 25


async def test_a_streamed_turn_stays_within_its_lead() -> None:
    engine = ProbeEngine()
    begun = time.monotonic()
    async with Utterance(engine, turn(), lead_s=1.0) as utterance:
        utterance.push(TEXT)
        utterance.end()
        ahead_s = []
        async for frame in utterance:
            ahead_s.append(frame.stop / RATE - (time.monotonic() - begun))
            if frame.stop >= 2 * RATE:
                break
        made_s = engine.frames / 10
    assert max(ahead_s) <= 1.1  # the lead and one frame
    assert made_s <= 2.3


async def test_without_a_lead_it_goes_as_fast_as_the_engine() -> None:
    begun = time.monotonic()
    async with Utterance(ProbeEngine(), turn(), lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        await heard(utterance)
    assert utterance.timeline.audio_s > 8
    assert time.monotonic() - begun < 2


async def test_a_reader_that_stops_reading_stops_the_engine() -> None:
    engine = ProbeEngine()
    async with Utterance(engine, turn(), lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        await anext(utterance)
        await asyncio.sleep(0.05)
        assert engine.frames <= 8


async def test_spans_say_which_samples_speak_which_text_before_they_are_heard() -> None:
    async with Utterance(ProbeEngine(), turn(), lead_s=None, rate=8000) as utterance:
        utterance.push("**Hello** there, my friend. Good bye to you.")
        utterance.end()
        async for frame in utterance:
            assert utterance.text.spans[frame.segment].sample_from <= frame.start
    spans = utterance.text.spans
    assert [utterance.text.text[s.text_from : s.text_to].strip() for s in spans] == [
        "**Hello** there, my friend.",
        "Good bye to you.",
    ]
    assert spans[0].sample_from == 0
    assert spans[0].sample_to == spans[1].sample_from
    assert spans[1].sample_to == round(utterance.timeline.audio_s * 8000)


async def test_spoken_is_the_text_heard_so_far() -> None:
    async with Utterance(ProbeEngine(), turn(), lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        await heard(utterance)
    first = utterance.text.spans[0]
    assert first.sample_to is not None
    assert utterance.spoken(first.sample_to / RATE) == TEXT[: first.text_to].strip()
    assert utterance.spoken(0.05) == "Hello"
    assert utterance.spoken(1e9) == TEXT


async def test_the_timeline_reports_what_a_bench_needs() -> None:
    async with Utterance(ProbeEngine(), turn(), lead_s=None) as utterance:
        utterance.push(TEXT)
        utterance.end()
        await heard(utterance)
    report = utterance.timeline.report()
    assert 0 <= report["first_segment_ms"] <= report["first_frame_ms"] <= report["total_ms"]
    assert report["segments"] == len(utterance.text.spans)
    assert report["rtf"] > 0
    assert list(report["stages_ms"]) == ["engine", "resample"]


async def test_an_engines_stages_add_up_to_its_first_frame_and_later_ones_do_not_count() -> None:
    class Staged(ProbeEngine):
        async def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
            async with aclosing(super().speak(turn, segments)) as frames:
                async for frame in frames:
                    for stage in ("think", "draw", "think"):
                        hand.now_s += 0.5
                        turn.note(stage)
                    yield frame

    class Hand:
        now_s = 0.0

        def __call__(self) -> float:
            return self.now_s

    hand = Hand()
    async with Utterance(Staged(), turn(), rate=24000, lead_s=None, clock=hand) as utterance:
        utterance.push(TEXT)
        utterance.end()
        await heard(utterance)
    report = utterance.timeline.report()
    assert report["stages_ms"] == {"think": 500, "draw": 500, "engine": 500, "resample": 0}
    assert sum(report["stages_ms"].values()) == report["first_frame_ms"] - report["first_segment_ms"]


async def test_200_random_cancels_leave_nothing_behind() -> None:
    engine = ProbeEngine(wait_s=0.0005)
    before = asyncio.all_tasks()
    for round_ in range(200):
        async with Utterance(engine, turn()) as utterance:
            utterance.push(TEXT)
            for _ in range(round_ % 7):
                await anext(utterance)
    assert engine.active == 0
    assert asyncio.all_tasks() == before
