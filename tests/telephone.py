"""A telephone line for the tests: 8 kHz, mu-law, noise, and the echo of a line without cancellation."""

from __future__ import annotations

import numpy as np

from tts_plugin.audio import Pcm, Wave
from tts_plugin.g711 import decode, encode

RATE = 8000


def over_mulaw(pcm: Pcm) -> Pcm:
    """What a G.711 line leaves of it."""
    return decode(encode(np.ascontiguousarray(pcm), "mulaw"), "mulaw")


def noisy(pcm: Pcm, snr_db: float, *, seed: int = 0) -> Pcm:
    """With white noise so far under the level of its loud parts; under -20 dBFS where it is silent."""
    loud = pcm[np.abs(pcm) > 300].astype(np.float64)
    level = np.sqrt(np.mean(np.square(loud))) if len(loud) else 3277.0
    noise = np.random.default_rng(seed).standard_normal(len(pcm)) * level * 10 ** (-snr_db / 20)
    return np.clip(pcm + noise, -32767, 32767).astype(np.int16)


def hybrid(loss_db: float, delay_s: float, *, seed: int = 0, spread_s: float = 0.008) -> Wave:
    """The impulse response of an echo: `delay_s` later, `loss_db` quieter, smeared as a hybrid does."""
    tail = np.random.default_rng(seed).standard_normal(round(spread_s * RATE))
    tail *= np.exp(-np.arange(len(tail)) / (0.2 * len(tail)))
    tail *= 10 ** (-loss_db / 20) / np.sqrt(np.sum(tail**2))
    return np.concatenate([np.zeros(round(delay_s * RATE)), tail]).astype(np.float32)
