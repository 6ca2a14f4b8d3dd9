"""Dialect: how a carrier writes the messages of its media websocket, as a table of names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent.line import DIGITS
from tts_plugin.errors import BadRequest

Kind = Literal["twilio", "telnyx", "plivo"]
Json = dict[str, Any]  # a JSON object; its values are checked where they are read

TOKEN = "token"  # the parameter that carries the ticket's token


@dataclass(frozen=True, slots=True)
class Started:
    """The stream begins. token: what the answer to the webhook has handed over."""

    stream: str
    call: str
    token: str


@dataclass(frozen=True, slots=True)
class Media:
    """mu-law of the caller. at_ms: where it begins on the carrier's clock, if that is told."""

    data: bytes
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Digit:
    digit: str


@dataclass(frozen=True, slots=True)
class Played:
    """All that was sent before this mark has been played, or was cleared."""

    mark: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The carrier ends the stream."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """The carrier says what is wrong with what it was sent."""

    message: str


Heard = Started | Media | Digit | Played | Stopped | Complaint


@dataclass(frozen=True, slots=True)
class Dialect:
    """One carrier's names.

    stream, call: of the ids of stream and call. media_format, rate, encodings: where the start tells how the
    audio is coded, and what is mu-law there. parameters: reads those of the answer document from a start
    message. played: the event and the key path of a mark's name when it comes back. send_media (of base64),
    send_mark, send_clear: the messages to the stream.
    """

    kind: Kind
    stream: str
    call: str
    media_format: str
    rate: str
    encodings: frozenset[str]
    parameters: Callable[[Json], Mapping[str, str]]
    played: tuple[str, ...]
    send_media: Callable[[str, str], Json]
    send_mark: Callable[[str, str], Json]
    send_clear: Callable[[str], Json]

    def read(self, message: Json, stream: str | None) -> Heard | None:
        """What a message says; None if it is none of ours. stream: the one expected, once there is one.

        BadRequest says what is wrong with it.
        """
        event = message.get("event")
        if event == "start":
            return self._start(message)
        if stream is not None and message.get(self.stream, stream) != stream:
            raise BadRequest(f"a message of another stream than this connection's ({self.stream})")
        if event == self.played[0]:
            return Played(str(_at(message, self.played[1:])))
        match event:
            case "media":
                return self._media(_at(message, ("media",)))
            case "dtmf":
                digit = str(_at(message, ("dtmf", "digit"))).upper()
                if digit not in DIGITS:
                    raise BadRequest("a dtmf digit is one of 0-9, *, #, A-D")
                return Digit(digit)
            case "stop":
                return Stopped()
            case "error":
                return Complaint(_shown(message.get("payload", message), 200))
            case _:
                return None  # "connected", "clearedAudio" and what carriers will think of

    def _start(self, message: Json) -> Started:
        start = _at(message, ("start",))
        stream = start.get(self.stream, message.get(self.stream)) if isinstance(start, dict) else None
        call = start.get(self.call) if isinstance(start, dict) else None
        if not isinstance(stream, str) or not isinstance(call, str):
            raise BadRequest(f"a start has {self.stream} and {self.call}")
        form = start.get(self.media_format)
        if not isinstance(form, dict) or form.get("encoding") not in self.encodings:
            raise BadRequest(
                f"the stream should be {' or '.join(sorted(self.encodings))}, not {_shown(form, 80)}"
            )
        if str(form.get(self.rate)) != "8000":
            raise BadRequest(f"the stream should have 8000 Hz, not {_shown(form.get(self.rate), 20)}")
        return Started(stream, call, self.parameters(message).get(TOKEN, ""))

    def _media(self, media: object) -> Media | None:
        if not isinstance(media, dict) or not isinstance(media.get("payload"), str):
            raise BadRequest("a media message has a payload")
        if media.get("track", "inbound") not in ("inbound", "inbound_track"):
            return None
        try:
            data = base64.b64decode(media["payload"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest("a payload is base64") from error
        at = str(media.get("timestamp", ""))
        return Media(data, int(at) if at.isascii() and at.isdigit() and len(at) < 16 else None)


def named(value: object) -> Mapping[str, str]:
    """The parameters of a JSON object; none of anything else."""
    if not isinstance(value, dict):
        return {}
    return {key: one for key, one in value.items() if isinstance(one, str)}


def _shown(value: object, most: int) -> str:
    """A part of a message as it can be put into a log or a close frame: one line of ASCII."""
    return ascii(value)[:most]


def _at(message: Json, path: tuple[str, ...]) -> Any:  # Any: a part of JSON, checked by who asked for it
    part: object = message
    for key in path:
        part = part.get(key) if isinstance(part, dict) else None
    if part is None:
        raise BadRequest(f"a {_shown(message.get('event'), 20)} message has {'.'.join(path)}")
    return part
