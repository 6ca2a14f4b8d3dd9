"""All speech as the trained hearing hears it: codes of each utterance and tokens of its speaker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.features import Features
from training.nets import Learnt, Nets
from training.sizes import CODEC, REF_S
from training.speech import RATE, Speech, Utterance
from tts_plugin.engines.spark.reference import ref_clip, volume_normalise

Codes = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance. globals_: of its own speaker, from its own sound."""

    said: Utterance
    semantic: Codes
    globals_: Codes


class Ears:
    """What hears: the encoder and the speaker encoder of trained weights."""

    def __init__(self, source: Learnt, device: torch.device) -> None:
        self._device = device
        self._features = Features(device)
        self._nets = Nets(source, CODEC, device)
        self._nets.all()  # built before threads share them

    def hear(self, wave: NDArray[np.float32]) -> tuple[Codes, Codes]:
        """Semantic codes and global tokens of one utterance, as if it were enrolled."""
        nets = self._nets
        with torch.inference_mode():
            heard = self._features.of(torch.from_numpy(wave)[None].to(self._device))
            reference = ref_clip(volume_normalise(wave.astype(np.float64)), round(REF_S * RATE))
            mel = self._features.mel(torch.from_numpy(reference).float()[None].to(self._device))
            semantic = nets.codebook.nearest(nets.encoder(heard))[0]
            globals_ = nets.speaker.encode(mel)[0]
        return semantic.cpu().numpy().astype(np.int16), globals_.cpu().numpy().astype(np.int16)


def encode(source: Learnt, speech: Speech, path: Path, device: torch.device, threads: int = 1) -> None:
    """Write the codes of every utterance to `path` (npz)."""
    ears = Ears(source, device)
    with ThreadPoolExecutor(threads, "ear", initializer=lambda: torch.set_num_threads(1)) as pool:
        heard = list(pool.map(lambda one: ears.hear(speech.of(one)), speech.utterances))
    np.savez(
        path,
        semantic=np.concatenate([semantic for semantic, _ in heard]),
        lengths=np.array([len(semantic) for semantic, _ in heard]),
        globals_=np.stack([globals_ for _, globals_ in heard]),
    )


def read(path: Path, speech: Speech) -> list[Heard]:
    """What `encode` wrote of this speech."""
    with np.load(path) as file:
        ends = np.cumsum(file["lengths"])[:-1]
        semantic = np.split(file["semantic"], ends)
        return [
            Heard(said, codes, globals_)
            for said, codes, globals_ in zip(speech.utterances, semantic, file["globals_"], strict=True)
        ]
