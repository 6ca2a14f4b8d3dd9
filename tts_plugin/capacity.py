"""How many streams at once an engine was measured to carry on this machine: one small JSON file for each.

`sparkvoice bench capacity` saves it and the engine server's admission goes by it. A capacity holds only for
the machine and the settings that it was measured with, so both are part of the file's name and content.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from tts_plugin.config import EngineSettings, cache_folder
from tts_plugin.errors import BadRequest
from tts_plugin.strict_yaml import Json

log = logging.getLogger(__name__)

# settings that change the sound or a voice's enrolment, not the cost of a stream, and what the capacity is
# there to decide; all others count
_NO_MATTER: Mapping[str, Collection[str]] = {
    "hibari": ("max_streams", "gain_db", "ceiling_dbfs"),
    "tone": ("max_streams",),
    "spark": ("max_streams", "ref_s"),
}
_CPUS = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Capacity:
    """streams: at once, without an underrun. facts: what else the measurement found, to be read by people
    (JSON values). measured: when, ISO 8601 with its zone."""

    streams: int
    facts: Mapping[str, Json] = field(default_factory=dict)
    measured: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise BadRequest(f"a capacity of {self.streams} streams cannot be used; it is at least 1")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a capacity depends on beside the settings. cpus: that this process may use."""

    cpus: int
    cpu: str
    gpus: tuple[str, ...] = ()

    @classmethod
    def this(cls) -> Machine:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(usable, _cpu_model(), _gpu_models())


def load(
    engine: str, settings: EngineSettings, *, folder: Path | None = None, machine: Machine | None = None
) -> Capacity | None:
    """What was measured of `engine` with these settings on this machine; None if nothing was.

    folder: where the files lie (None: `capacity` in the user's cache folder). A file that cannot be used is
    logged and counts as none.
    """
    key = _key(engine, settings, machine or Machine.this())
    path = _path(key, folder)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["key"] != key:
            return None
        return Capacity(int(data["streams"]), dict(data["facts"]), str(data["measured"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, BadRequest) as wrong:
        log.warning("%s cannot be used (%s: %s); measure again", path, type(wrong).__name__, wrong)
        return None


def save(
    engine: str,
    settings: EngineSettings,
    capacity: Capacity,
    *,
    folder: Path | None = None,
    machine: Machine | None = None,
) -> Path:
    """Keep it in place of an earlier one; gives the file. OSError if it cannot be written."""
    key = _key(engine, settings, machine or Machine.this())
    path = _path(key, folder)
    data = {
        "streams": capacity.streams,
        "measured": capacity.measured,
        "facts": dict(capacity.facts),
        "key": key,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)  # a server that reads meanwhile sees the old one or the new one, whole
    return path


def _key(engine: str, settings: EngineSettings, machine: Machine) -> dict[str, Json]:
    """All that the capacity was measured with, as JSON."""
    section = getattr(settings, engine, None)
    own = section.model_dump(mode="json") if isinstance(section, BaseModel) else {}
    ignored = _NO_MATTER.get(engine, ())
    return {
        "engine": engine,
        "settings": {name: value for name, value in own.items() if name not in ignored},
        "machine": {"cpus": machine.cpus, "cpu": machine.cpu, "gpus": list(machine.gpus)},
    }


def _path(key: dict[str, Json], folder: Path | None) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return (cache_folder() / "capacity" if folder is None else folder) / f"{key['engine']}-{digest}.json"


def _cpu_model() -> str:
    """As the system names it; platform.processor() is empty on many Linux systems."""
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _gpu_models() -> tuple[str, ...]:
    """Of NVIDIA's driver, without loading anything; none where it is not."""
    models = []
    for about in sorted(_GPUS.glob("*/information")):
        try:
            lines = about.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(models)
