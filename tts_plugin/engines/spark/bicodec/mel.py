"""The mel spectrogram: what the speaker encoder hears, and in a small model the semantic encoder too.

Its tables are computed, not read from a checkpoint.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_plugin.engines.spark.bicodec.config import MelSizes

# Slaney's mel scale: linear up to 1 kHz, logarithmic above
_HZ_A_MEL = 200.0 / 3
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _HZ_A_MEL
_STEP = np.log(6.4) / 27
_FLOOR = 1e-4  # of a band, before its logarithm is taken


class Mel:
    """float32 [B, N] -> [B, bands, 1 + N // hop]: STFT magnitudes in mel bands, not logarithmic."""

    def __init__(self, sizes: MelSizes, device: torch.device) -> None:
        self._sizes = sizes
        self._window = torch.hann_window(sizes.win_length, device=device)
        self._bands = torch.from_numpy(mel_bands(sizes).astype(np.float32)).to(device)
        self.shortest = sizes.n_fft // 2 + 1  # samples; the ends are mirrored

    def __call__(self, wave: Tensor) -> Tensor:
        spectrum = torch.stft(
            wave,
            self._sizes.n_fft,
            self._sizes.hop_length,
            self._sizes.win_length,
            window=self._window,
            center=True,
            pad_mode="reflect",
            return_complex=True,
        )
        return self._bands.T @ spectrum.abs()

    def features(self, wave: Tensor) -> Tensor:
        """float32 [B, N] -> [B, N // hop, bands]: logarithmic, a frame a token; for a semantic encoder that
        hears no wav2vec2."""
        frames = torch.log(self(wave).clamp_min(_FLOOR))
        return frames[..., : wave.shape[-1] // self._sizes.hop_length].transpose(1, 2)


def mel_bands(sizes: MelSizes) -> NDArray[np.float64]:
    """Triangular bands of equal area on Slaney's scale, [n_fft // 2 + 1, bands]."""
    bins = np.linspace(0, sizes.sample_rate // 2, sizes.n_fft // 2 + 1)
    edges = _hz(np.linspace(_mel(sizes.mel_fmin), _mel(sizes.highest), sizes.num_mels + 2))
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins[:, None] - low) / (middle - low)
    falling = (high - bins[:, None]) / (high - middle)
    bands: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    return bands


def _mel(hz: float) -> float:
    return hz / _HZ_A_MEL if hz < _KNEE_HZ else _KNEE_MEL + float(np.log(hz / _KNEE_HZ)) / float(_STEP)


def _hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _KNEE_HZ * np.exp(_STEP * (np.maximum(mel, _KNEE_MEL) - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _HZ_A_MEL, above)
