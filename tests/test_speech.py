"""The embedded voice as a listener hears it: words, joints, and the same samples by every way out."""

import asyncio
import re
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from agent.ears import bundled_model
from agent.recogniser import Whisper
from tests.seams import alarms, joint_excess
from tts_plugin.audio import Pcm, level_dbfs, samples_of
from tts_plugin.cli import main
from tts_plugin.engine import Engine, Turn, open_engine
from tts_plugin.remote import Remote, Request
from tts_plugin.resample import StreamResampler
from tts_plugin.server.local import LocalServer
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice

VOICE = Voice(id="hibari", engine="hibari", language="en-US", licence="Apache-2.0")
SENTENCES = [
    "The library opens its doors at nine every morning.",
    "Please bring a warm coat, because the evenings are cold.",
    "Your order left our warehouse yesterday afternoon.",
    "She walked along the river and watched the boats go by.",
    "We can move your appointment to next Thursday.",
    "The kitchen smelled of fresh bread and strong coffee.",
    "If you have any questions, just ask me.",
    "My brother plays the guitar in a small band.",
    "The train to the coast leaves from platform seven.",
    "They painted the old house a bright shade of yellow.",
    "I will send you a message as soon as I know more.",
    "Nobody expected the weather to change so quickly.",
    "The museum has a beautiful garden behind the main building.",
    "Could you tell me your name and your address, please?",
    "Most of our customers are happy with the new service.",
    "The children found a small turtle near the lake.",
    "Turn left at the second traffic light and keep going.",
    "He read the letter twice before he answered it.",
    "A good night's sleep is worth more than any medicine.",
    "Thank you for your patience, we will be right with you.",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with open_engine("hibari") as engine:
        yield engine


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def spoken(engine: Engine, text: str, rate: int = 24000, seed: int = 1) -> tuple[Pcm, list[int]]:
    """The samples of a text, and where its frames and segments meet."""
    async with Utterance(engine, Turn(VOICE, seed=seed), rate=rate, lead_s=None) as utterance:
        utterance.push(text)
        utterance.end()
        frames = [frame async for frame in utterance]
    return np.concatenate([frame.pcm for frame in frames]), [frame.start for frame in frames[1:]]


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", text.lower().replace("7", "seven").replace("9", "nine")).split()


def errors(expected: list[str], heard: list[str]) -> int:
    """Word errors: the edit distance."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(expected, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


@pytest.mark.ears
async def test_a_recogniser_understands_20_sentences_with_at_most_5_percent_word_errors(
    engine: Engine,
) -> None:
    whisper = await asyncio.to_thread(Whisper, bundled_model(), language="en", threads=2)
    wrong = total = 0
    for sentence in SENTENCES:
        pcm, _ = await spoken(engine, sentence)
        ear = StreamResampler(24000, 16000)
        heard = whisper.recognise(np.concatenate([ear.push(pcm), ear.flush()])).text
        wrong += errors(words(sentence), words(heard))
        total += len(words(sentence))
    assert wrong / total <= 0.05


@pytest.mark.parametrize("rate", [24000, 16000, 8000])
async def test_nobody_hears_where_segments_and_frames_meet(engine: Engine, rate: int) -> None:
    pcm, joints = await spoken(engine, " ".join(SENTENCES[:8]), rate)
    assert rate == 8000 or alarms(pcm, rate) == []
    assert joint_excess(pcm, joints, rate) < 0.1


async def test_the_seam_detector_hears_a_click_a_hole_and_a_bad_joint(engine: Engine) -> None:
    pcm, joints = await spoken(engine, " ".join(SENTENCES[:4]))
    clicked, holed, jumped = pcm.copy(), pcm.copy(), pcm.copy()
    loud = [at for at in joints if level_dbfs(pcm[at - 200 : at + 200]) > -30]
    for at in loud:
        clicked[at] = np.clip(int(clicked[at]) + 9000, -32768, 32767)
        holed[at : at + 480] = 0
        jumped[at:] = -jumped[at:]
    assert sum(alarm.kind == "click" for alarm in alarms(clicked, 24000)) >= len(loud) // 2
    assert sum(alarm.kind == "hole" for alarm in alarms(holed, 24000)) >= len(loud) // 3
    assert joint_excess(jumped, joints, 24000) > 0.1


async def test_it_is_raised_to_a_usable_level_without_clipping(engine: Engine) -> None:
    pcm, _ = await spoken(engine, " ".join(SENTENCES[:6]))
    assert -23 < level_dbfs(pcm) < -17
    assert np.abs(pcm.astype(int)).max() <= round(32767 * 10 ** (-1.5 / 20))


async def test_sound_begins_within_60_ms_of_the_first_sample(engine: Engine) -> None:
    for sentence in SENTENCES[:10]:
        pcm, _ = await spoken(engine, sentence)
        levels = [level_dbfs(pcm[at : at + 240]) for at in range(0, 24000, 240)]
        assert next(index for index, level in enumerate(levels) if level > -45) * 10 <= 60


async def test_say_the_stream_and_a_whole_push_give_the_same_samples_for_a_seed(
    engine: Engine, tmp_path: Path
) -> None:
    text = " ".join(SENTENCES[:4])
    in_process, _ = await spoken(engine, text, seed=7)

    out = tmp_path / "said.wav"
    assert await asyncio.to_thread(main, ["say", text, "--out", str(out), "--seed", "7"]) == 0
    with wave.open(str(out)) as file:
        said = samples_of(file.readframes(file.getnframes()))

    server = LocalServer()
    remote = Remote(server.address)
    request = Request(rate=24000, voice="hibari", seed=7, lead_s=None)
    async with remote.utterance(request) as utterance:
        for at in range(0, len(text), 5):
            utterance.push(text[at : at + 5])
        utterance.end()
        streamed = np.concatenate([frame.pcm async for frame in utterance])
    await remote.aclose()
    server.close()

    np.testing.assert_array_equal(said, in_process)
    np.testing.assert_array_equal(streamed, in_process)


async def test_another_seed_gives_other_samples_of_the_same_words(engine: Engine) -> None:
    one, _ = await spoken(engine, SENTENCES[0], seed=1)
    two, _ = await spoken(engine, SENTENCES[0], seed=2)
    assert len(one) == len(two)
    assert (one != two).any()
