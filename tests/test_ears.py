"""The ears hear what is said, and nothing where nothing is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import soundfile
import soxr
from hibari import Hibari
from livekit import rtc
from livekit.agents import APIConnectionError, APIConnectOptions, stt
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from rapidfuzz.distance import Levenshtein

from agent.ears import STT, bundled_model
from agent.ghosts import heard_text
from agent.recogniser import Recognition, repeats
from agent.recogniser_process import RecogniserError, RecogniserProcess
from tests.leftovers import held_now
from tts_plugin.audio import Pcm, silence, to_int16
from tts_plugin.errors import ConfigError

pytestmark = [pytest.mark.ears, pytest.mark.asyncio(loop_scope="module")]

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]
RATE = 24_000  # Hz, of the embedded voice
LIBRIVOX = "unless to be rather cold hearted and rather selfish is to be ill disposed"
Kind = stt.SpeechEventType


@pytest.fixture(scope="module")
def say() -> Callable[[str], Pcm]:
    """Speech at RATE without the silence around it."""
    voice = Hibari()

    def spoken(text: str) -> Pcm:
        pcm = to_int16(np.asarray(voice(text), dtype=np.float32))
        loud = np.flatnonzero(np.abs(pcm) > 300)
        return pcm[loud[0] : loud[-1]]

    return spoken


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ears() -> AsyncIterator[STT]:
    async with STT() as opened:
        opened.prewarm()
        yield opened


def clip(name: str) -> tuple[Pcm, int]:
    pcm, rate = soundfile.read(DATA / name, dtype="int16")
    return np.asarray(pcm, dtype=np.int16), rate


def frames(pcm: Pcm, rate: int, channels: int = 1, ms: int = 20) -> Iterator[rtc.AudioFrame]:
    samples = rate * ms // 1000
    for at in range(0, len(pcm), samples):
        part = np.repeat(pcm[at : at + samples], channels)
        yield rtc.AudioFrame(part.tobytes(), rate, channels, len(part) // channels)


async def hear(
    ears: STT,
    pcm: Pcm,
    rate: int = RATE,
    *,
    speed: float | None = None,
    conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    channels: int = 1,
) -> list[stt.SpeechEvent]:
    """Everything a stream gives for `pcm`, sent at `speed` times real time (None = at once)."""
    async with ears.stream(conn_options=conn_options) as stream:

        async def talk() -> None:
            for frame in frames(pcm, rate, channels):
                stream.push_frame(frame)
                if speed is not None:
                    await asyncio.sleep(frame.duration / speed)
            stream.end_input()

        talking = asyncio.create_task(talk())
        try:
            async with asyncio.timeout(30):
                return [event async for event in stream]
        finally:
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talking


def texts(events: list[stt.SpeechEvent], kind: Kind = Kind.FINAL_TRANSCRIPT) -> list[str]:
    return [event.alternatives[0].text for event in events if event.type == kind]


def wrong_words(said: str, heard: str) -> float:
    """Word error rate of `heard`, punctuation and case aside."""
    plain = [
        "".join(c if c.isalnum() or c == "'" else " " for c in text.lower()).split() for text in (said, heard)
    ]
    return Levenshtein.distance(*plain) / len(plain[0])


@pytest.mark.parametrize(
    ("name", "words"),
    [("librivox_sense_0890.wav", LIBRIVOX), ("sphinx_something.wav", "go somewhere and do something")],
)
async def test_recorded_speech_is_heard(ears: STT, name: str, words: str) -> None:
    pcm, rate = clip(name)
    (final,) = texts(await hear(ears, np.concatenate((pcm, silence(1, rate))), rate))
    assert wrong_words(words, final) <= 0.15


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (16_000, 1), (24_000, 1), (48_000, 2)])
async def test_any_rate_and_stereo_are_heard(
    ears: STT, say: Callable[[str], Pcm], rate: int, channels: int
) -> None:
    pcm = np.concatenate((silence(0.3, RATE), say("How long does delivery take?"), silence(0.6, RATE)))
    sent = np.asarray(soxr.resample(pcm, RATE, rate), dtype=np.int16)
    (final,) = texts(await hear(ears, sent, rate, channels=channels))
    assert wrong_words("how long does delivery take", final) == 0


async def test_short_answers_are_heard(ears: STT, say: Callable[[str], Pcm]) -> None:
    words = ["Yes.", "No.", "Stop.", "Thank you.", "Hello?"]
    gap = silence(0.8, RATE)
    finals = texts(await hear(ears, np.concatenate([part for word in words for part in (say(word), gap)])))
    assert [wrong_words(word, heard) for word, heard in zip(words, finals, strict=True)] == [0] * len(words)


async def test_the_final_comes_even_if_the_input_ends_in_the_middle_of_speech(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    (final,) = texts(await hear(ears, say("I would like to send back a lamp.")))
    assert wrong_words("I would like to send back a lamp", final) <= 0.15


async def test_a_flush_gives_the_final_and_the_stream_goes_on(ears: STT, say: Callable[[str], Pcm]) -> None:
    async with ears.stream() as stream, asyncio.timeout(20):
        for text in ("What are your opening hours?", "Where is my order?"):
            for frame in frames(say(text), RATE):
                stream.push_frame(frame)
            stream.flush()
            async for event in stream:
                if event.type == Kind.FINAL_TRANSCRIPT:
                    assert wrong_words(text, event.alternatives[0].text) == 0
                    break


async def test_a_track_that_stops_sending_counts_as_silent(ears: STT, say: Callable[[str], Pcm]) -> None:
    async with ears.stream() as stream, asyncio.timeout(20):
        for frame in frames(say("What are your opening hours?"), RATE):
            stream.push_frame(frame)
        async for event in stream:
            if event.type == Kind.FINAL_TRANSCRIPT:
                assert wrong_words("what are your opening hours", event.alternatives[0].text) == 0
                break


async def test_interims_come_while_the_speaker_talks(ears: STT) -> None:
    pcm, rate = clip("librivox_sense_0890.wav")
    events = await hear(ears, np.concatenate((pcm, silence(0.6, rate))), rate, speed=4)
    kinds = [event.type for event in events]
    interims = texts(events, Kind.INTERIM_TRANSCRIPT)
    assert len(interims) >= 2
    assert interims[0].lower().startswith("unless")
    assert len(interims[0]) < len(interims[-1])
    assert kinds[0] == Kind.START_OF_SPEECH
    assert kinds.index(Kind.INTERIM_TRANSCRIPT) < kinds.index(Kind.FINAL_TRANSCRIPT) < len(kinds) - 1
    assert kinds[-2:] == [Kind.END_OF_SPEECH, Kind.RECOGNITION_USAGE]


async def test_a_pause_shorter_than_the_endpoint_makes_no_new_utterance(say: Callable[[str], Pcm]) -> None:
    halves = say("I bought a lamp last week"), say("and it arrived broken.")
    pcm = np.concatenate((halves[0], silence(0.3, RATE), halves[1], silence(1, RATE)))
    async with STT(endpoint_s=0.7) as patient:
        (final,) = texts(await hear(patient, pcm, speed=4))
    assert wrong_words("I bought a lamp last week and it arrived broken", final) <= 0.1


async def test_two_sentences_with_a_pause_are_two_finals_with_their_times(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    first, second = say("What are your opening hours?"), say("Can I pay by card?")
    pcm = np.concatenate((silence(1, RATE), first, silence(1.5, RATE), second, silence(1, RATE)))
    events = [e for e in await hear(ears, pcm) if e.type == Kind.FINAL_TRANSCRIPT]
    assert [
        wrong_words(*pair)
        for pair in zip(("what are your opening hours", "can I pay by card"), texts(events), strict=True)
    ] == [0, 0]
    expected_s = [1.0, 2.5 + len(first) / RATE]
    starts_s = [event.alternatives[0].start_time for event in events]
    assert starts_s == pytest.approx(expected_s, abs=0.4)


def keyboard() -> Pcm:
    noise = np.random.default_rng(3)
    pcm = silence(5, RATE)
    for at in range(2_000, len(pcm) - 2_000, RATE // 6):
        burst = noise.standard_normal(720) * np.exp(-np.arange(720) / 160) * 9_000
        pcm[at : at + 720] = burst.astype(np.int16)
    return pcm


def white(seconds: float, level: float) -> Pcm:
    return to_int16(np.random.default_rng(5).standard_normal(round(seconds * RATE)) * level)


def coughs() -> Pcm:
    noise = np.random.default_rng(7)
    pcm = silence(5, RATE)
    for at in range(RATE, len(pcm) - RATE, RATE):
        burst = noise.standard_normal(RATE // 3) * np.exp(-np.arange(RATE // 3) / (0.08 * RATE)) * 8_000
        pcm[at : at + RATE // 3] = burst.astype(np.int16)
    return pcm


def tone() -> Pcm:
    return to_int16(0.2 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE))


@pytest.mark.parametrize(
    "pcm",
    [silence(5, RATE), white(5, 0.003), white(4, 0.05), keyboard(), coughs(), tone()],
    ids=["silence", "hiss", "noise", "keyboard", "coughs", "beep"],
)
async def test_what_is_not_speech_gives_no_transcript(ears: STT, pcm: Pcm) -> None:
    events = await hear(ears, np.concatenate((silence(0.5, RATE), pcm, silence(1, RATE))), speed=20)
    assert texts(events) == []
    assert texts(events, Kind.INTERIM_TRANSCRIPT) == []
    assert Kind.START_OF_SPEECH not in [event.type for event in events]


async def test_speech_without_a_pause_comes_out_in_pieces_and_whole(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    sentences = [
        "The ferry to the island leaves every morning.",
        "You can buy a ticket at the old lighthouse.",
        "Please bring a warm coat and good shoes.",
        "The garden behind the house is full of apple trees.",
        "My sister works in a small bakery near the station.",
        "She gets up long before the sun does.",
        "Last winter the river froze for the first time in years.",
        "Children were skating under the stone bridge.",
        "In his garage a man repairs old radios.",
        "He can talk about them for hours.",
        "In the evening we cook soup and play cards.",
        "Nobody remembers who won the last game.",
        "The train to the coast is often late.",
        "But the view from the window is worth it.",
    ]
    joined = np.concatenate([part for text in sentences for part in (say(text), silence(0.08, RATE))])
    assert len(joined) / RATE > 30
    finals = texts(await hear(ears, np.concatenate((joined, silence(1, RATE)))))
    assert len(finals) >= 2
    assert wrong_words(" ".join(sentences), " ".join(finals)) <= 0.06


async def test_recognize_gives_the_text_of_a_whole_buffer(ears: STT, say: Callable[[str], Pcm]) -> None:
    pcm = np.concatenate((say("Where is my order?"), silence(1, RATE), say("It is late.")))
    event = await ears.recognize(list(frames(pcm, RATE)))
    assert wrong_words("where is my order it is late", event.alternatives[0].text) == 0
    nothing = await ears.recognize(list(frames(silence(1, RATE), RATE)))
    assert nothing.alternatives[0].text == ""


async def test_two_streams_do_not_mix(ears: STT, say: Callable[[str], Pcm]) -> None:
    said = ["What are your opening hours?", "How do I cancel my subscription?"]
    both = await asyncio.gather(*(hear(ears, say(text), speed=8) for text in said))
    assert [wrong_words(text, *texts(events)) for text, events in zip(said, both, strict=True)] == [0, 0]


async def test_the_event_loop_stays_free_while_speech_is_recognised(ears: STT) -> None:
    pcm, rate = clip("librivox_sense_0890.wav")
    lags_s: list[float] = []

    async def tick() -> None:
        while True:
            due_s = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            lags_s.append(time.perf_counter() - due_s)

    ticking = asyncio.create_task(tick())
    events = await hear(ears, np.concatenate((pcm, silence(0.6, rate))), rate, speed=3)
    ticking.cancel()
    assert len(texts(events, Kind.INTERIM_TRANSCRIPT)) + len(texts(events)) >= 4
    # each recognition takes longer than this, so one on the loop would show; other programs cause a few
    assert sum(lag > 0.05 for lag in lags_s) <= 2


async def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.002)


async def killed_while_busy(ears: STT) -> None:
    await until(lambda: ears.process.busy)
    assert ears.process.pid is not None
    os.kill(ears.process.pid, signal.SIGKILL)


async def test_a_killed_recogniser_is_one_error_and_the_utterance_is_still_heard(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    await ears.process.recognise(silence(0.5, 16_000))
    errors: list[stt.STTError] = []
    ears.on("error", errors.append)
    killer = asyncio.create_task(killed_while_busy(ears))
    try:
        events = await hear(ears, np.concatenate((say("Can I pay by card?"), silence(1, RATE))))
    finally:
        ears.off("error", errors.append)
    await killer
    assert [wrong_words("can I pay by card", text) for text in texts(events)] == [0]
    (error,) = errors
    assert isinstance(error.error, APIConnectionError)
    assert error.recoverable


async def test_without_retries_the_error_reaches_the_reader_and_the_next_stream_hears(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    await ears.process.recognise(silence(0.5, 16_000))
    pcm = np.concatenate((say("Can I pay by card?"), silence(1, RATE)))
    killer = asyncio.create_task(killed_while_busy(ears))
    with pytest.raises(APIConnectionError, match="ended while it worked"):
        await hear(ears, pcm, conn_options=APIConnectOptions(max_retry=0))
    await killer
    assert [wrong_words("can I pay by card", text) for text in texts(await hear(ears, pcm))] == [0]


async def test_a_recogniser_that_dies_idle_is_replaced_without_an_error(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    await ears.process.recognise(silence(0.5, 16_000))
    first = ears.process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
    await asyncio.sleep(0.05)  # the pipe's end reaches the loop
    assert texts(await hear(ears, say("Can I pay by card?"))) != []
    assert ears.process.pid != first


async def test_a_request_cancelled_half_way_does_not_shift_the_answers(
    ears: STT, say: Callable[[str], Pcm]
) -> None:
    def at_16k(text: str) -> Pcm:
        return np.asarray(soxr.resample(say(text), RATE, 16_000), dtype=np.int16)

    await ears.process.recognise(silence(0.5, 16_000))
    dropped = asyncio.create_task(ears.process.recognise(at_16k("How do I cancel my subscription?")))
    await asyncio.sleep(0.01)
    dropped.cancel()
    heard = await ears.process.recognise(at_16k("Where is my order?"))
    assert wrong_words("where is my order", heard.text) == 0
    assert dropped.cancelled()


async def test_closing_leaves_no_process_task_thread_or_descriptor(say: Callable[[str], Pcm]) -> None:
    before = held_now()
    opened = STT()
    await hear(opened, say("Hello there."))
    left_open = opened.stream()
    for frame in frames(say("Hello there."), RATE):
        left_open.push_frame(frame)
    await until(lambda: opened.process.busy)
    await opened.aclose()
    await opened.aclose()
    never_asked = STT()
    never_asked.prewarm()
    await never_asked.aclose()
    assert held_now().more_than(before) == {}


async def test_the_recogniser_ends_with_a_parent_that_is_killed() -> None:
    script = (
        "import time\nfrom agent.ears import STT\n"
        "ears = STT(); ears.prewarm(); print(ears.process.pid, flush=True); time.sleep(60)"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.communicate()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_a_model_with_other_weights_is_refused() -> None:
    process = RecogniserProcess(bundled_model(), language="en", threads=1, sha256="0" * 64)
    with pytest.raises(RecogniserError, match="not the expected model") as refused:
        await process.recognise(silence(0.5, 16_000))
    assert not refused.value.retryable
    await process.aclose()


async def test_a_folder_without_a_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.bin"):
        STT(tmp_path)


async def test_another_language_is_refused(ears: STT) -> None:
    with pytest.raises(ValueError, match='hear "en"'):
        ears.stream(language="de")


def recognition(text: str, no_speech: float = 0.05, logprob: float = -0.2) -> Recognition:
    return Recognition(text, no_speech, logprob, looped=repeats(text), took_s=0.1)


async def test_imagined_words_are_dropped_and_real_ones_kept() -> None:
    assert heard_text(recognition("Thank you.", 0.13), 0.5) == "Thank you."
    assert heard_text(recognition("Yes.", 0.37), 0.2) == "Yes."
    assert heard_text(recognition("You", 0.92), 1.0) == ""
    assert heard_text(recognition("Thank you."), 0.14) == ""
    assert heard_text(recognition("[BLANK_AUDIO]"), 1.0) == ""
    assert heard_text(recognition(" ..."), 1.0) == ""
    assert heard_text(recognition("Beep " * 30), 2.0) == ""
