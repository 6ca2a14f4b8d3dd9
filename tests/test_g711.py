"""The G.711 tables, against CPython's audioop where this Python still has it and stored digests elsewhere."""

import hashlib
import warnings

import numpy as np
import pytest

from tts_plugin import g711

EVERY_SAMPLE = np.arange(-32768, 32768, dtype=np.int16)
EVERY_CODE = bytes(range(256))

# sha256 of audioop.lin2ulaw/lin2alaw over EVERY_SAMPLE and ulaw2lin/alaw2lin over EVERY_CODE
DIGESTS = {
    "mulaw": (
        "81d633c9e6972a18c74a58720b96cb8ca0bdd096d4060b646dd708c3b846019a",
        "3dab54339e520bb2c924826e3b72a917a2b612e9fd12fc867500f1d983a75827",
    ),
    "alaw": (
        "38488f6fd710f4686360edc4d38639f96c491595ef93f8eb8d62d5e07ca6ce7b",
        "e04788d110e58ff8c70c93b8480190d973e3b67876b6119abbaec766cc75c174",
    ),
}


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_tables_are_bit_exact_over_every_sample_and_code(law: g711.Law) -> None:
    encoded, decoded = DIGESTS[law]
    assert hashlib.sha256(g711.encode(EVERY_SAMPLE, law)).hexdigest() == encoded
    assert hashlib.sha256(g711.decode(EVERY_CODE, law).astype("<i2").tobytes()).hexdigest() == decoded


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_a_code_survives_a_round_trip(law: g711.Law) -> None:
    again = g711.decode(g711.encode(g711.decode(EVERY_CODE, law), law), law)
    np.testing.assert_array_equal(again, g711.decode(EVERY_CODE, law))


def test_silence_is_the_byte_the_standard_names() -> None:
    zero = np.zeros(1, dtype=np.int16)
    assert g711.encode(zero, "mulaw") == bytes([g711.MULAW_SILENCE])
    assert g711.encode(zero, "alaw") == bytes([g711.ALAW_SILENCE])


def test_stored_digests_are_those_of_audioop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        audioop = pytest.importorskip("audioop", reason="Python 3.13 has no audioop")
    raw = EVERY_SAMPLE.astype("<i2").tobytes()
    for law, encode, decode in (
        ("mulaw", audioop.lin2ulaw, audioop.ulaw2lin),
        ("alaw", audioop.lin2alaw, audioop.alaw2lin),
    ):
        assert hashlib.sha256(encode(raw, 2)).hexdigest() == DIGESTS[law][0]
        assert hashlib.sha256(decode(EVERY_CODE, 2)).hexdigest() == DIGESTS[law][1]
