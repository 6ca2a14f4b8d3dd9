"""Where a framework adapter gets its utterances: an engine of this process, or an engine server."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tts_plugin.audio import AudioFrame
from tts_plugin.config import load_settings
from tts_plugin.engine import ENGINES, Engine, Turn
from tts_plugin.errors import BadRequest, ConfigError
from tts_plugin.limits import LATENCIES, MAX_SEED, SPEEDS, Latency
from tts_plugin.link import Address
from tts_plugin.remote import Locate, Remote, RemoteUtterance, Request
from tts_plugin.server.local import LocalServer, require_installed
from tts_plugin.spoken import SpokenText
from tts_plugin.timing import Timeline
from tts_plugin.utterance import Utterance
from tts_plugin.voices import VoiceRegistry, open_registry


@dataclass(frozen=True, slots=True)
class Options:
    """How the next turn is spoken; None leaves the choice to the voice or the server.

    seed: same seed, same text, same samples. speed: 1.0 is the pace the voice was made with.
    """

    voice: str | None = None
    seed: int | None = None
    speed: float | None = None
    latency: Latency = "balanced"

    def __post_init__(self) -> None:
        if self.speed is not None and not SPEEDS[0] <= self.speed <= SPEEDS[1]:
            raise BadRequest(f"speed {self.speed} is not between {SPEEDS[0]} and {SPEEDS[1]}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise BadRequest(f"seed {self.seed} is not between 0 and {MAX_SEED}")
        if self.latency not in LATENCIES:
            raise BadRequest(f'latency "{self.latency}" is none of {", ".join(LATENCIES)}')


class Speech(Protocol):
    """What Utterance and RemoteUtterance have in common; see Utterance."""

    rate: int
    text: SpokenText
    timeline: Timeline
    foreign: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> AudioFrame: ...

    def push(self, text: str) -> None: ...

    def flush(self) -> None: ...

    def end(self) -> None: ...


class Source(Protocol):
    """Makes utterances. lead_s: how far ahead of its listener one is synthesised, None = any."""

    @property
    def connected(self) -> bool: ...

    def speech(self, options: Options, lead_s: float | None) -> Speech: ...

    async def warm_up(self, voice: str | None) -> None:
        """Do what the first turn of this voice would have to wait for."""
        ...

    async def aclose(self) -> None: ...


class EngineSource:
    """Speaks by an engine object of this process, which stays its owner's to close."""

    connected = True

    def __init__(self, engine: Engine, voices: VoiceRegistry, rate: int) -> None:
        self._engine = engine
        self._voices = voices
        self._rate = rate

    def speech(self, options: Options, lead_s: float | None) -> Utterance:
        voice = self._voices.default if options.voice is None else self._voices.get(options.voice)
        turn = Turn(voice, seed=options.seed, speed=options.speed, latency=options.latency)
        return Utterance(self._engine, turn, rate=self._rate, lead_s=lead_s)

    async def warm_up(self, voice: str | None) -> None:
        await self._engine.warm_up()

    async def aclose(self) -> None:
        """Nothing of its own."""


class ServerSource:
    """Speaks by an engine server over one connection, which it closes."""

    def __init__(self, remote: Remote, rate: int) -> None:
        self._remote = remote
        self._rate = rate

    @property
    def connected(self) -> bool:
        return self._remote.connected

    def speech(self, options: Options, lead_s: float | None) -> RemoteUtterance:
        return self._remote.utterance(
            Request(
                rate=self._rate,
                voice=options.voice,
                seed=options.seed,
                speed=options.speed,
                latency=options.latency,
                lead_s=lead_s,
            )
        )

    async def warm_up(self, voice: str | None) -> None:
        # a turn that says nothing: the server loads the voice's engine for it
        async with self._remote.utterance(Request(rate=self._rate, voice=voice)) as turn:
            turn.end()
            async for _ in turn:
                pass

    async def aclose(self) -> None:
        await self._remote.aclose()


def open_source(
    *,
    rate: int,
    url: str | None = None,
    token: str | None = None,
    engine: Engine | None = None,
    voices: VoiceRegistry | None = None,
    locate: Locate | None = None,
) -> Source:
    """The engine object if one is given, else the server at `url` or SPARKVOICE_URL, else our own child.

    locate: asked for the server's address at every connection, instead of all that. voices: of the engine
    object (None = those of the settings). Connects to nothing yet.
    """
    if locate is not None:
        if url is not None or token is not None or engine is not None or voices is not None:
            raise ConfigError("locate= says where the server is: give no url=, token=, engine= or voices=")
        return ServerSource(Remote(locate), rate)
    if engine is not None:
        if url is not None or token is not None:
            raise ConfigError("engine= speaks in this process: give either engine= or url= and token=")
        return EngineSource(engine, voices or open_registry(load_settings().engine, ENGINES), rate)
    if voices is not None:
        raise ConfigError("voices= goes with engine=: an engine server has voices of its own")
    if url is not None and token is not None:
        address = Address(url, token)  # without the settings: reading them holds up all other calls for 7 ms
    else:
        settings = load_settings()
        where = url or settings.url
        if where is None:
            if token is not None:
                raise ConfigError("token= goes with url=: the child of this process has a token of its own")
            require_installed()  # now rather than at the first turn
            return ServerSource(Remote(LocalServer.shared().address), rate)
        address = Address(where, token or settings.server.token)
    _ = address.stream_url  # raises ConfigError now rather than at the first turn

    async def there() -> Address:
        return address

    return ServerSource(Remote(there), rate)
