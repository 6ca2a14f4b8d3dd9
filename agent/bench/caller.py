"""The caller of a bench: what they say, in the embedded voice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tts_plugin.audio import Pcm
from tts_plugin.engine import Turn, open_engine
from tts_plugin.utterance import Utterance
from tts_plugin.voices import Voice

_CALLER = Voice(id="caller", engine="hibari", language="en-US", licence="Apache-2.0")


async def spoken(texts: Sequence[str], rate: int) -> list[Pcm]:
    """Each text as samples at `rate` Hz, the same at every run."""
    said = []
    async with open_engine("hibari") as engine:
        for text in texts:
            async with Utterance(engine, Turn(_CALLER, seed=3), rate=rate, lead_s=None) as utterance:
                utterance.push(text)
                utterance.end()
                said.append(np.concatenate([frame.pcm async for frame in utterance]))
    return said
