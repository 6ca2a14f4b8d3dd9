"""Noise: what a model of random weights says. It never ends, so it gets the length its text would have."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tts_plugin.engines.spark.duration import TOKENS_PER_S, duration_of


async def of_likely_length(text: str, codes: AsyncGenerator[list[int]]) -> AsyncGenerator[list[int]]:
    """The first of `codes`, as many as speech of `text` is likely to have; closing this closes them."""
    left = max(1, round(duration_of(text).likely_s * TOKENS_PER_S))
    async with aclosing(codes):
        async for group in codes:
            yield group[:left]
            left -= len(group)
            if left <= 0:
                return
