"""The speech that is trained on: the embedded voice as many virtual speakers, and real clips.

A virtual speaker is the embedded voice as a larger or smaller body would have it: spoken slower or faster and
then resampled (soxr), which moves pitch and formants together and leaves the pace where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from training.text import sentences

RATE = 16000
HOP = 320
_VOICE_RATE = 24000
_LEVEL = 0.06  # root mean square of an utterance
_SHORTEST = 4000  # samples

# how much higher a virtual speaker is than the voice itself; the plain voice is spoken by half of them
SPEAKERS: tuple[float, ...] = (1.0, *np.round(np.geomspace(0.72, 1.3, 24), 3).tolist())
_PLAIN_SHARE = 0.25

Samples = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Utterance:
    """start, length: in samples of the file of all speech. speaker: a number; real speakers come last.
    text: "" where nobody wrote it down."""

    start: int
    length: int
    speaker: int
    text: str


@dataclass(frozen=True, slots=True)
class Speech:
    """All of it. names: of the real speakers, the first has the number len(SPEAKERS)."""

    samples: Samples
    utterances: tuple[Utterance, ...]
    names: tuple[str, ...]

    @property
    def speakers(self) -> int:
        return len(SPEAKERS) + len(self.names)

    @property
    def hours(self) -> float:
        return sum(one.length for one in self.utterances) / RATE / 3600

    def of(self, utterance: Utterance) -> NDArray[np.float32]:
        part = self.samples[utterance.start : utterance.start + utterance.length]
        return part.astype(np.float32) / np.float32(32768)

    @classmethod
    def load(cls, folder: Path) -> Speech:
        """What `speak` wrote; the samples stay on disk."""
        listed = json.loads((folder / "speech.json").read_text())
        samples = np.memmap(folder / "speech.s16", np.int16, "r")
        utterances = tuple(Utterance(*row) for row in listed["utterances"])
        return cls(samples, utterances, tuple(listed["names"]))


def speak(folder: Path, clips: Path, *, hours: float, minutes: float) -> None:
    """Write `folder`/speech.s16 and speech.json, at most so many hours, in at most so many minutes."""
    from hibari import Hibari

    folder.mkdir(parents=True, exist_ok=True)
    voice, dice = Hibari(), np.random.default_rng(1)
    rows: list[tuple[int, int, int, str]] = []
    begun_s, at = time.monotonic(), 0
    with (folder / "speech.s16.part").open("wb") as file:
        for wave, name, text in real_clips(clips):
            file.write(wave.tobytes())
            rows.append((at, len(wave), name, text))
            at += len(wave)
        for text in sentences():
            speaker = 0 if dice.random() < _PLAIN_SHARE else int(dice.integers(1, len(SPEAKERS)))
            pcm = spoken(voice, text, SPEAKERS[speaker])
            if len(pcm) < _SHORTEST:
                continue
            file.write(pcm.tobytes())
            rows.append((at, len(pcm), speaker, text))
            at += len(pcm)
            if at > hours * 3600 * RATE or time.monotonic() - begun_s > minutes * 60:
                break
    (folder / "speech.s16.part").replace(folder / "speech.s16")
    listed = {"names": real_names(clips), "utterances": rows}
    (folder / "speech.json").write_text(json.dumps(listed))


def spoken(voice: Any, text: str, higher: float) -> Samples:
    """`text` by the embedded voice (a hibari.Hibari), `higher` times as high, whole tokens long."""
    try:
        wave = voice(text, speed=1 / higher, seed=0)  # seed 0: speech is a function of the text
    except Exception:  # of some texts it finds nothing to say, each in its own way
        return np.zeros(0, np.int16)
    if len(wave) == 0:
        return np.zeros(0, np.int16)
    return levelled(soxr.resample(wave, _VOICE_RATE * higher, RATE, quality="HQ"))


def levelled(wave: NDArray[Any]) -> Samples:
    """Whole tokens of it, as loud as all the other speech."""
    wave = wave[: len(wave) // HOP * HOP]
    loud = float(np.sqrt(np.mean(np.square(wave)))) if len(wave) else 0.0
    wave = np.clip(wave * (_LEVEL / max(loud, 1e-4)), -0.99, 0.99)
    return np.round(wave * 32767).astype(np.int16)


def real_names(clips: Path) -> list[str]:
    """The speakers of the clips, in order."""
    return list(dict.fromkeys(entry["speaker"] for entry in _listed(clips).values()))


def real_clips(clips: Path) -> Sequence[tuple[Samples, int, str]]:
    """Samples, speaker's number and text of every clip in the folder."""
    names = real_names(clips)
    found = []
    for name, entry in _listed(clips).items():
        wave, rate = soundfile.read(clips / f"{name}.flac")
        resampled = soxr.resample(wave, rate, RATE, quality="HQ") if rate != RATE else wave
        found.append(
            (levelled(resampled), len(SPEAKERS) + names.index(entry["speaker"]), entry["text"] or "")
        )
    return found


def _listed(clips: Path) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = json.loads((clips / "clips.json").read_text())
    return listed
