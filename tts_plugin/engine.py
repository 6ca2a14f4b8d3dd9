"""The seam every engine fills: Turn and Segment in, AudioFrames out, and the table of engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from tts_plugin.audio import AudioFrame
from tts_plugin.config import EngineSettings
from tts_plugin.errors import ConfigError, NotInstalled, did_you_mean
from tts_plugin.limits import Latency
from tts_plugin.timing import Count, Note, uncounted, unnoted
from tts_plugin.voices import Voice


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a language model draws its tokens; engines without one ignore it."""

    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 0.95
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn to speak. seed: same seed, same text, same samples (where an engine's windows follow the
    clock, to within what its look-ahead costs); None draws a new one.
    speed: 1.0 is as trained; None is the voice's own. latency: how much fidelity the first window may
    cost. sampling: None is the voice's own. note: told by an engine that has stages of its own when each of
    them ends on the way to the first frame. count: told by an engine that draws tokens how many ("tokens"),
    how many of them became sound ("tokens_spoken"), and what its watchdog caught ("watchdog_loop")."""

    voice: Voice
    seed: int | None = None
    speed: float | None = None
    latency: Latency = "balanced"
    sampling: Sampling | None = None
    note: Note = field(default=unnoted, repr=False, compare=False)
    count: Count = field(default=uncounted, repr=False, compare=False)

    @property
    def pace(self) -> float:
        """How fast to speak, 1.0 as trained."""
        return self.voice.speed if self.speed is None else self.speed


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a turn that is spoken in one breath.

    index: 0, 1, 2 ... within the turn. text: what is spoken (normalised, never empty).
    start, end: the part of the turn's text as pushed that it speaks; segments are in order, do not
    overlap, and what lies between two of them is spoken by neither.
    """

    index: int
    text: str
    start: int
    end: int


class Engine(Protocol):
    """What makes sound. One object serves many turns at once.

    rate: Hz of every frame it makes. languages: primary tags (BCP 47) it can read; empty = any.
    """

    @property
    def rate(self) -> int: ...

    @property
    def languages(self) -> frozenset[str]: ...

    def speak(self, turn: Turn, segments: AsyncIterator[Segment]) -> AsyncGenerator[AudioFrame]:
        """Speak the segments as they come.

        One generator a turn, so what carries over from segment to segment lives inside it. Frames are
        contiguous from sample 0, each names its segment, the last of a segment says so, and segments
        do not mix. `aclose()` stops now and frees the device; errors are TTSErrors.
        """
        ...

    async def warm_up(self) -> None:
        """Load what the first turn needs, so that it is as fast as the second."""
        ...

    async def aclose(self) -> None:
        """Free everything; twice is fine."""
        ...


EngineFactory = Callable[[EngineSettings], Engine]

# name in a voice YAML -> "module:factory", imported on first use
ENGINES: dict[str, str] = {
    "tone": "tts_plugin.engines.tone:build",
    "hibari": "tts_plugin.engines.hibari:build",
    "spark": "tts_plugin.engines.spark.engine:build",
}


def load_engine(name: str, settings: EngineSettings) -> Engine:
    """Build the engine called `name`; an extra that is not installed is named in the error."""
    if name not in ENGINES:
        raise ConfigError(f'no engine "{name}"{did_you_mean(name, ENGINES)}')
    module, _, factory = ENGINES[name].partition(":")
    try:
        build = cast(EngineFactory, getattr(import_module(module), factory))
    except ImportError as missing:
        raise NotInstalled(
            f'engine "{name}" needs the package {missing.name}: pip install "sparkvoice[{name}]"'
        ) from missing
    return build(settings)


@asynccontextmanager
async def open_engine(name: str, settings: EngineSettings | None = None) -> AsyncIterator[Engine]:
    """The engine called `name`, warmed up; leaving the block frees it. settings: None = the defaults."""
    engine = load_engine(name, settings or EngineSettings())
    try:
        await engine.warm_up()
        yield engine
    finally:
        await engine.aclose()
