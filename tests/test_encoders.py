"""Every format leaves as it is made, and sounds like the samples that went in."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
import pytest
import soundfile

from tts_plugin.audio import Pcm, level_dbfs, samples_of, to_int16
from tts_plugin.server.encoders import FORMATS, MEDIA_TYPES, Format, encoder

RATE = 24_000
PIECE = 1_920  # samples, 80 ms
# seconds that a decoder may add: an MP3 begins with the encoder's own delay and ends with a whole frame
PADDING_S: dict[Format, float] = {"mp3": 0.13, "opus": 0.001, "flac": 0.0, "wav": 0.0, "pcm": 0.0}
COMPRESSED: tuple[Format, ...] = ("mp3", "opus", "flac")


def speechlike(seconds: float = 2.0) -> Pcm:
    at = np.arange(round(seconds * RATE)) / RATE
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * at)
    return to_int16(0.2 * swell * (np.sin(2 * np.pi * 220 * at) + np.sin(2 * np.pi * 880 * at)))


def chunks_of(form: Format, pcm: Pcm) -> list[bytes]:
    """What comes out for each piece of 80 ms, and for the end."""
    made = encoder(form, RATE)
    chunks = [made.push(pcm[at : at + PIECE]) for at in range(0, len(pcm), PIECE)]
    chunks.append(made.finish())
    made.close()
    made.close()
    return chunks


def decoded(form: Format, data: bytes) -> Pcm:
    """At 24 kHz, by FFmpeg."""
    if form == "pcm":
        return samples_of(data)
    resampler = av.AudioResampler("s16", "mono", RATE)
    with av.open(io.BytesIO(data), "r") as container:
        frames = [*container.decode(audio=0), None]
        parts = [part.to_ndarray()[0] for frame in frames for part in resampler.resample(frame)]
    pcm: Pcm = np.concatenate(parts)
    return pcm


@pytest.mark.parametrize("form", FORMATS)
def test_it_sounds_like_what_went_in(form: Format) -> None:
    pcm = speechlike()
    heard = decoded(form, b"".join(chunks_of(form, pcm)))
    extra_s = (len(heard) - len(pcm)) / RATE
    assert -0.001 <= extra_s <= PADDING_S[form]
    shift = int(np.argmax(np.correlate(heard[: RATE // 2].astype(float), pcm[: RATE // 4].astype(float))))
    assert shift / RATE <= 0.1
    overlap = min(len(heard) - shift, len(pcm))
    assert level_dbfs(heard[shift : shift + overlap]) == pytest.approx(level_dbfs(pcm), abs=0.5)
    assert np.corrcoef(heard[shift : shift + overlap], pcm[:overlap])[0, 1] > 0.99


@pytest.mark.parametrize("form", ["flac", "wav", "pcm"])
def test_what_is_lossless_loses_nothing(form: Format) -> None:
    pcm = speechlike()
    assert np.array_equal(decoded(form, b"".join(chunks_of(form, pcm))), pcm)


@pytest.mark.parametrize("form", FORMATS)
def test_a_listener_of_the_first_half_hears_most_of_it(form: Format) -> None:
    pcm = speechlike()
    chunks = chunks_of(form, pcm)
    half = len(chunks) // 2
    heard_s = len(decoded(form, b"".join(chunks[:half]))) / RATE
    assert heard_s >= half * PIECE / RATE - 0.2


@pytest.mark.parametrize("form", FORMATS)
def test_the_first_pieces_leave_at_once(form: Format) -> None:
    first_s = next(
        (index + 1) * PIECE / RATE
        for index in range(20)
        if sum(map(len, chunks_of(form, speechlike())[: index + 1])) > 200
    )
    assert first_s <= 0.16


@pytest.mark.parametrize("form", COMPRESSED)
def test_one_that_is_left_half_way_is_freed(form: Format) -> None:
    made = encoder(form, RATE)
    made.push(speechlike()[:PIECE])
    made.close()
    made.close()


def test_python_and_libsndfile_read_a_wav_of_unknown_length() -> None:
    pcm = speechlike(0.5)
    data = b"".join(chunks_of("wav", pcm))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        assert np.array_equal(samples_of(file.readframes(file.getnframes())), pcm)
    read, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == RATE
    assert np.array_equal(read, pcm)


def test_an_mp3_tells_its_length_to_who_looks_at_its_rate() -> None:
    data = b"".join(chunks_of("mp3", speechlike()))
    assert soundfile.info(io.BytesIO(data)).duration == pytest.approx(2.0, abs=0.2)


def test_every_format_has_a_media_type() -> None:
    assert set(MEDIA_TYPES) == set(FORMATS)
