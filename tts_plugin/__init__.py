"""Sparkvoice: streaming, cancellable text to speech for real-time voice agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_plugin.adapters.livekit import TTS
    from tts_plugin.engine import open_engine
    from tts_plugin.utterance import Utterance
    from tts_plugin.voices import Voice, VoiceRegistry

__version__ = "0.1.0"
__all__ = ["TTS", "Utterance", "Voice", "VoiceRegistry", "open_engine"]

# imported on first use, so that an engine box needs no LiveKit and an agent box no engine
_HOMES = {
    "TTS": "tts_plugin.adapters.livekit",
    "Utterance": "tts_plugin.utterance",
    "Voice": "tts_plugin.voices",
    "VoiceRegistry": "tts_plugin.voices",
    "open_engine": "tts_plugin.engine",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("livekit"):
            raise
        raise ModuleNotFoundError(
            f'tts_plugin.{name} needs livekit-agents: pip install "sparkvoice[livekit]"', name=missing.name
        ) from missing
