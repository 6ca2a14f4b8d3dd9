"""What a turn may ask for: the ranges and choices that voices, messages, commands and adapters share."""

from __future__ import annotations

from typing import Literal, get_args

RATES = (8_000, 48_000)  # Hz, of the audio given out
SPEEDS = (0.5, 2.0)  # of the pace a voice was made with
MAX_SEED = 2**32 - 1
MAX_LEAD_S = 60.0
LEAD_S = 3.0  # how far ahead of its listener a live turn is synthesised unless it asks otherwise

Latency = Literal["low", "balanced", "quality"]  # how much fidelity the first sound may cost
LATENCIES: tuple[Latency, ...] = get_args(Latency)
