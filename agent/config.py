"""The settings of the agent side: the YAML's `agent:` and `phone:` sections, the environment, arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from agent.desk.settings import DeskSettings
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

_DESK_PATHS = ("desk.log", "desk.recording.folder", "desk.languages.*.faq", "desk.languages.*.ears_model")
EARS, CALLS = "SPARKVOICE_EARS", "SPARKVOICE_CALLS"  # set by a worker for its jobs, not by people

Seconds = Annotated[float, Field(ge=0, le=10)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Secret = Annotated[str | None, Field(min_length=1, repr=False)]
Url = Annotated[str, Field(pattern=r"^https?://[^?#\s]+[^/?#\s]$")]


def _public(url: str) -> str:
    """Without the slash at its end, which people paste."""
    if re.fullmatch(r"https?://[^/?#\s]+/?", url) is None:
        raise ValueError(f'"{url}" should be like https://phone.example.org, without a path')
    return url.removesuffix("/")


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


class TwilioSettings(Section):
    """auth_token: of the account; signs webhooks, opens the REST interface. api: that interface's address."""

    auth_token: Secret = None
    api: Url = "https://api.twilio.com"


class TelnyxSettings(Section):
    """public_key: checks webhooks. api_key: opens the REST interface. api: that interface's address."""

    public_key: Annotated[str | None, Field(min_length=1)] = None
    api_key: Secret = None
    api: Url = "https://api.telnyx.com/v2"


class PlivoSettings(Section):
    """auth_token: signs webhooks, opens the REST interface together with auth_id. api: its address."""

    auth_id: Annotated[str | None, Field(min_length=1)] = None
    auth_token: Secret = None
    api: Url = "https://api.plivo.com/v1"


class PhoneSettings(Section):
    """The telephone's doors.

    port: 0 takes a free one. public_url: where carriers reach this server, https without a path; their
    signatures cover it. max_calls: at once, over all transports. audiosocket: the port for Asterisk (None: no
    such listener), on `host`; asterisks: addresses or networks besides this machine that may connect there.
    metrics_port: where a LiveKit worker shows its calls' metrics, on `host` (None: nowhere).
    unsigned: carriers without a secret are served, too; on loopback, to develop.
    desk: what a customer-service desk does beside answering; None is an agent and nothing else.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Port = 8090
    public_url: Annotated[str, AfterValidator(_public)] | None = None
    max_calls: Annotated[int, Field(ge=1, le=1000)] = 8
    audiosocket: Port | None = None
    metrics_port: Port | None = None
    asterisks: tuple[str, ...] = ()
    unsigned: bool = False
    twilio: TwilioSettings = TwilioSettings()
    telnyx: TelnyxSettings = TelnyxSettings()
    plivo: PlivoSettings = PlivoSettings()
    desk: DeskSettings | None = None


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """A language model behind an OpenAI-compatible API. base_url: None is OpenAI's own."""

    model: str
    base_url: str | None
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the agent side can be told. llm: None answers from the FAQ. ears: the socket of a recogniser
    that this worker's jobs share; None starts one of one's own. calls: the socket that counts their calls."""

    agent: AgentSettings
    phone: PhoneSettings
    llm: LlmSettings | None
    ears: Path | None = None
    calls: Path | None = None


def load_settings(
    path: Path | None = None,
    *,
    arguments: Mapping[str, Json] | None = None,
    phone: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from `path` (None: SPARKVOICE_CONFIG's, else the bundled configs/default.yaml), or ConfigError
    with file and line.

    Precedence: arguments (of the agent section), phone (of that one) > SPARKVOICE_VOICE, SPARKVOICE_FAQ,
    SPARKVOICE_EARS_MODEL and the carriers' secrets > YAML > default. OPENAI_API_KEY or LLM_BASE_URL asks
    for a language model, LLM_MODEL names it.
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
    _require_there(("agent", "faq"), agent.faq, os.path.isfile, "file", document, layers)
    _require_there(("agent", "ears_model"), agent.ears_model, os.path.isdir, "folder", document, layers)
    phone_layers: dict[str, Mapping[str, Json]] = {ENVIRONMENT: _secrets(env), ARGUMENTS: phone or {}}
    telephone = layered(PhoneSettings, "phone", document, phone_layers, paths=_DESK_PATHS)
    for name, language in telephone.desk.languages.items() if telephone.desk else ():
        place = ("phone", "desk", "languages", name)
        _require_there((*place, "faq"), language.faq, os.path.isfile, "file", document, {})
        _require_there((*place, "ears_model"), language.ears_model, os.path.isdir, "folder", document, {})
    ears, calls = variable(env, EARS), variable(env, CALLS)
    return Settings(
        agent,
        telephone,
        _llm(env),
        None if ears is None else Path(ears),
        None if calls is None else Path(calls),
    )


def _secrets(env: Mapping[str, str]) -> dict[str, Json]:
    """SPARKVOICE_TWILIO_AUTH_TOKEN and so on: what proves to carriers who we are, and to us who they are."""
    found: dict[str, Json] = {}
    for carrier, key in (
        ("twilio", "auth_token"),
        ("telnyx", "public_key"),
        ("telnyx", "api_key"),
        ("plivo", "auth_id"),
        ("plivo", "auth_token"),
    ):
        if value := variable(env, f"SPARKVOICE_{carrier.upper()}_{key.upper()}"):
            found.setdefault(carrier, {})[key] = value
    return found


def tell_jobs(engine_url: str, engine_token: str | None, ears: Path | None, calls: Path | None) -> None:
    """Put into the environment what the processes that this one starts are to find there."""
    os.environ["SPARKVOICE_URL"] = engine_url
    if engine_token is not None:
        os.environ["SPARKVOICE_TOKEN"] = engine_token
    if ears is not None:
        os.environ[EARS] = str(ears)
    if calls is not None:
        os.environ[CALLS] = str(calls)
    # neither of the models that come with livekit-agents is ours to use
    os.environ["LIVEKIT_AGENTS_PRELOAD_LOCAL_INFERENCE"] = "0"


def _require_there(
    place: tuple[str, ...],
    path: Path | None,
    is_there: Callable[[Path], bool],
    what: str,
    document: Document,
    layers: Mapping[str, Mapping[str, Json]],
) -> None:
    """Raise ConfigError that names the layer, in a file also the line, whose path leads nowhere."""
    if path is None or is_there(path):
        return
    message = f"{'.'.join(place)}: there is no {what} {path}"
    above = [layer for layer, values in layers.items() if place[-1] in values]
    raise BadYaml([Problem(above[-1], None, message) if above else document.problem(place, message)])


def _llm(env: Mapping[str, str]) -> LlmSettings | None:
    base_url, api_key = variable(env, "LLM_BASE_URL"), variable(env, "OPENAI_API_KEY")
    if base_url is None and api_key is None:
        return None
    # a server of one's own often asks for no key, but the client insists on some text
    return LlmSettings(variable(env, "LLM_MODEL") or DEFAULT_LLM, base_url, api_key or "none")
