"""What a telephone is given to play: band-limited, never too loud, and nothing of what was cleared."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from livekit import rtc

from agent.ears import bundled_model
from agent.limiter import TELEPHONE_DBFS, Limiter
from agent.media_io import PlayoutOutput
from agent.playout import FADE_S, Playout
from agent.recogniser import Whisper
from tests.telephone import over_mulaw
from tests.test_speech import SENTENCES, VOICE, errors, words
from tts_plugin.audio import FULL_SCALE, Pcm, bytes_of, to_int16
from tts_plugin.engine import Turn, open_engine
from tts_plugin.g711 import encode
from tts_plugin.resample import StreamResampler
from tts_plugin.utterance import Utterance

CEILING = FULL_SCALE * 10 ** (TELEPHONE_DBFS / 20)
RATE = 8000


def sine(seconds: float, rate: int, level: float, hz: float = 300.0) -> Pcm:
    return to_int16(level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate))


async def through(pcm: Pcm, rate: int = 24000, *, step: int = 480) -> Pcm:
    """As a telephone's transport hands it out."""
    playout = Playout(RATE)
    output = PlayoutOutput(playout, rate=rate, lead_s=1000, ceiling_dbfs=TELEPHONE_DBFS)
    for at in range(0, len(pcm), step):
        part = pcm[at : at + step]
        await output.capture_frame(rtc.AudioFrame(bytes_of(part), rate, 1, len(part)))
    output.flush()
    return playout.read(round(playout.buffered_s * RATE))


@pytest.mark.parametrize("rate", [16000, 24000])
@pytest.mark.parametrize("level", [0.5, 0.8, 1.0])
async def test_no_sample_is_over_the_ceiling(rate: int, level: float) -> None:
    rng = np.random.default_rng(0)
    for pcm in (sine(0.5, rate, level), to_int16(np.clip(rng.standard_normal(rate) * level, -1, 1))):
        assert np.abs((await through(pcm, rate)).astype(int)).max() <= CEILING


async def test_speech_under_the_ceiling_is_not_touched() -> None:
    quiet = sine(0.5, RATE, 0.6)
    np.testing.assert_array_equal(Limiter(RATE).push(quiet), quiet)


def test_the_pieces_do_not_matter() -> None:
    loud = np.concatenate([sine(0.2, RATE, 1.0), sine(0.4, RATE, 0.4), sine(0.2, RATE, 0.9)])
    whole = Limiter(RATE).push(loud)
    pieces = Limiter(RATE)
    np.testing.assert_allclose(
        np.concatenate([pieces.push(loud[at : at + 37]) for at in range(0, len(loud), 37)]), whole, atol=1
    )


def test_after_a_loud_passage_the_gain_is_back_within_a_syllable() -> None:
    limiter = Limiter(RATE)
    limiter.push(sine(0.2, RATE, 1.0))
    limiter.push(np.zeros(round(0.06 * RATE), np.int16))
    quiet = sine(0.1, RATE, 0.5)
    np.testing.assert_array_equal(limiter.push(quiet), quiet)


def test_a_loud_tone_stays_a_tone() -> None:
    """Clipping it at the ceiling would leave harmonics 20 dB under it."""
    out = Limiter(RATE).push(sine(1.0, RATE, 1.0, hz=400))[1600:].astype(float)
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out)))) ** 2
    hz = np.fft.rfftfreq(len(out), 1 / RATE)
    fundamental = spectrum[(hz > 380) & (hz < 420)].sum()
    assert 10 * np.log10(fundamental / spectrum[hz > 700].sum()) > 40


async def test_after_a_clear_not_one_old_sample_is_sent() -> None:
    """The resampler, the limiter and the coder begin anew: the wire has what a fresh call would have."""
    new = sine(0.3, 24000, 0.3, hz=900)
    fresh = encode(await through(new), "mulaw")
    playout = Playout(RATE)
    output = PlayoutOutput(playout, rate=24000, ceiling_dbfs=TELEPHONE_DBFS)
    loud = sine(0.61, 24000, 0.99)
    for at in range(0, len(loud), 500):
        part = loud[at : at + 500]
        await output.capture_frame(rtc.AudioFrame(bytes_of(part), 24000, 1, len(part)))
    for _ in range(10):
        playout.read(160)
    output.clear_buffer()
    output.flush()
    wire = encode(playout.read(160), "mulaw") + encode(playout.read(160), "mulaw")
    assert set(wire[round(FADE_S * RATE) :]) == {0xFF}
    for at in range(0, len(new), 480):
        part = new[at : at + 480]
        await output.capture_frame(rtc.AudioFrame(bytes_of(part), 24000, 1, len(part)))
    output.flush()
    after = encode(playout.read(round(playout.buffered_s * RATE)), "mulaw")
    assert after == fresh


@pytest.mark.ears
async def test_the_embedded_voice_is_understood_over_8_khz_mulaw_with_at_most_5_percent_word_errors() -> None:
    whisper = await asyncio.to_thread(Whisper, bundled_model(), language="en", threads=2)
    wrong = total = 0
    async with open_engine("hibari") as engine:
        for sentence in SENTENCES:
            async with Utterance(engine, Turn(VOICE, seed=1), rate=24000, lead_s=None) as utterance:
                utterance.push(sentence)
                utterance.end()
                pcm = np.concatenate([frame.pcm async for frame in utterance])
            ear = StreamResampler(RATE, 16000)
            heard = over_mulaw(await through(pcm))
            text = whisper.recognise(np.concatenate([ear.push(heard), ear.flush()])).text
            wrong += errors(words(sentence), words(text))
            total += len(words(sentence))
    assert wrong / total <= 0.05, f"{wrong} of {total} words"
    print(f"{wrong} word errors in {total} words")
