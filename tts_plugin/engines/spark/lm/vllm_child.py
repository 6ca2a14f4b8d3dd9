"""Child: what is done first in each process that vLLM starts for us, carried there by its configuration."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait

ARCHITECTURE = "SparkvoiceSpeechQwen2"
_MODEL = "tts_plugin.engines.spark.lm.vllm_model:SpeechQwen2"
_WATCH = "parent watch"


class Child:
    """For `additional_config`: a process that receives it learns our model, and ends with its parent.

    vLLM's engine process outlives a parent that was killed, and keeps the GPU's memory; one that was still
    starting waits five minutes for it. Its workers watch the engine process in the way it is done here.
    """

    def compute_hash(self) -> str:
        """vLLM asks for it: nothing that is compiled depends on this."""
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        return begun, ()


def begun() -> Child:
    """Called where a Child is unpickled, the first of our code that runs there."""
    from vllm import ModelRegistry

    if multiprocessing.current_process().name.startswith(("EngineCore", "VllmWorker")):  # and not in a copy
        ModelRegistry.register_model(ARCHITECTURE, _MODEL)
        if all(thread.name != _WATCH for thread in threading.enumerate()):
            threading.Thread(target=_end_with_parent, name=_WATCH, daemon=True).start()
    return Child()


def _end_with_parent() -> None:
    """The sentinel is a pipe that the system closes, however the parent ends."""
    while (parent := multiprocessing.parent_process()) is None:  # known as soon as all is unpickled
        time.sleep(0.01)
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
