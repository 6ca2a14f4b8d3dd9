"""The tiny language model in vLLM: one engine process for all tests, since a start takes half a minute."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.spark import tiny_lm
from tts_plugin.config import SparkSettings
from tts_plugin.engines.spark.lm.vllm import VllmLM
from tts_plugin.engines.spark.lm.vllm_engine import VllmEngine, start

WIDTH = 128  # 4 heads of 32, the least that vLLM's attention takes on a CPU


class Shared(VllmEngine):
    """Stays when an LM that uses it closes; ends with this process."""

    def shutdown(self) -> None:
        pass


@cache
def shared(tied: bool = True) -> VllmEngine:
    engine = started(tied)
    engine.__class__ = Shared
    return engine


def started(tied: bool = True) -> VllmEngine:
    """A process of its own."""
    folder = tiny_lm.saved(Path(mkdtemp()), tied=tied, hidden=WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's imports give some, of torch's own calls
        return start(folder, tiny_lm.vocabulary(), SparkSettings(lm="vllm", dtype="float32"))


def lm() -> VllmLM:
    engine = shared()  # here, so that no test waits for it
    return VllmLM(lambda: engine, tiny_lm.vocabulary())
