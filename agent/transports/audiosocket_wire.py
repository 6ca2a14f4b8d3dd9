"""AudioSocket's wire: a byte of kind, two of length (big endian), the payload; https://docs.asterisk.org/
Configuration/Channel-Drivers/AudioSocket. Sans-IO."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from uuid import UUID

from tts_plugin.audio import Pcm, bytes_of, samples_of

HEADER = struct.Struct(">BH")


class Kind(IntEnum):
    """What a message is; audio has one kind a rate, see RATES."""

    HANGUP = 0x00
    UUID = 0x01
    DTMF = 0x03
    ERROR = 0xFF


# Hz by kind. An Asterisk from before October 2025 knows 0x10 alone, whatever the rate
RATES: Mapping[int, int] = MappingProxyType(
    {
        0x10: 8000,
        0x11: 12000,
        0x12: 16000,
        0x13: 24000,
        0x14: 32000,
        0x15: 44100,
        0x16: 48000,
        0x17: 96000,
        0x18: 192000,
    }
)
KINDS: Mapping[int, int] = MappingProxyType({rate: kind for kind, rate in RATES.items()})


class NotAudioSocket(Exception):
    """Whoever has connected does not begin with a call's UUID."""


@dataclass(frozen=True, slots=True)
class Message:
    """kind: a Kind, a key of RATES, or one that this version does not know."""

    kind: int
    payload: bytes

    @property
    def pcm(self) -> Pcm:
        """The samples of an audio message; half a sample at the end is dropped."""
        return samples_of(self.payload[: len(self.payload) & ~1])


class Messages:
    """Bytes as they come in, messages out. The first one is the call's UUID, or NotAudioSocket is raised
    as soon as its header shows otherwise."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begun = False

    def push(self, data: bytes) -> list[Message]:
        self._data += data
        messages = []
        at = 0
        while len(self._data) >= at + HEADER.size:
            kind, length = HEADER.unpack_from(self._data, at)
            if not self._begun:
                if (kind, length) != (Kind.UUID, 16):
                    raise NotAudioSocket(f"a call begins with its UUID, not with kind 0x{kind:02x}")
                self._begun = True
            end = at + HEADER.size + length
            if len(self._data) < end:
                break
            messages.append(Message(kind, bytes(self._data[at + HEADER.size : end])))
            at = end
        del self._data[:at]
        return messages


def audio(pcm: Pcm, rate: int) -> bytes:
    """A message of at most 32767 samples at `rate` Hz, one of RATES."""
    payload = bytes_of(pcm)
    return HEADER.pack(KINDS[rate], len(payload)) + payload


def hello(uuid: UUID) -> bytes:
    """What Asterisk says first."""
    return HEADER.pack(Kind.UUID, 16) + uuid.bytes


def digit(key: str) -> bytes:
    """What Asterisk says when a key was pressed."""
    return HEADER.pack(Kind.DTMF, 1) + key.encode("ascii")


HANGUP = HEADER.pack(Kind.HANGUP, 0)
