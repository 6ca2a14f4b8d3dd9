"""G.711: 16-bit samples to mu-law and A-law bytes and back, as tables built from the standard's formulas.

ITU-T G.711; the decision values are those of the reference 16-bit implementations, so both tables equal
CPython's old audioop over all 65536 inputs and 256 codes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import Pcm

Law = Literal["mulaw", "alaw"]

MULAW_SILENCE = 0xFF
ALAW_SILENCE = 0xD5


def _mulaw_decoded() -> Pcm:
    """Every code's sample: inverted bits are sign, 3 of exponent, 4 of mantissa over a bias of 33 << 2."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code & 0x70) >> 4)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _mulaw_encoded() -> NDArray[np.uint8]:
    """The code of every 16-bit sample, indexed by the sample as unsigned."""
    sample = np.arange(65536, dtype=np.int32).astype(np.uint16).astype(np.int16).astype(np.int32)
    # the reference drops two bits with an arithmetic shift before it takes the magnitude
    quarter = sample >> 2
    magnitude = np.minimum(np.abs(quarter), 8158) + 33  # 8191: the last value of the last chord
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    mantissa = (magnitude >> (exponent + 1)) & 0x0F
    code = (exponent << 4) | mantissa
    return np.asarray(np.where(quarter < 0, code ^ 0x7F, code ^ 0xFF), dtype=np.uint8)


def _alaw_decoded() -> Pcm:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent = (code & 0x70) >> 4
    step = (code & 0x0F) << 4
    magnitude = np.where(exponent == 0, step + 8, (step + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _alaw_encoded() -> NDArray[np.uint8]:
    sample = np.arange(65536, dtype=np.int32).astype(np.uint16).astype(np.int16).astype(np.int32)
    eighth = sample >> 3  # 13 bits, arithmetic shift
    magnitude = np.where(eighth >= 0, eighth, -eighth - 1)
    exponent = np.where(magnitude < 32, 0, np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4)
    mantissa = np.where(exponent < 2, magnitude >> 1, magnitude >> exponent) & 0x0F
    return (((exponent << 4) | mantissa) ^ np.where(eighth >= 0, 0xD5, 0x55)).astype(np.uint8)


_ENCODED: dict[Law, NDArray[np.uint8]] = {"mulaw": _mulaw_encoded(), "alaw": _alaw_encoded()}
_DECODED: dict[Law, Pcm] = {"mulaw": _mulaw_decoded(), "alaw": _alaw_decoded()}


def encode(pcm: Pcm, law: Law) -> bytes:
    """One byte a sample."""
    return _ENCODED[law][pcm.view(np.uint16)].tobytes()


def decode(data: bytes, law: Law) -> Pcm:
    """One sample a byte."""
    return _DECODED[law][np.frombuffer(data, dtype=np.uint8)]
