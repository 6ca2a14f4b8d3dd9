"""AudioSocket's messages survive however TCP cuts them."""

from __future__ import annotations

import struct
from uuid import UUID

import numpy as np
import pytest

from agent.transports.audiosocket_wire import (
    HANGUP,
    KINDS,
    RATES,
    Message,
    Messages,
    NotAudioSocket,
    audio,
    digit,
    hello,
)

CALL = UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


def stream() -> tuple[bytes, list[Message]]:
    """A call of every kind of message, one of them unknown and one as long as they get."""
    pcm = np.arange(160, dtype=np.int16)
    unknown = struct.pack(">BH", 0x42, 5) + b"later"
    longest = struct.pack(">BH", 0x10, 65535) + bytes(65535)
    parts = [hello(CALL), audio(pcm, 8000), digit("5"), unknown, audio(pcm, 16000), longest, HANGUP]
    return b"".join(parts), [Message(part[0], part[3:]) for part in parts]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 320, 323, 4096, 200_000])
def test_messages_come_out_whole_however_they_are_cut(size: int) -> None:
    data, expected = stream()
    messages = Messages()
    got = [message for at in range(0, len(data), size) for message in messages.push(data[at : at + size])]
    assert got == expected


def test_the_uuid_is_the_call_s() -> None:
    (first,) = Messages().push(hello(CALL))
    assert UUID(bytes=first.payload) == CALL


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1", audio(np.zeros(160, np.int16), 8000), b"\x01\x00\x11", HANGUP]
)
def test_what_does_not_begin_with_a_uuid_is_refused_at_its_header(start: bytes) -> None:
    with pytest.raises(NotAudioSocket):
        Messages().push(start[:3])


def test_audio_goes_there_and_back_at_every_rate() -> None:
    for kind, rate in RATES.items():
        pcm = np.arange(-80, 80, dtype=np.int16)
        messages = Messages()
        messages.push(hello(CALL))
        (message,) = messages.push(audio(pcm, rate))
        assert (message.kind, KINDS[rate]) == (kind, kind)
        np.testing.assert_array_equal(message.pcm, pcm)


def test_samples_are_little_endian_and_lengths_big_endian() -> None:
    assert audio(np.array([1, 256], dtype=np.int16), 8000) == b"\x10\x00\x04\x01\x00\x00\x01"


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x01\x00\x02"])
def test_half_a_sample_is_dropped(payload: bytes) -> None:
    assert len(Message(0x10, payload).pcm) == len(payload) // 2
