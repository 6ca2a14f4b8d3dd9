"""All speech as the frozen codec hears it: codes of each utterance and tokens of its speaker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.codec import Features
from training.nets import Learnt, Nets
from training.sizes import CODEC, REF_S
from training.speech import RATE, Speech
from tts_plugin.engines.spark.reference import ref_clip, volume_normalise

Codes = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance. globals_: of its own speaker, from its own sound."""

    text: str
    semantic: Codes
    globals_: Codes


def encode(source: Learnt, speech: Speech, path: Path, device: torch.device) -> None:
    """Write the codes of every utterance with a text to `path` (npz)."""
    nets, features = Nets.over(source, CODEC, device), Features(device)
    texts, semantic, globals_ = [], [], []
    with torch.inference_mode():
        for one in speech.utterances:
            if not one.text:
                continue
            wave = speech.of(one)
            heard = features.of(torch.from_numpy(wave)[None].to(device))
            reference = ref_clip(volume_normalise(wave.astype(np.float64)), round(REF_S * RATE))
            mel = features.mel(torch.from_numpy(reference).float()[None].to(device))
            semantic.append(nets.codebook.nearest(nets.encoder(heard))[0].cpu().numpy().astype(np.int16))
            globals_.append(nets.speaker.encode(mel)[0].cpu().numpy().astype(np.int16))
            texts.append(one.text)
    np.savez(
        path,
        texts=np.array(texts),
        semantic=np.concatenate(semantic),
        lengths=np.array([len(codes) for codes in semantic]),
        globals_=np.stack(globals_),
    )


def read(path: Path) -> list[Heard]:
    """What `encode` wrote."""
    return list(_read(path))


def _read(path: Path) -> Iterator[Heard]:
    with np.load(path) as file:
        lengths = file["lengths"]
        ends = np.cumsum(lengths)
        semantic, globals_ = file["semantic"], file["globals_"]
        for at, text in enumerate(file["texts"]):
            end = ends[at]
            yield Heard(str(text), semantic[end - lengths[at] : end], globals_[at])
