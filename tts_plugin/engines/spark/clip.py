"""A reference clip looked over: its samples, and what keeps it from making a good voice. No torch."""

from __future__ import annotations

import hashlib
import io
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from tts_plugin.engines.spark.reference import Samples, at_rate
from tts_plugin.engines.spark.voice import TRANSCRIBED_S, USED_S
from tts_plugin.errors import ConfigError
from tts_plugin.strict_yaml import shown
from tts_plugin.voices import Finding

RATE = 16_000  # Hz, of the published model

# What is decoded at all: no file may fill the memory.
MAX_BYTES = 100_000_000
MAX_CLIP_S = 120.0
_MAX_SAMPLES = 25_000_000  # of all channels: 120 s of stereo at 96 kHz, 200 MB decoded

_SHORTEST_S = 2.0  # less is repeated until it fills the encoder's 6 s, and a voice needs several vowels
_SILENT_DBFS = -50.0  # the louder frames' level; speech is 20 to 30 dB above it
_NOISY_DB = 20.0  # of the louder frames over the quietest tenth: 25 to 35 in plain recordings, 22 to 25 with
# noise 20 dB below the speech, 14 with noise 10 dB below it
_CLIPPED_LEVEL, _CLIPPED_RUN, _CLIPPED_SHARE = 0.985, 3, 0.001  # of full scale; samples; of all samples
_NARROW_RATE = 16_000  # Hz; less has no sounds above half of it
_ALIKE = 0.5  # correlation of two channels with one content; different speakers have about 0
_DELAY_S = 0.005  # between two microphones of one speaker, 1.7 m apart
_COMPARED_S = 30.0
_ABSENT_DB = 40.0  # a channel so much quieter than the loudest holds only its crosstalk
_CANCELLED_DB = 10.0  # what mixing may take from the loudest channel, beyond its share
_FRAME_S = 0.02
_FLOOR_DB = -120.0


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """wave: one channel at the codec's rate, empty if the file cannot be read. seconds: of the file.
    digest: sha256 of the file, "" if it cannot be read. findings: errors first."""

    path: Path
    wave: Samples
    seconds: float
    digest: str
    findings: tuple[Finding, ...]

    def require(self) -> None:
        """Raise ConfigError with every error there is; warnings do not count."""
        errors = [finding.message for finding in self.findings if finding.level == "error"]
        if errors:
            raise ConfigError("; ".join(errors))


def examine_clip(path: Path, *, rate: int = RATE, used_s: float = USED_S, transcribed: bool = False) -> Clip:
    """Read the clip and judge it; never raises for what is wrong with it.

    wav, flac, ogg or mp3, whatever its name ends in; any rate and width; channels are mixed down. rate: of
    the codec, Hz. used_s: how much of its beginning makes the speaker. transcribed: a transcript goes with
    it, so that all of it is used.
    """
    try:
        data = _read(path)
        samples, found_rate = _decoded(data)
    except ConfigError as error:
        finding = Finding("error", f"{shown(path)} {error}")
        return Clip(path, np.zeros(0), 0.0, "", (finding,))
    seconds = len(samples) / found_rate
    said = [*_length(seconds, used_s, transcribed)]
    if not np.isfinite(samples).all():
        said.append(Finding("error", "holds a sample that is no number (NaN or infinity)"))
        samples = np.nan_to_num(samples, posinf=0.0, neginf=0.0)
    wave = at_rate(samples.mean(axis=1), found_rate, rate)
    if len(wave):
        used = slice(0, round((TRANSCRIBED_S if transcribed else used_s) * found_rate))
        said += _channels(samples[: round(_COMPARED_S * found_rate)], found_rate)
        said += _sound(samples[used], found_rate)
    said.sort(key=lambda finding: finding.level)
    findings = tuple(Finding(finding.level, f"{shown(path)} {finding.message}") for finding in said)
    return Clip(path, wave, seconds, hashlib.sha256(data).hexdigest(), findings)


def digest_of(path: Path) -> str:
    """sha256 of the clip's file, or ConfigError if it cannot be read or cannot be a clip."""
    try:
        return hashlib.sha256(_read(path)).hexdigest()
    except ConfigError as error:
        raise ConfigError(f"{shown(path)} {error}") from error


def _read(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for a writer
            raise ConfigError("is not a file")
        if found.st_size > MAX_BYTES:
            raise ConfigError(
                f"has {found.st_size:,} bytes, a clip may have {MAX_BYTES:,}: cut out what sounds best"
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}") from error


def _decoded(data: bytes) -> tuple[Samples, int]:
    """float64 [N, channels] and their rate. From bytes, so that no name says what is in them."""
    if not data:
        raise ConfigError("is empty")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, frames, channels = file.samplerate, file.frames, file.channels
            if frames > MAX_CLIP_S * rate:
                raise ConfigError(
                    f"lasts {_time(frames / rate)}, a clip may last {_time(MAX_CLIP_S)} and its first "
                    f"{USED_S:g} s make the speaker: cut out what sounds best"
                )
            if frames * channels > _MAX_SAMPLES:
                raise ConfigError(f"is too large: {channels} channels at {rate} Hz; save it as mono 48 kHz")
            return file.read(dtype="float64", always_2d=True), rate
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        why = error.error_string if isinstance(error, soundfile.LibsndfileError) else error
        raise ConfigError(f"cannot be read as sound (wav, flac, ogg, mp3): {why}") from error


def _length(seconds: float, used_s: float, transcribed: bool) -> Iterator[Finding]:
    if seconds == 0:
        yield Finding("error", "holds no samples")
    elif seconds < _SHORTEST_S:
        yield Finding("error", f"is too short: {seconds:.2f} s, a voice needs {_SHORTEST_S:g} s or more")
    elif transcribed and seconds > TRANSCRIBED_S:
        yield Finding(
            "error",
            f"is too long for a transcript: {_time(seconds)}, at most {TRANSCRIBED_S:g} s can stand before "
            "each text; cut clip and transcript, or leave the transcript out",
        )
    elif not transcribed and seconds > used_s:
        yield Finding(
            "warning",
            f"is longer than used: only the first {used_s:g} s of {_time(seconds)} make the speaker",
        )


def _sound(samples: Samples, rate: int) -> Iterator[Finding]:
    """What is said of the part that is used."""
    frames = _levels(samples.mean(axis=1), rate)
    loud_db = float(np.percentile(frames, 90))
    if loud_db < _SILENT_DBFS:
        level = "digital silence" if loud_db <= _FLOOR_DB else f"its speech is at {loud_db:.0f} dBFS"
        yield Finding("error", f"is silent: {level}, {_SILENT_DBFS:.0f} is the least that is heard as sound")
        return
    quiet_db = float(np.percentile(frames, 10))
    # a shorter one may be a single vowel, with no pause to hear noise in
    if len(samples) >= _SHORTEST_S * rate and loud_db - quiet_db < _NOISY_DB:
        yield Finding(
            "warning",
            f"is noisy: its quietest parts are only {loud_db - quiet_db:.0f} dB below its speech "
            f"({_NOISY_DB:.0f} dB wanted); the voice will have that noise, too",
        )
    share = max(_clipped(channel) for channel in samples.T)
    if share > _CLIPPED_SHARE:
        yield Finding("warning", f"is clipped: {share:.1%} of its samples are cut off at full scale")
    if rate < _NARROW_RATE:
        yield Finding("warning", f"is at {rate} Hz: the voice will lack all above {rate / 2000:g} kHz")


def _channels(samples: Samples, rate: int) -> Iterator[Finding]:
    """What is said of a clip whose channels are not one recording."""
    if samples.shape[1] < 2:
        return
    power = np.square(samples).mean(axis=0)
    loudest = int(power.argmax())
    if power[loudest] == 0:
        return
    alone = power[loudest] / len(power) ** 2  # what mixing leaves of it if all others are silent
    if np.square(samples.mean(axis=1)).mean() < alone * 10 ** (-_CANCELLED_DB / 10):
        yield Finding("error", "has channels that cancel each other when mixed into one: keep one of them")
        return
    present = [
        at
        for at in range(samples.shape[1])
        if at != loudest and power[at] > power[loudest] * 10 ** (-_ABSENT_DB / 10)
    ]
    alike = min((_likeness(samples[:, loudest], samples[:, at], rate) for at in present), default=1.0)
    if alike < _ALIKE:
        yield Finding(
            "warning",
            f"has channels of different content (correlation {alike:.2f}), which are mixed into one: keep "
            "the one with the speaker",
        )


def _likeness(one: Samples, other: Samples, rate: int) -> float:
    """The highest correlation of two channels at any delay of up to _DELAY_S."""
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.linalg.norm(one) * np.linalg.norm(other))
    if scale == 0:
        return 1.0
    lags = round(_DELAY_S * rate)
    size = 1 << (len(one) + lags).bit_length()
    spectrum = np.fft.rfft(one, size) * np.conj(np.fft.rfft(other, size))
    products = np.fft.irfft(spectrum, size)
    near = np.concatenate((products[: lags + 1], products[-lags:]))
    return float(near.max()) / scale


def _clipped(wave: Samples) -> float:
    """The share of samples that stand in runs at full scale."""
    full = np.abs(wave) >= _CLIPPED_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    return float(runs[runs >= _CLIPPED_RUN].sum()) / len(wave)


def _levels(wave: Samples, rate: int) -> NDArray[np.float64]:
    """dBFS of each frame; a last part of one is dropped, unless it is all there is."""
    length = min(len(wave), max(1, round(_FRAME_S * rate)))
    frames = wave[: len(wave) // length * length].reshape(-1, length)
    power = np.square(frames).mean(axis=1)
    return np.asarray(10 * np.log10(np.maximum(power, 10 ** (_FLOOR_DB / 10))), dtype=np.float64)


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
