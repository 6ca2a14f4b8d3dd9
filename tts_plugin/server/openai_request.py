"""SpeechRequest: what `POST /v1/audio/speech` may ask for, and which names of models it takes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tts_plugin.engine import Turn
from tts_plugin.errors import VoiceNotFound, did_you_mean
from tts_plugin.limits import MAX_SEED, SPEEDS, Latency
from tts_plugin.server.encoders import FORMATS, Format
from tts_plugin.server.openai_errors import BadParameter, ModelNotFound
from tts_plugin.voices import Voice, VoiceRegistry

# clients carry these in their code: each means whatever engine the voice has
ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
# OpenAI's own voices, which clients carry as defaults
THEIR_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
_TOO_LONG_A_NAME = 70  # characters of a wrong name that an error repeats
_NO_ENCODER = ("aac",)  # formats of OpenAI's that are not made here

StreamFormat = Literal["audio", "sse"]


class VoiceRef(BaseModel):
    """A voice as an object, the way OpenAI names custom ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str


class SpeechRequest(BaseModel):
    """The body. speed: of the voice's own pace. seed, latency: not OpenAI's, as in docs/protocol.md.

    voice: None is the server's default. instructions: taken and not followed; the answer says so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    input: str
    voice: str | VoiceRef | None = None
    instructions: str | None = None
    response_format: Format = "mp3"
    speed: Annotated[float, Field(ge=SPEEDS[0], le=SPEEDS[1])] = 1.0
    stream_format: StreamFormat = "audio"
    seed: Annotated[int | None, Field(ge=0, le=MAX_SEED)] = None
    latency: Latency = "balanced"

    @property
    def voice_id(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceRef) else self.voice

    @property
    def ignored(self) -> tuple[str, ...]:
        """Parameters that were given and have no effect here."""
        return ("instructions",) if self.instructions else ()

    def turn(self, voice: Voice) -> Turn:
        """The turn to speak; BadParameter for a speed that this voice's own pace does not leave room for."""
        pace = voice.speed * self.speed
        if not SPEEDS[0] <= pace <= SPEEDS[1]:
            low, high = (limit / voice.speed for limit in SPEEDS)
            raise BadParameter(
                "speed",
                f'voice "{voice.id}" is made at {voice.speed:g} times its pace; speed {self.speed:g} is '
                f"outside of {low:.2f} to {high:.2f}",
            )
        return Turn(voice, seed=self.seed, speed=pace, latency=self.latency)


def parse(body: bytes, max_chars: int) -> SpeechRequest:
    """The request, or BadParameter that names what is wrong with it."""
    try:
        request = SpeechRequest.model_validate_json(body)
    except ValidationError as wrong:
        raise _complaint(wrong) from None
    if not request.input.strip():
        raise BadParameter("input", "input is empty; there is nothing to speak")
    if len(request.input) > max_chars:
        raise BadParameter(
            "input",
            f"input has {len(request.input)} characters, at most {max_chars} are spoken at once; split it",
        )
    return request


def cast(request: SpeechRequest, registry: VoiceRegistry) -> Voice:
    """The voice asked for, checked against the model; may read files."""
    engines = model_names(registry)
    if request.model not in (*engines, *ALIASES):
        raise no_model(request.model, engines)
    wanted = request.voice_id
    voice = registry.default if wanted is None else _voice(wanted, registry)
    if request.model in ALIASES or voice.engine == request.model:
        return voice
    fitting = [one.id for one in registry.list() if one.engine == request.model]
    raise BadParameter(
        "voice",
        f'voice "{voice.id}" is spoken by model "{voice.engine}", not "{request.model}" '
        f"(its voices: {', '.join(fitting)})",
    )


def model_names(registry: VoiceRegistry) -> list[str]:
    """The engines that have a voice; may read files."""
    return sorted({voice.engine for voice in registry.list()})


def no_model(name: str, engines: Collection[str]) -> ModelNotFound:
    shown = name[:_TOO_LONG_A_NAME]
    return ModelNotFound("model", f'no model "{shown}"{did_you_mean(shown, [*engines, *ALIASES])}')


def _voice(wanted: str, registry: VoiceRegistry) -> Voice:
    try:
        return registry.get(wanted)
    except VoiceNotFound as unknown:
        if wanted not in THEIR_VOICES:
            raise
        raise VoiceNotFound(
            f"{unknown}; that one is OpenAI's: choose one of these, or leave voice out for the default"
        ) from None


def _complaint(wrong: ValidationError) -> BadParameter:
    first = wrong.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"]]
    param = where[0] if where else None
    if param is None:
        return BadParameter(None, f"the body should be a JSON object: {first['msg']}")
    if first["type"] == "extra_forbidden" and len(where) == 1:
        known = did_you_mean(param[:_TOO_LONG_A_NAME], SpeechRequest.model_fields)
        return BadParameter(param, f'unknown parameter "{param[:_TOO_LONG_A_NAME]}"{known}')
    if param == "response_format":
        return BadParameter(param, _no_format(first["input"]))
    if param == "stream_format":
        return BadParameter(param, f"stream_format is one of {', '.join(get_args(StreamFormat))}")
    return BadParameter(param, f"{param}: {first['msg']}")


def _no_format(given: Any) -> str:
    shown = str(given)[:_TOO_LONG_A_NAME]
    if shown in _NO_ENCODER:
        return f'response_format "{shown}" is not made here; mp3 or opus serve the same purpose'
    return f'no response_format "{shown}"{did_you_mean(shown, FORMATS)}'
