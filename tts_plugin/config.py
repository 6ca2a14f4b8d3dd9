"""The settings of the engine side: YAML, environment and arguments in, checked values out."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tts_plugin.errors import ConfigError, did_you_mean
from tts_plugin.hosts import is_loopback
from tts_plugin.limits import LEAD_S, MAX_LEAD_S, RATES
from tts_plugin.strict_yaml import BadYaml, Document, Json, read_yaml, validated

SECTIONS = ("engine", "server", "agent", "phone")  # agent and phone are checked by agent/config.py
S = TypeVar("S", bound=BaseModel)

ENVIRONMENT = "SPARKVOICE_* environment"  # what an error calls the layers above the file
ARGUMENTS = "arguments"


class Section(BaseModel):
    """Some keys of the YAML; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


MaxStreams = Annotated[int | None, Field(ge=1)]  # turns that one engine speaks at once; None: as measured


class HibariSettings(Section):
    """gain_db: added to its quiet output. ceiling_dbfs: no sample is louder. threads: of one segment.
    at_once: segments that are made beside each other. max_streams: turns at once (None: as measured, else
    what is known of it)."""

    max_streams: MaxStreams = None
    gain_db: Annotated[float, Field(ge=-20, le=20)] = 7.0
    ceiling_dbfs: Annotated[float, Field(ge=-20, le=0)] = -1.5
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    at_once: Annotated[int, Field(ge=1, le=64)] = 1


class ToneSettings(Section):
    """rate: Hz. seconds_per_char: how long a character sounds. max_streams: as hibari's."""

    max_streams: MaxStreams = None
    rate: Annotated[int, Field(ge=RATES[0], le=RATES[1])] = 24_000
    seconds_per_char: Annotated[float, Field(gt=0, le=1)] = 0.06


class WindowSettings(Section):
    """first: tokens of 20 ms that the first window speaks. ahead: how many it waits for beyond them, so
    that its end sounds as it would with all that follows; at least one, which is there to end the speech."""

    first: Annotated[int, Field(ge=1, le=500)]
    ahead: Annotated[int, Field(ge=1, le=67)]  # nothing further on is heard in a token


class LatencySettings(Section):
    """What the first window of a turn may cost, by the turn's `latency`. settled: tokens that later
    windows wait for, once the sound already made covers the wait."""

    low: WindowSettings = WindowSettings(first=6, ahead=4)
    balanced: WindowSettings = WindowSettings(first=6, ahead=8)
    quality: WindowSettings = WindowSettings(first=16, ahead=32)
    settled: Annotated[int, Field(ge=0, le=67)] = 16


class OpenVinoSettings(Section):
    """The language model on OpenVINO.

    weights: int4 is smaller and not exact. threads: None takes all cores. pin: each thread to its core,
    which is slower wherever something else runs.
    """

    weights: Literal["int8", "int4"] = "int8"
    threads: Annotated[int | None, Field(ge=1, le=256)] = None
    pin: bool = False


class HfSettings(Section):
    """`lm: hf`. static_cache: caches of a fixed size, cache_tokens of prompt and speech (50 a second), used
    again by one turn after another; on a GPU a CUDA graph runs each step. Meant for a GPU."""

    static_cache: bool = False
    cache_tokens: Annotated[int, Field(ge=256, le=32_768)] = 2048


class VllmSettings(Section):
    """`lm: vllm`. gpu_memory: share of the GPU's memory that it takes; the codec needs some of the rest.
    max_requests: in one step; more wait. eager: no compiling and no CUDA graphs: starts sooner, runs slower
    (on a CPU always)."""

    gpu_memory: Annotated[float, Field(gt=0, lt=1)] = 0.5
    max_requests: Annotated[int, Field(ge=1, le=4096)] = 64
    eager: bool = False


class SparkSettings(Section):
    """The Spark-TTS engine.

    model: the directory. lm: what runs the language model; None: openvino on a CPU, hf on a GPU. codec: what
    runs the codec; None: openvino on a CPU where it is installed, else torch. codec_threads: of the codec in
    openvino; None takes all cores.
    dtype, codec_dtype: of the two nets; dtype is of hf and vllm (None: float32 on a CPU, else bfloat16). No
    float16: in it this model speaks garbage. ref_s: how much of a reference clip a voice is taken from
    (None: as much as in training). continuity_tokens: of the speech so far, shown to the language model
    before a turn's next segment; each costs a token of prompt.
    max_streams: as hibari's.
    """

    max_streams: MaxStreams = None
    model: Path | None = None
    lm: Literal["hf", "openvino", "vllm"] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] | None = None
    codec: Literal["torch", "openvino"] | None = None
    codec_dtype: Literal["float32", "bfloat16"] = "float32"
    codec_threads: Annotated[int | None, Field(ge=1, le=256)] = None
    ref_s: Annotated[float | None, Field(ge=1, le=60)] = None
    continuity_tokens: Annotated[int, Field(ge=0, le=500)] = 50
    latency: LatencySettings = LatencySettings()
    openvino: OpenVinoSettings = OpenVinoSettings()
    hf: HfSettings = HfSettings()
    vllm: VllmSettings = VllmSettings()

    @property
    def backend(self) -> str:
        """What runs the language model."""
        return self.lm or ("openvino" if self.device == "cpu" else "hf")


class EngineSettings(Section):
    """What is spoken, and by what.

    voice: id of the default voice (None: the registry's own choice). voices: the user's folders,
    earlier ones win. warm: engines made ready at start (None: the default voice's). lead_s: how far a
    live turn is synthesised ahead of its listener. max_text_chars: of one turn.
    """

    voice: str | None = None
    voices: tuple[Path, ...] = ()
    warm: tuple[str, ...] | None = None
    lead_s: Annotated[float, Field(gt=0, le=MAX_LEAD_S)] = LEAD_S
    max_text_chars: Annotated[int, Field(ge=1)] = 100_000
    hibari: HibariSettings = HibariSettings()
    tone: ToneSettings = ToneSettings()
    spark: SparkSettings = SparkSettings()


class ServerSettings(Section):
    """The engine server's doors.

    port: 0 takes a free one. token: asked of every client if set. max_connections: websockets at once, and
    as many requests for speech. max_contexts: per connection.
    origins: browser origins let in besides the server's own. max_waiting: turns of an engine that wait
    while it speaks as many as it can; max_wait_s: for how long, then they are refused.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8081
    token: Annotated[str | None, Field(min_length=1, repr=False)] = None
    max_connections: Annotated[int, Field(ge=1)] = 64
    max_contexts: Annotated[int, Field(ge=1)] = 32
    origins: tuple[str, ...] = ()
    max_waiting: Annotated[int, Field(ge=0)] = 16
    max_wait_s: Annotated[float, Field(ge=0, le=60)] = 2.0

    @property
    def loopback_only(self) -> bool:
        """Whether nobody but this machine can connect to `host`."""
        return is_loopback(self.host)

    def require_closed_door(self) -> None:
        """Raise ConfigError if others could connect without a token."""
        if not self.loopback_only and self.token is None:
            raise ConfigError(
                f"server.host {self.host} can be reached from outside: "
                "set SPARKVOICE_TOKEN, or listen on 127.0.0.1"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `tts_plugin` can be told. url: a running engine server (SPARKVOICE_URL), for clients.
    document: the file as read, for the owner of its other sections."""

    engine: EngineSettings
    server: ServerSettings
    url: str | None
    document: Document


def config_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """The YAML where no argument names one: that of SPARKVOICE_CONFIG; None = the bundled one."""
    named = variable(os.environ if environ is None else environ, "SPARKVOICE_CONFIG")
    return None if named is None else Path(named).expanduser()


def load_settings(
    path: Path | None = None,
    *,
    engine: Mapping[str, Json] | None = None,
    server: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from `path` (None: SPARKVOICE_CONFIG's, else the bundled configs/default.yaml), or ConfigError
    with file and line.

    Precedence: arguments (server={"port": 0}) > SPARKVOICE_* and SPARK_TTS_MODEL of `environ` > YAML >
    default.
    Without any folder of voices named, ./voices is used where there is one.
    """
    env = _Environment.read(os.environ if environ is None else environ)
    document = read_config(path or config_file(environ))
    engine_settings = layered(
        EngineSettings,
        "engine",
        document,
        {ENVIRONMENT: env.engine, ARGUMENTS: engine or {}},
        paths=("voices", "spark.model"),
    )
    if not engine_settings.voices and Path("voices").is_dir():
        engine_settings = engine_settings.model_copy(update={"voices": (Path("voices"),)})
    server_settings = layered(
        ServerSettings, "server", document, {ENVIRONMENT: env.server, ARGUMENTS: server or {}}
    )
    return Settings(engine_settings, server_settings, env.url, document)


def read_config(path: Path | None = None) -> Document:
    """The deployment's YAML (None: the bundled default) with its top-level keys checked, nothing else."""
    document = read_yaml(bundled("configs") / "default.yaml" if path is None else path)
    unknown = [
        document.problem((key,), f'unknown key "{key}"{did_you_mean(key, SECTIONS)}')
        for key in document.data
        if key not in SECTIONS
    ]
    if unknown:
        raise BadYaml(unknown)
    return document


def layered(
    kind: type[S],
    name: str,
    document: Document,
    layers: Mapping[str, Mapping[str, Json]],
    *,
    paths: Collection[str] = (),
) -> S:
    """Section `name` with each layer laid over the one below, and checked, so that an error names its layer.

    layers: name -> values, the lowest first. paths: keys of files and folders ("spark.model" in a section
    within), which in a file are meant from where it lies.
    """
    part = document.part(name)
    settings = validated(kind, part, name)
    data: dict[str, Json] = dict(part.data)
    if isinstance(part.source, Path):
        for key in paths:
            data = _laid_over(data, _from_file(part.source, data, key.split(".")))
        settings = validated(kind, Document(part.file, data), name)
    for layer, values in layers.items():
        if values:
            data = _laid_over(data, values)
            settings = validated(kind, Document(layer, data), name)
    return settings


def variable(environ: Mapping[str, str], name: str) -> str | None:
    """The value of an environment variable; one that is empty counts as not set."""
    return environ.get(name, "").strip() or None


def prepare_for_vllm(device: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Set what vLLM takes from the environment only; call it before vllm is imported, for it and its child.

    What the user has set stays. Its own cores are taken for a CPU because by itself it leaves one unused.
    """
    env = os.environ if environ is None else environ
    env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork would share our threads' locks
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    env.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is ours
    if device == "cpu" and hasattr(os, "sched_getaffinity"):  # Linux
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))


def prepare_for_onnxruntime(environ: MutableMapping[str, str] | None = None) -> None:
    """Keep onnxruntime (1.32) from reporting each process to its makers; call it before it is imported. What
    the user has set stays."""
    (os.environ if environ is None else environ).setdefault("ORT_DISABLE_TELEMETRY", "1")


def bundled(folder: Literal["voices", "configs"]) -> Traversable:
    """The folder as shipped: inside the package when built into a wheel, beside it in a source tree."""
    package = files("tts_plugin")
    inside = package / "bundled" / folder
    return inside if inside.is_dir() else Path(str(package)).parent / folder


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where this user's caches go; may not be there yet. XDG_CACHE_HOME, else the platform's place."""
    env = os.environ if environ is None else environ
    named = Path(env.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # a relative one is to be ignored, says the specification
        return named / "sparkvoice"
    if sys.platform == "win32" and (local := env.get("LOCALAPPDATA")):
        return Path(local) / "sparkvoice" / "Cache"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "sparkvoice"


@dataclass(frozen=True, slots=True)
class _Environment:
    """What SPARKVOICE_* and SPARK_TTS_MODEL say, by section."""

    engine: dict[str, Json]
    server: dict[str, Json]
    url: str | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> _Environment:
        listed = variable(environ, "SPARKVOICE_VOICES") or ""
        folders = [folder for folder in listed.split(os.pathsep) if folder]
        model = variable(environ, "SPARK_TTS_MODEL")
        spark = {"model": str(Path(model).expanduser())} if model else None
        engine = {
            "voice": variable(environ, "SPARKVOICE_VOICE"),
            "voices": folders or None,
            "spark": spark,
        }
        server = {"token": variable(environ, "SPARKVOICE_TOKEN")}
        url = variable(environ, "SPARKVOICE_URL")
        if url and not url.startswith(("ws://", "wss://", "http://", "https://")):
            raise ConfigError(f'SPARKVOICE_URL "{url}" should start with ws://, wss://, http:// or https://')
        return cls(_given(engine), _given(server), url)


def _from_file(source: Path, data: Mapping[str, Json], keys: Sequence[str]) -> dict[str, Json]:
    """The path that `keys` lead to, taken from the file's folder; nothing if there is none."""
    found: dict[str, Json] = {}
    for key in data if keys[0] == "*" else (keys[0],):
        value = data.get(key)
        if value:
            found[key] = _from_file(source, value, keys[1:]) if len(keys) > 1 else _beside(source, value)
    return found


def _beside(source: Path, value: Json) -> Json:
    if isinstance(value, list):
        return [_beside(source, one) for one in value]
    return str(source.parent / os.path.expanduser(value))


def _given(values: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in values.items() if value is not None}


def _laid_over(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """`above` where it says something, else `below`; sections within are laid over likewise."""
    laid = dict(below)
    for key, value in above.items():
        inner = laid.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            laid[key] = _laid_over(inner, value)
        else:
            laid[key] = value
    return laid
