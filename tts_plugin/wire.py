"""The messages between an engine server and its clients; docs/protocol.md explains them to other languages.

One websocket carries many contexts. Control is JSON text, one message a frame; audio is binary.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from tts_plugin.errors import BadRequest
from tts_plugin.limits import LEAD_S, MAX_LEAD_S, MAX_SEED, RATES, SPEEDS, Latency

PATH = "/v1/stream"

Encoding = Literal["pcm_s16le", "mulaw", "alaw"]
ContextId = Annotated[int, Field(ge=1, le=0xFFFF_FFFF, strict=True)]

_HEADER = struct.Struct("!IQ")


class Message(BaseModel):
    """A message; unknown keys are an error on both sides."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- client to server


class Start(Message):
    """Open a context. rate: Hz of the audio; None = the engine's own. lead_s: None = as fast as it goes."""

    type: Literal["start"] = "start"
    context: ContextId
    voice: str | None = None
    encoding: Encoding = "pcm_s16le"
    rate: int | None = Field(default=None, ge=RATES[0], le=RATES[1])
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    speed: float | None = Field(default=None, ge=SPEEDS[0], le=SPEEDS[1])
    latency: Latency = "balanced"
    lead_s: float | None = Field(default=LEAD_S, gt=0, le=MAX_LEAD_S)


class Text(Message):
    """More text of the turn; deltas may cut words anywhere."""

    type: Literal["text"] = "text"
    context: ContextId
    text: str


class Flush(Message):
    """Speak what has been pushed without waiting for the end of the sentence."""

    type: Literal["flush"] = "flush"
    context: ContextId


class End(Message):
    """No more text; `done` follows the last sample."""

    type: Literal["end"] = "end"
    context: ContextId


class Cancel(Message):
    """Stop now. After `cancelled` not one byte of this context follows."""

    type: Literal["cancel"] = "cancel"
    context: ContextId


ClientMessage = Annotated[Start | Text | Flush | End | Cancel, Field(discriminator="type")]

# --- server to client


class Started(Message):
    """The context is open. rate: Hz of its audio."""

    type: Literal["started"] = "started"
    context: ContextId
    voice: str
    engine: str
    language: str
    rate: int
    encoding: Encoding


class SegmentSpan(Message):
    """Which samples speak which part of the turn's text.

    Sent before the segment's first sample, with `sample_to` null if its length is not known yet, and
    again when it is. Text offsets count Unicode code points of the text as pushed.
    """

    type: Literal["segment"] = "segment"
    context: ContextId
    text_from: int
    text_to: int
    sample_from: int
    sample_to: int | None


class Done(Message):
    """Everything has been spoken and sent. timeline: see docs/protocol.md. foreign: a sample of what was
    left out because the voice does not speak its language."""

    type: Literal["done"] = "done"
    context: ContextId
    timeline: dict[str, Any]
    foreign: str = ""


class Cancelled(Message):
    """The context is over and the engine is free. orphan_ms: audio made but not yet due at the cancel."""

    type: Literal["cancelled"] = "cancelled"
    context: ContextId
    orphan_ms: float


class Error(Message):
    """The context failed and is over; without a context, the message could not be read.

    retry_after_s: of "overloaded", when to try again if that is known; the key is there only then.
    """

    type: Literal["error"] = "error"
    context: ContextId | None = None
    code: str
    message: str
    retryable: bool
    retry_after_s: float | None = Field(default=None, ge=0)

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, as_ever: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Clients of before do not know the key."""
        told: dict[str, Any] = as_ever(self)
        if self.retry_after_s is None:
            told.pop("retry_after_s", None)
        return told


ServerMessage = Annotated[
    Started | SegmentSpan | Done | Cancelled | Error,
    Field(discriminator="type"),
]

_CLIENT: TypeAdapter[Start | Text | Flush | End | Cancel] = TypeAdapter(ClientMessage)
_SERVER: TypeAdapter[Started | SegmentSpan | Done | Cancelled | Error] = TypeAdapter(ServerMessage)


def parse_client(data: str | bytes) -> Start | Text | Flush | End | Cancel:
    """The message a client sent, or BadRequest that says what is wrong with it."""
    try:
        return _CLIENT.validate_json(data)
    except ValidationError as wrong:
        raise BadRequest(_reason(wrong)) from None


def parse_server(data: str | bytes) -> Started | SegmentSpan | Done | Cancelled | Error:
    """The message a server sent, or BadRequest."""
    try:
        return _SERVER.validate_json(data)
    except ValidationError as wrong:
        raise BadRequest(_reason(wrong)) from None


def pack_audio(context: int, sample: int, payload: bytes) -> bytes:
    """Binary frame: context (uint32), index of the first sample (uint64), both big-endian, then audio."""
    return _HEADER.pack(context, sample) + payload


def unpack_audio(data: bytes) -> tuple[int, int, bytes]:
    """(context, index of the first sample, audio) of a binary frame, or BadRequest if it is too short."""
    if len(data) < _HEADER.size:
        raise BadRequest(f"a binary frame has at least {_HEADER.size} bytes, this one {len(data)}")
    context, sample = _HEADER.unpack_from(data)
    return context, sample, data[_HEADER.size :]


def _reason(wrong: ValidationError) -> str:
    first = wrong.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])
