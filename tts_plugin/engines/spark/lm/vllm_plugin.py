"""What vLLM runs first in every process of its own where this package is installed (entry point in
pyproject.toml): it learns our model there, and its engine process ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

ARCHITECTURE = "SparkvoiceSpeechQwen2"
_MODEL = "tts_plugin.engines.spark.lm.vllm_model:SpeechQwen2"


def register() -> None:
    """Make ARCHITECTURE known to vLLM, and tie an engine process to its parent."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, _MODEL)
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().name.startswith("EngineCore"):
        watch = threading.Thread(target=_end_with, args=(parent.sentinel,), name="parent watch", daemon=True)
        watch.start()


def _end_with(sentinel: int) -> None:
    """vLLM's engine outlives a parent that was killed, and keeps the GPU's memory. The sentinel is a pipe
    that the system closes, however the parent ends; vLLM's workers watch the engine in the same way."""
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
