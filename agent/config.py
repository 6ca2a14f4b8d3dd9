"""The settings of the agent side: the YAML's `agent:` and `phone:` sections, the environment, arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tts_plugin.config import (
    ARGUMENTS,
    ENVIRONMENT,
    Section,
    bundled,
    config_file,
    layered,
    read_config,
    variable,
)
from tts_plugin.strict_yaml import BadYaml, Document, Json, Problem, Source

INSTRUCTIONS = (
    "You are a friendly voice assistant on a call. Answer in one or two short spoken sentences, "
    "without lists, markup or emoji."
)
GREETING = "Hello! How can I help you today?"  # where neither the settings nor a FAQ have one
DEFAULT_LLM = "gpt-4.1-mini"

EARS = "SPARKVOICE_EARS"  # set by a worker for its jobs, not by people

Seconds = Annotated[float, Field(ge=0, le=10)]


class AgentSettings(Section):
    """Who the agent is and how it takes turns.

    instructions: for a language model. greeting: said at the start of a call; empty says nothing, None says
    the FAQ's where the FAQ answers and GREETING where a language model does. voice: id of its voice (None:
    the engine's default). faq: the answers without a language model (None: the bundled ones). ears_model:
    folder of a faster-whisper model (None: the bundled one). min_silence_s: silence that ends the caller's
    speech. endpointing_s, max_endpointing_s: least and longest wait before the turn is the agent's.
    false_interruption_s: silence after an interruption without words until the agent goes on. echo_guard:
    whether the agent's own echo is kept from interrupting it.
    """

    instructions: Annotated[str, Field(min_length=1)] = INSTRUCTIONS
    greeting: str | None = None
    voice: str | None = None
    faq: Path | None = None
    ears_model: Path | None = None
    min_silence_s: Annotated[float, Field(ge=0.1, le=3)] = 0.28
    endpointing_s: Seconds = 0.15
    max_endpointing_s: Seconds = 1.0
    false_interruption_s: Annotated[float, Field(gt=0, le=10)] = 1.0
    echo_guard: bool = True

    @property
    def faq_source(self) -> Source:
        """The file that answers without a language model."""
        return bundled("configs") / "faq.yaml" if self.faq is None else self.faq


class PhoneSettings(Section):
    """The phone's section; it has no settings yet."""


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """A language model behind an OpenAI-compatible API. base_url: None is OpenAI's own."""

    model: str
    base_url: str | None
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the agent side can be told. llm: None answers from the FAQ. ears: the socket of a recogniser
    that this worker's jobs share; None starts one of one's own."""

    agent: AgentSettings
    phone: PhoneSettings
    llm: LlmSettings | None
    ears: Path | None = None


def load_settings(
    path: Path | None = None,
    *,
    arguments: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from `path` (None: SPARKVOICE_CONFIG's, else the bundled configs/default.yaml), or ConfigError
    with file and line.

    Precedence: arguments (of the agent section) > SPARKVOICE_VOICE, SPARKVOICE_FAQ and
    SPARKVOICE_EARS_MODEL > YAML > default. OPENAI_API_KEY or LLM_BASE_URL asks for a language model,
    LLM_MODEL names it.
    """
    env = os.environ if environ is None else environ
    document = read_config(path or config_file(environ))
    told = {
        key: value
        for key in ("voice", "faq", "ears_model")
        if (value := variable(env, f"SPARKVOICE_{key.upper()}"))
    }
    layers: dict[str, Mapping[str, Json]] = {ENVIRONMENT: told, ARGUMENTS: arguments or {}}
    agent = layered(AgentSettings, "agent", document, layers, paths=("faq", "ears_model"))
    _require_there("faq", agent.faq, os.path.isfile, "file", document, layers)
    _require_there("ears_model", agent.ears_model, os.path.isdir, "folder", document, layers)
    ears = variable(env, EARS)
    return Settings(
        agent, layered(PhoneSettings, "phone", document, {}), _llm(env), None if ears is None else Path(ears)
    )


def tell_jobs(engine_url: str, engine_token: str | None, ears: Path | None) -> None:
    """Put into the environment what the processes that this one starts are to find there."""
    os.environ["SPARKVOICE_URL"] = engine_url
    if engine_token is not None:
        os.environ["SPARKVOICE_TOKEN"] = engine_token
    if ears is not None:
        os.environ[EARS] = str(ears)
    # neither of the models that come with livekit-agents is ours to use
    os.environ["LIVEKIT_AGENTS_PRELOAD_LOCAL_INFERENCE"] = "0"


def _require_there(
    key: str,
    path: Path | None,
    is_there: Callable[[Path], bool],
    what: str,
    document: Document,
    layers: Mapping[str, Mapping[str, Json]],
) -> None:
    """Raise ConfigError that names the layer, in a file also the line, whose path leads nowhere."""
    if path is None or is_there(path):
        return
    message = f"agent.{key}: there is no {what} {path}"
    above = [layer for layer, values in layers.items() if key in values]
    raise BadYaml([Problem(above[-1], None, message) if above else document.problem(("agent", key), message)])


def _llm(env: Mapping[str, str]) -> LlmSettings | None:
    base_url, api_key = variable(env, "LLM_BASE_URL"), variable(env, "OPENAI_API_KEY")
    if base_url is None and api_key is None:
        return None
    # a server of one's own often asks for no key, but the client insists on some text
    return LlmSettings(variable(env, "LLM_MODEL") or DEFAULT_LLM, base_url, api_key or "none")
