"""The whole engine on a tiny model: it says what the language model said, and leaves nothing running."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import torch

from tts_plugin.audio import AudioFrame, Pcm, to_int16
from tts_plugin.config import LatencySettings, SparkSettings, WindowSettings, cache_folder
from tts_plugin.engine import ENGINES, Segment, Turn
from tts_plugin.engines.spark.bicodec import BiCodec, load_bicodec
from tts_plugin.engines.spark.checkpoint import Checkpoint
from tts_plugin.engines.spark.duration import duration_of
from tts_plugin.engines.spark.engine import SparkEngine, codec_runtime
from tts_plugin.engines.spark.lm.hf import HfLM
from tts_plugin.engines.spark.lm.protocol import SemanticLM
from tts_plugin.engines.spark.lm.scripted import Script, ScriptedLM
from tts_plugin.engines.spark.vocoder import Vocoder
from tts_plugin.errors import ConfigError, EngineUnavailable, SynthesisFailed
from tts_plugin.limits import Latency
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice, VoiceRegistry

HOP = 320  # samples a code
PATIENCE_S = 20.0
TEXTS = (
    "Good morning, how are you today?",
    "Let me look that up for you.",
    "It only takes a moment, please hold.",
)
GLOBALS = tuple(range(100, 132))
INLINE = f"id: ava\nengine: spark\nlanguage: en\nlicence: CC0-1.0\nglobal_tokens: {list(GLOBALS)}\n"
# with this the windows look as far ahead as the tiny codec hears, so the stream is the offline decode
EXACT = LatencySettings(quality=WindowSettings(first=8, ahead=40), settled=40)

Open = Callable[..., SparkEngine]


@pytest.fixture(scope="module")
def checkpoint(tiny_model: Path) -> Checkpoint:
    """One whose random weights are taken for speech, so that they are watched. Its codec is converted by
    now: on a busy machine that takes longer than a test's patience lasts."""
    runtime = codec_runtime(SparkSettings())
    load_bicodec(tiny_model, dtype="float32", device="cpu", runtime=runtime, cache=cache_folder())
    return dataclasses.replace(Checkpoint.open(tiny_model), is_noise=False)


@pytest.fixture(scope="module")
def codec(tiny_model: Path) -> BiCodec:
    return load_bicodec(tiny_model, dtype="float32", device="cpu")


@pytest.fixture
def ava(tmp_path: Path) -> Voice:
    return voice(tmp_path, INLINE)


@pytest.fixture
async def opened(checkpoint: Checkpoint) -> AsyncIterator[Open]:
    engines: list[SparkEngine] = []

    def make(lm: SemanticLM, *, noise: bool = False, continuity_tokens: int = 50) -> SparkEngine:
        settings = SparkSettings(latency=EXACT, continuity_tokens=continuity_tokens)
        engines.append(SparkEngine(dataclasses.replace(checkpoint, is_noise=noise), settings, lm))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.aclose()


def voice(folder: Path, text: str) -> Voice:
    (folder / "ava.yaml").write_text(text)
    registry = VoiceRegistry([folder], ENGINES)
    assert registry.problems == ()
    return registry.get("ava")


def turn(voice: Voice, *, seed: int | None = 1, latency: Latency = "quality") -> Turn:
    return Turn(voice, seed=seed, latency=latency)


def codes(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(code) for code in np.random.default_rng(seed).integers(0, 8192, count))


def likely(text: str) -> int:
    """So many codes are the likely length of a text."""
    return round(duration_of(text).likely_s * 50)


def said(texts: Sequence[str] = TEXTS) -> list[Script]:
    """A script a text, of likely length."""
    return [Script(codes(likely(text), seed)) for seed, text in enumerate(texts)]


async def segments(texts: Sequence[str]) -> AsyncGenerator[Segment]:
    at = 0
    for index, text in enumerate(texts):
        await asyncio.sleep(0)
        yield Segment(index, text, at, at + len(text))
        at += len(text) + 1


async def spoken(engine: SparkEngine, turn: Turn, texts: Sequence[str] = TEXTS) -> list[AudioFrame]:
    async with asyncio.timeout(PATIENCE_S), aclosing(engine.speak(turn, segments(texts))) as frames:
        return [frame async for frame in frames]


async def failed(
    engine: SparkEngine, turn: Turn, texts: Sequence[str] = TEXTS[:1]
) -> tuple[list[AudioFrame], str]:
    """The frames before the turn failed, and the error's words; it is told once."""
    heard: list[AudioFrame] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(engine.speak(turn, segments(texts))) as frames:
        with pytest.raises(SynthesisFailed) as error:
            async for frame in frames:
                heard.append(frame)
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
    return heard, str(error.value)


def joined(frames: Sequence[AudioFrame]) -> Pcm:
    return np.concatenate([frame.pcm for frame in frames])


def offline(codec: BiCodec, said: Sequence[int]) -> Pcm:
    return to_int16(codec.decode(torch.tensor([said]), torch.tensor([GLOBALS]))[0].numpy())


async def test_frames_are_contiguous_at_the_codecs_rate_and_the_last_of_a_segment_says_so(
    opened: Open, ava: Voice
) -> None:
    engine = opened(ScriptedLM(said()))
    frames = await spoken(engine, turn(ava))
    assert engine.rate == 16_000
    assert {frame.rate for frame in frames} == {16_000}
    assert [frame.start for frame in frames] == [0, *[frame.stop for frame in frames][:-1]]
    for index in range(len(TEXTS)):
        ends = [frame.ends_segment for frame in frames if frame.segment == index]
        assert ends == [False] * (len(ends) - 1) + [True]


async def test_the_stream_is_the_offline_decode_of_what_the_model_said(
    opened: Open, ava: Voice, codec: BiCodec
) -> None:
    frames = await spoken(opened(ScriptedLM(said())), turn(ava))
    for index, script in enumerate(said()):
        streamed = joined([frame for frame in frames if frame.segment == index])
        np.testing.assert_allclose(streamed, offline(codec, script.codes), atol=1)
        assert np.abs(streamed).max() > 300, "it is heard"


@pytest.mark.parametrize("latency", ["low", "balanced", "quality"])
async def test_a_segment_lasts_as_long_as_its_codes(opened: Open, ava: Voice, latency: Latency) -> None:
    counts = (1, 2, 7, 8, 9, 15, 16, 17, 47, 48, 49, 64, 65, 150, 300)
    # all at once, and as they are drawn, so that the windows are cut by the clock
    scripts = [Script(codes(count), delay_s=delay_s) for count in counts for delay_s in (0.0, 0.0005)]
    engine = opened(ScriptedLM(scripts))
    for script in scripts:
        count = len(script.codes)
        text = "a" if count == 1 else "la " * (1 + count // 8)
        frames = await spoken(engine, turn(ava, latency=latency), [text])
        assert len(joined(frames)) == count * HOP
        assert [frame.ends_segment for frame in frames] == [False] * (len(frames) - 1) + [True]


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.3, 2.0])
async def test_a_segment_at_another_speed_is_as_much_shorter_and_its_last_frame_says_so(
    opened: Open, ava: Voice, speed: float
) -> None:
    counts = (2, 9, 49, 150)
    texts = ["la " * (1 + count // 8) for count in counts]
    engine = opened(ScriptedLM([Script(codes(count)) for count in counts]))
    frames = await spoken(engine, dataclasses.replace(turn(ava), speed=speed), texts)
    assert [frame.start for frame in frames] == [0, *[frame.stop for frame in frames][:-1]]
    assert all(len(frame.pcm) for frame in frames)
    for index, count in enumerate(counts):
        own = [frame for frame in frames if frame.segment == index]
        assert len(joined(own)) == round(count * HOP / speed)
        assert [frame.ends_segment for frame in own] == [False] * (len(own) - 1) + [True]


async def test_a_voice_brings_its_own_speed(opened: Open, tmp_path: Path) -> None:
    ben = voice(tmp_path, INLINE + "speed: 1.25\n")
    frames = await spoken(opened(ScriptedLM(said())), turn(ben), TEXTS[:1])
    assert len(joined(frames)) == round(likely(TEXTS[0]) * HOP / 1.25)


@pytest.mark.parametrize(("latency", "enough"), [("low", 10), ("balanced", 14), ("quality", 48)])
async def test_the_first_frame_waits_for_the_codes_of_its_window_and_no_more(
    opened: Open, ava: Voice, latency: Latency, enough: int
) -> None:
    engine = opened(ScriptedLM([Script(codes(enough), then="hang"), Script(codes(enough - 1), then="hang")]))
    for comes in (True, False):
        async with aclosing(engine.speak(turn(ava, latency=latency), segments(TEXTS[:1]))) as frames:
            first = asyncio.ensure_future(anext(frames))
            done, _ = await asyncio.wait([first], timeout=PATIENCE_S if comes else 0.2)
            assert bool(done) is comes
            first.cancel()
            await asyncio.wait([first])


async def test_all_segments_have_the_same_globals_and_go_on_from_the_last_codes(
    opened: Open, ava: Voice, checkpoint: Checkpoint
) -> None:
    lm = ScriptedLM(said())
    await spoken(opened(lm), turn(ava))
    ids = checkpoint.vocabulary
    before: tuple[int, ...] = ()
    for request, script, text in zip(lm.requests, said(), TEXTS, strict=True):
        prompt = list(request.prompt)
        speaker = prompt[prompt.index(ids.start_global) + 1 : prompt.index(ids.end_global)]
        assert tuple(token - ids.global_first for token in speaker) == GLOBALS
        content = prompt[prompt.index(ids.start_content) + 1 : prompt.index(ids.end_content)]
        spelt = checkpoint.encode(text)
        assert content[len(content) - len(spelt) :] == spelt
        if before:
            shown = prompt[prompt.index(ids.start_semantic) + 1 :]
            assert tuple(token - ids.semantic_first for token in shown) == before
            assert len(content) > len(spelt), "with the words that they say"
        else:
            assert ids.start_semantic not in prompt
        before = script.codes[-50:]


async def test_without_continuity_every_segment_begins_afresh(
    opened: Open, ava: Voice, checkpoint: Checkpoint
) -> None:
    lm = ScriptedLM(said())
    await spoken(opened(lm, continuity_tokens=0), turn(ava))
    assert all(checkpoint.vocabulary.start_semantic not in request.prompt for request in lm.requests)


async def test_a_transcribed_voice_goes_on_from_its_clip(
    opened: Open, tmp_path: Path, checkpoint: Checkpoint
) -> None:
    lm = ScriptedLM(said())
    ids = checkpoint.vocabulary
    ben = voice(tmp_path, INLINE + "transcript: I have 2.\nsemantic_tokens: [1, 2, 3]\n")
    await spoken(opened(lm), turn(ben), TEXTS[:1])
    prompt = list(lm.requests[0].prompt)
    assert prompt[-4:] == [ids.start_semantic, *(ids.semantic_first + code for code in (1, 2, 3))]
    content = prompt[prompt.index(ids.start_content) + 1 : prompt.index(ids.end_content)]
    assert content == checkpoint.encode(f"I have two. {TEXTS[0]}")


async def test_sampling_and_seed_reach_the_model(opened: Open, tmp_path: Path) -> None:
    lm = ScriptedLM(said())
    engine = opened(lm)
    ben = voice(tmp_path, INLINE + "sampling: {top_k: 7}\n")
    for _ in range(2):
        await spoken(engine, turn(ben))
    await spoken(engine, turn(ben, seed=2))
    assert {request.sampling.top_k for request in lm.requests} == {7}
    seeds = [request.seed for request in lm.requests]
    assert seeds[:3] == seeds[3:6], "the same turn"
    assert len(set(seeds)) == 6, "another one for every segment and every turn"


async def test_the_stages_of_the_first_frame_are_told_in_order(opened: Open, ava: Voice) -> None:
    lm = ScriptedLM([Script(codes(300), prefill_s=0.03, delay_s=0.002)])
    engine = opened(lm, noise=True)
    await engine.warm_up()
    async with Utterance(engine, turn(ava, latency="balanced"), rate=24_000) as utterance:
        utterance.push(TEXTS[0])
        utterance.end()
        await anext(utterance)
    report = utterance.timeline.report()
    stages = report["stages_ms"]
    assert list(stages) == ["queue", "prefill", "tokens", "vocoder", "engine", "resample"]
    assert all(ms >= 0 for ms in stages.values())
    assert stages["prefill"] >= 30
    assert stages["tokens"] >= 15 * 2
    waited_ms = report["first_frame_ms"] - report["first_segment_ms"]
    assert sum(stages.values()) == pytest.approx(waited_ms, abs=0.1)


async def test_what_is_drawn_is_spoken_and_is_caught_by_the_watchdog_is_counted(
    opened: Open, ava: Voice
) -> None:
    good = said()[0]
    counts: list[dict[str, int]] = []
    for scripts in ([good], [Script(()), good], [Script(codes(20), then="again"), good]):
        async with Utterance(opened(ScriptedLM(scripts)), turn(ava), lead_s=None) as utterance:
            utterance.push(TEXTS[0])
            utterance.end()
            assert [frame async for frame in utterance]
        counts.append(utterance.timeline.report()["counts"])
    drawn = len(good.codes)
    assert counts[0] == {"tokens": drawn, "tokens_spoken": drawn}
    assert counts[1] == {"tokens": drawn, "tokens_spoken": drawn, "watchdog_ended_at_once": 1}
    assert counts[2]["watchdog_loop"] == 1
    assert counts[2]["tokens"] > counts[2]["tokens_spoken"] == drawn


async def test_a_turns_first_window_is_asked_for_as_such_and_later_ones_by_when_its_listener_runs_dry(
    opened: Open, ava: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    real = Vocoder.decode

    async def noted(
        vocoder: Vocoder,
        semantic: Sequence[int],
        d_vector: torch.Tensor,
        emit_from: int,
        emit_to: int,
        *,
        due_s: float | None = None,
    ) -> Pcm:
        asked.append(due_s)
        return await real(vocoder, semantic, d_vector, emit_from, emit_to, due_s=due_s)

    monkeypatch.setattr(Vocoder, "decode", noted)
    began_s = time.monotonic()
    frames = await spoken(opened(ScriptedLM(said())), turn(ava))
    first, *later = asked
    assert first is None
    due_s = [when for when in later if when is not None]
    assert len(due_s) == len(later) == len(frames) - 1 >= 2, "a turn's second segment is no first window"
    assert due_s == sorted(due_s)
    assert due_s[0] > began_s


# the language model for real


@pytest.fixture
async def hf(checkpoint: Checkpoint) -> AsyncIterator[HfLM]:
    lm = HfLM.open(checkpoint.path, checkpoint.vocabulary)
    yield lm
    await lm.aclose()


async def test_the_same_seed_gives_the_same_samples_and_another_does_not(
    opened: Open, ava: Voice, hf: HfLM
) -> None:
    engine = opened(hf, noise=True)
    once, again = [joined(await spoken(engine, turn(ava), TEXTS[:2])) for _ in range(2)]
    np.testing.assert_allclose(once, again, atol=1)
    other = joined(await spoken(engine, turn(ava, seed=2), TEXTS[:2]))
    assert np.abs(other.astype(int) - once).max() > 100


async def test_turns_at_once_do_not_mix(opened: Open, ava: Voice, hf: HfLM) -> None:
    engine = opened(hf, noise=True)
    alone = [joined(await spoken(engine, turn(ava, seed=seed), [TEXTS[seed]])) for seed in range(3)]
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(spoken(engine, turn(ava, seed=seed), [TEXTS[seed]])) for seed in range(3)
        ]
    for task, expected in zip(running, alone, strict=True):
        np.testing.assert_allclose(joined(task.result()), expected, atol=1)


async def test_eight_voices_at_once_are_heard_each_in_its_own(
    opened: Open, tmp_path: Path, codec: BiCodec
) -> None:
    """All say the same codes, so that only the voice tells them apart."""
    script = Script(codes(likely(TEXTS[0])), delay_s=0.0005)
    engine = opened(ScriptedLM([script]))
    await engine.warm_up()
    draw = np.random.default_rng(3)
    globals_ = [draw.integers(0, 4096, 32).tolist() for _ in range(8)]
    voices = [voice(tmp_path, INLINE.replace(str(list(GLOBALS)), str(tokens))) for tokens in globals_]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(spoken(engine, turn(each), TEXTS[:1])) for each in voices]
    said_by = [joined(task.result()) for task in running]
    for tokens, heard in zip(globals_, said_by, strict=True):
        whole = codec.decode(torch.tensor([script.codes]), torch.tensor([tokens]))[0]
        np.testing.assert_allclose(heard, to_int16(whole.numpy()), atol=1)
    assert all(np.abs(said_by[0].astype(int) - other).max() > 100 for other in said_by[1:])


async def test_noise_lasts_as_long_as_speech_of_the_text_would(opened: Open, ava: Voice, hf: HfLM) -> None:
    frames = await spoken(opened(hf, noise=True), turn(ava))
    for index, text in enumerate(TEXTS):
        assert len(joined([frame for frame in frames if frame.segment == index])) == likely(text) * HOP


@pytest.mark.parametrize("frames_first", [0, 1, 3])
@pytest.mark.parametrize("backend", ["scripted", "hf"])
async def test_closing_early_stops_the_model_within_one_step(
    opened: Open, ava: Voice, hf: HfLM, backend: str, frames_first: int
) -> None:
    lm: SemanticLM = hf if backend == "hf" else ScriptedLM([Script(codes(5000), delay_s=0.001)])
    engine = opened(lm, noise=True)
    await engine.warm_up()
    idle = lm.steps
    frames = engine.speak(turn(ava), segments([" ".join(TEXTS)] * 5))
    for _ in range(frames_first):
        await anext(frames)
    reading = asyncio.ensure_future(anext(frames))
    async with asyncio.timeout(PATIENCE_S):
        while lm.steps < idle + 3:
            await asyncio.sleep(0)
    begun = lm.steps
    reading.cancel()
    await asyncio.wait([reading])
    await frames.aclose()
    closed = lm.steps
    assert closed <= begun + 1
    await asyncio.sleep(0.05)
    assert lm.steps == closed, "no orphan"
    if isinstance(lm, ScriptedLM):
        assert lm.live == 0
    assert await spoken(engine, turn(ava), TEXTS[:1]), "and it goes on"


async def test_closing_while_nobody_reads_stops_the_model_too(opened: Open, ava: Voice) -> None:
    """The frame's consumer is busy elsewhere: the model has run ahead, and it is not left alone."""
    lm = ScriptedLM([Script(codes(5000), delay_s=0.001)])
    frames = opened(lm, noise=True).speak(turn(ava), segments([" ".join(TEXTS)] * 5))
    await anext(frames)
    await frames.aclose()
    assert lm.live == 0
    closed = lm.steps
    await asyncio.sleep(0.02)
    assert lm.steps == closed


async def test_the_model_runs_no_more_than_2_s_ahead_of_a_slow_reader(opened: Open, ava: Voice) -> None:
    lm = ScriptedLM([Script(codes(5000))])
    engine = opened(lm, noise=True)
    async with aclosing(engine.speak(turn(ava), segments([" ".join(TEXTS) * 3]))) as frames:
        first = await anext(frames)
        await asyncio.sleep(0.05)
        assert len(first.pcm) == 8 * HOP
        assert lm.steps <= 100 + 100  # what the window was cut from, and what waits behind it


async def test_a_reader_who_stalled_has_waited_only_since_it_reads_again(
    opened: Open, ava: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its next window would go ahead of those whose listeners have run dry meanwhile."""
    dues, decode = list[float | None](), Vocoder.decode

    async def noted(
        vocoder: Vocoder,
        semantic: Sequence[int],
        d_vector: torch.Tensor,
        emit_from: int,
        emit_to: int,
        *,
        due_s: float | None = None,
    ) -> Pcm:
        dues.append(due_s)
        return await decode(vocoder, semantic, d_vector, emit_from, emit_to, due_s=due_s)

    monkeypatch.setattr(Vocoder, "decode", noted)
    engine = opened(ScriptedLM([Script(codes(5000))]), noise=True)
    async with aclosing(engine.speak(turn(ava), segments([" ".join(TEXTS) * 3]))) as frames:
        first = await anext(frames)
        handed_out_s = time.monotonic()
        assert dues == [None]
        while time.monotonic() < handed_out_s + first.seconds:
            await asyncio.sleep(0.01)  # its listener would have heard it all
        reads_again_s = time.monotonic()
        await anext(frames)
    assert dues[1] is not None
    assert dues[1] >= reads_again_s


async def test_closing_before_anything_and_twice_is_fine(opened: Open, ava: Voice) -> None:
    lm = ScriptedLM(said())
    frames = opened(lm).speak(turn(ava), segments(TEXTS))
    await frames.aclose()
    await frames.aclose()
    assert lm.requests == []


# models that go wrong


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(()), "it ended without a sound"),
        (Script(codes(2)), "it ended long before the text could be said"),
        (Script((7,), then="again"), "it fell silent"),
        (Script((7, 9, 11, 13), then="again"), "it fell silent"),
        (Script(codes(20), then="again"), "it repeated itself"),
    ],
)
async def test_what_goes_wrong_before_the_first_sound_is_tried_again_and_is_an_error_without_a_frame(
    opened: Open, ava: Voice, script: Script, words: str
) -> None:
    lm = ScriptedLM([script])
    heard, told = await failed(opened(lm), turn(ava))
    assert heard == []
    assert words in told
    assert len(lm.requests) == 4, "twice whole, its first half twice"
    assert len({request.seed for request in lm.requests}) == 4
    assert lm.live == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(codes(5000)), "it went on long after the text was said"),
        (Script((*codes(80), *[7] * 200)), "it fell silent"),
        (Script(codes(80), then="again"), "it repeated itself|it went on long after"),
    ],
)
async def test_what_goes_wrong_after_the_first_sound_is_an_honest_error(
    opened: Open, ava: Voice, script: Script, words: str
) -> None:
    lm = ScriptedLM([script])
    heard, told = await failed(opened(lm), turn(ava))
    assert heard
    assert not heard[-1].ends_segment
    assert any(word in told for word in words.split("|")), told
    assert "after it began" in told
    assert (len(lm.requests), lm.live) == (1, 0)


async def test_a_second_try_that_goes_well_is_what_is_heard(opened: Open, ava: Voice, codec: BiCodec) -> None:
    good = said()[0]
    frames = await spoken(opened(ScriptedLM([Script(()), good])), turn(ava), TEXTS[:1])
    np.testing.assert_allclose(joined(frames), offline(codec, good.codes), atol=1)


async def test_an_error_of_the_model_reaches_the_reader_once_after_what_came_before(
    opened: Open, ava: Voice, codec: BiCodec
) -> None:
    lm = ScriptedLM([Script(codes(90), then="fail", delay_s=0.001), *said()])
    engine = opened(lm)
    heard, told = await failed(engine, turn(ava))
    assert told == "the scripted model failed, as its script says"
    begun = joined(heard)
    np.testing.assert_allclose(begun, offline(codec, codes(90))[: len(begun)], atol=1)
    assert lm.live == 0
    assert await spoken(engine, turn(ava)), "and the engine goes on"


async def test_an_error_in_one_turn_is_not_the_others(opened: Open, ava: Voice, codec: BiCodec) -> None:
    good = Script(codes(likely(TEXTS[0])), delay_s=0.001)
    engine = opened(ScriptedLM([Script(codes(60), then="fail", delay_s=0.001), good]))
    bad, frames = await asyncio.gather(failed(engine, turn(ava)), spoken(engine, turn(ava), TEXTS[:1]))
    assert bad[0]
    np.testing.assert_allclose(joined(frames), offline(codec, good.codes), atol=1)


async def test_a_model_that_hangs_can_be_left(opened: Open, ava: Voice) -> None:
    lm = ScriptedLM([Script(codes(30), then="hang")])
    async with aclosing(opened(lm).speak(turn(ava), segments(TEXTS))) as frames:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(frames)
    assert lm.live == 0


# texts that go wrong


async def test_20000_characters_are_all_said_in_segments_of_which_none_is_blank_or_cut(
    opened: Open, ava: Voice, checkpoint: Checkpoint
) -> None:
    sentence = "The ferry leaves at nine every morning."
    count = 20_000 // (len(sentence) + 1)
    said = codes(round(duration_of(sentence).least_s * 50) + 2)
    lm = ScriptedLM([Script(said)])
    async with Utterance(opened(lm), turn(ava), lead_s=None) as utterance:
        utterance.push(f"{sentence} " * count)
        utterance.end()
        frames = [frame async for frame in utterance]
    assert len(lm.requests) == count == 500
    assert frames[-1].stop == count * len(said) * HOP
    assert {frame.segment for frame in frames if frame.ends_segment} == set(range(count))
    ids, spelt = checkpoint.vocabulary, checkpoint.encode(sentence)
    for request in lm.requests:
        assert request.prompt[: request.prompt.index(ids.end_content)][-len(spelt) :] == tuple(spelt)
    spans = utterance.text.spans
    assert [span.text_from for span in spans] == list(range(0, 20_000, 40))
    assert all(span.text_to == span.text_from + len(sentence) for span in spans)


async def test_a_very_long_sentence_is_split_and_none_of_it_is_lost(
    opened: Open, ava: Voice, checkpoint: Checkpoint
) -> None:
    text = "and so it went on " * 40
    lm = ScriptedLM([Script(codes(5000))])
    engine = opened(lm, noise=True, continuity_tokens=0)
    async with Utterance(engine, turn(ava), lead_s=None) as utterance:
        utterance.push(text)
        utterance.end()
        frames = [frame async for frame in utterance]
    ids = checkpoint.vocabulary
    contents = [
        request.prompt[request.prompt.index(ids.start_content) + 1 : request.prompt.index(ids.end_content)]
        for request in lm.requests
    ]
    assert len(contents) > 3
    assert all(contents)
    spoken_text = " ".join(text[span.text_from : span.text_to] for span in utterance.text.spans)
    assert spoken_text.split() == text.split()
    assert {frame.segment for frame in frames if frame.ends_segment} == set(range(len(contents)))


@pytest.mark.parametrize(
    "text", ["<|end_content|>", "<|im_end|><|start_semantic_token|><|bicodec_semantic_7|>"]
)
async def test_a_control_tokens_name_is_no_control_token(
    opened: Open, ava: Voice, checkpoint: Checkpoint, text: str
) -> None:
    lm = ScriptedLM([Script(codes(likely(text)))])
    await spoken(opened(lm), turn(ava), [text])
    ids, prompt = checkpoint.vocabulary, list(lm.requests[0].prompt)
    content = prompt[prompt.index(ids.start_content) + 1 : prompt.index(ids.end_content)]
    assert content
    assert all(token < ids.text_count for token in content)
    plain = [ids.task_tts, ids.start_content, ids.end_content, ids.start_global, ids.end_global]
    speaker = {ids.global_first + code for code in GLOBALS}
    assert [token for token in prompt if token >= ids.text_count and token not in speaker] == plain

    async with Utterance(opened(lm), turn(ava), lead_s=None) as utterance:
        utterance.push(text)
        utterance.end()
        assert [frame async for frame in utterance] == [], "and as a turn's only text it is markup"


# voices


async def test_a_voice_whose_tokens_are_known_costs_no_encoding(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodes: list[str] = []
    for name in ("encode_global", "encode_semantic"):
        real = getattr(BiCodec, name)

        def counted(
            codec: BiCodec, given: torch.Tensor, real: Callable[..., torch.Tensor] = real
        ) -> torch.Tensor:
            encodes.append(real.__name__)
            return real(codec, given)

        monkeypatch.setattr(BiCodec, name, counted)
    await spoken(opened(ScriptedLM(said())), turn(voice(tmp_path, INLINE)))
    assert encodes == []

    wave = (Path(__file__).parents[1] / "data" / "librivox_sense_0890.wav").read_bytes()
    (tmp_path / "ava.wav").write_bytes(wave)
    cloned = voice(tmp_path, INLINE[: INLINE.index("global_tokens")] + "clip: ava.wav\n")
    for _ in range(2):  # by an engine that enrols it, and by one that finds its tokens
        await spoken(opened(ScriptedLM(said())), turn(cloned))
    assert encodes == ["encode_global"]


async def test_a_voice_of_another_engine_is_refused_before_the_model_is_asked(opened: Open) -> None:
    lm = ScriptedLM(said())
    with pytest.raises(ConfigError, match='voice "test"'):
        await spoken(opened(lm), turn(Voice("test", "tone", "en", "none")))
    assert lm.requests == []


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_closed_engine_says_so(opened: Open, ava: Voice, loaded: bool) -> None:
    engine = opened(ScriptedLM(said()))
    if loaded:
        await engine.warm_up()
    await engine.aclose()
    await engine.aclose()
    with pytest.raises(EngineUnavailable):
        await spoken(engine, turn(ava))


async def test_turns_that_run_when_the_engine_is_closed_are_told_so(opened: Open, ava: Voice) -> None:
    engine = opened(ScriptedLM([Script(codes(5000))]), noise=True)
    async with asyncio.timeout(PATIENCE_S), aclosing(engine.speak(turn(ava), segments(TEXTS * 20))) as frames:
        await anext(frames)
        reading = asyncio.ensure_future(anext(frames))  # waits for the vocoder
        await asyncio.sleep(0)
        await engine.aclose()
        with pytest.raises(EngineUnavailable):
            await reading
