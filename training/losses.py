"""What a decoded wave is judged by: spectra at several resolutions, and discriminators that learn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from training.speech import HOP
from tts_plugin.engines.spark.bicodec.config import MelSizes
from tts_plugin.engines.spark.bicodec.mel import mel_bands

_RATE = 16000
_SPECTRA = ((256, 20), (512, 40), (1024, 80), (2048, 100))  # window, bands
_FLOOR = 1e-4
_SAID, _PITCH = 80, 120  # bands that are told before there is a wave
_PITCH_SHARE = 0.3
_JUDGED = (256, 512, 1024)  # windows of the discriminators


class Spectra(nn.Module):
    """Distance of two waves [B, N]: logarithmic mel bands, and how far the magnitudes are off."""

    def __init__(self) -> None:
        super().__init__()
        for size, bands in _SPECTRA:
            self.register_buffer(f"window{size}", torch.hann_window(size))
            table = mel_bands(MelSizes(_RATE, size, size, size // 4, 20.0, None, bands))
            # equal weight to every band, whatever its width
            table = table / table.sum(0, keepdims=True).clip(1e-9)
            self.register_buffer(f"bands{size}", torch.from_numpy(table).float())

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        total = made.new_zeros(())
        for size, _ in _SPECTRA:
            window, bands = getattr(self, f"window{size}"), getattr(self, f"bands{size}")
            ours, theirs = magnitudes(made, size, window), magnitudes(real, size, window)
            our_bands, their_bands = (torch.log(x.transpose(1, 2) @ bands + _FLOOR) for x in (ours, theirs))
            off = (ours - theirs).norm() / theirs.norm().clamp_min(1e-3)
            total = total + F.l1_loss(our_bands, their_bands) + 0.5 * off
        return total


class Bands(nn.Module):
    """Logarithmic mel bands at two resolutions, told from what the wave generator reads: used before there is
    a wave. Values are about as large as 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._windows = (512, 2048)  # samples; one for what is said, one for the pitch
        self._hops = (HOP // 2, HOP)
        for size, count in zip(self._windows, (_SAID, _PITCH), strict=True):
            table = mel_bands(MelSizes(_RATE, size, size, size // 4, 20.0, None, count))
            table = table / table.sum(0, keepdims=True).clip(1e-9)
            self.register_buffer(f"bands{size}", torch.from_numpy(table).float())
            self.register_buffer(f"window{size}", torch.hann_window(size))
        self._tell = nn.Linear(channels, 2 * _SAID + _PITCH)

    def forward(self, frames: Tensor) -> Tensor:
        """[B, C, T] -> [B, T, all bands]."""
        told: Tensor = self._tell(frames.transpose(1, 2))
        return told

    def due(self, wave: Tensor) -> Tensor:
        """What should be told of the samples [B, T * HOP]: [B, T, all bands]."""
        found = []
        for size, hop in zip(self._windows, self._hops, strict=True):
            window, bands = getattr(self, f"window{size}"), getattr(self, f"bands{size}")
            spectrum = torch.stft(wave, size, hop, size, window, return_complex=True).abs()
            frames = spectrum[..., : wave.shape[-1] // hop].transpose(1, 2) @ bands
            frames = (torch.log(frames / size**0.5 + 1e-4) + 4) / 2
            found.append(frames.reshape(len(wave), wave.shape[-1] // HOP, -1))
        return torch.cat(found, dim=2)

    def off(self, told: Tensor, due: Tensor) -> Tensor:
        """How far bands are from what they should be; the pitch counts less than what is said."""
        said = F.l1_loss(told[..., : 2 * _SAID], due[..., : 2 * _SAID])
        return said + _PITCH_SHARE * F.l1_loss(told[..., 2 * _SAID :], due[..., 2 * _SAID :])


class Judge(nn.Module):
    """One discriminator: convolutions over the logarithmic magnitudes at one resolution."""

    def __init__(self, size: int, channels: int = 16) -> None:
        super().__init__()
        self._size = size
        self._window: Tensor
        self.register_buffer("_window", torch.hann_window(size))
        strides = (2, 2, 2, 1)
        self._layers = nn.ModuleList(
            weight_norm(nn.Conv2d(1 if at == 0 else channels, channels, (3, 7), (1, stride), (1, 3)))
            for at, stride in enumerate(strides)
        )
        self._last = weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Its verdict and what its layers saw."""
        x = torch.log(magnitudes(wave, self._size, self._window).clamp_min(1e-5))
        x = x[:, None].transpose(2, 3)
        seen = []
        for layer in self._layers:
            x = F.leaky_relu(layer(x), 0.1)
            seen.append(x)
        return self._last(x), seen


class Jury(nn.Module):
    """The discriminators together."""

    def __init__(self) -> None:
        super().__init__()
        self._judges = nn.ModuleList(Judge(size) for size in _JUDGED)

    def own_loss(self, made: Tensor, real: Tensor) -> Tensor:
        """Of telling them apart."""
        total = made.new_zeros(())
        for judge in self._judges:
            total = total + F.relu(1 - judge(real)[0]).mean() + F.relu(1 + judge(made.detach())[0]).mean()
        return total

    def loss_for(self, made: Tensor, real: Tensor) -> Tensor:
        """Of having been found out: the verdicts, and the distance of what the layers saw."""
        total = made.new_zeros(())
        for judge in self._judges:
            with torch.no_grad():
                _, wanted = judge(real)
            verdict, seen = judge(made)
            total = total - verdict.mean() + 2 * _distance(seen, wanted)
        return total


def magnitudes(wave: Tensor, size: int, window: Tensor) -> Tensor:
    """Of the short-time spectrum of [B, N]: [B, size // 2 + 1, frames]."""
    spectrum = torch.stft(wave, size, size // 4, size, window, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1).clamp_min(1e-10).sqrt()


def _distance(seen: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    return torch.stack([F.l1_loss(ours, theirs) for ours, theirs in zip(seen, wanted, strict=True)]).sum()
