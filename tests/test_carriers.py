"""What carriers sign, what they are answered, and how their start messages are read."""

from __future__ import annotations

import base64
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from agent.line import CallInfo
from agent.transports.carrier import Webhook
from agent.transports.dialect import Digit, Media, Played, Started
from agent.transports.plivo import Plivo, extra_headers
from agent.transports.telnyx import MAX_AGE_S, Telnyx
from agent.transports.twilio import Twilio
from tests.far_carrier import MANNERS, TELNYX_KEY
from tts_plugin.errors import BadRequest

# Twilio's vector is its documents' example; Plivo's signatures follow the algorithm that it publishes
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FORM = {
    "CallSid": "CA1234567890ABCDE",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
    "Caller": "+14158675309",
}
TWILIO_SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="
PLIVO = [
    (
        "https://phone.example.org/plivo/voice",
        {"CallUUID": "u-0", "To": "+15550100", "From": "+15550111"},
        "2Bhm6e4fZfPRei8uwVM0Qclgas8Da9w/LxUBKpEkbuw=",
    ),
    (
        "https://phone.example.org/plivo/voice?b=2&a=1",
        {"CallUUID": "u-0", "CallerName": "Ann Lee"},
        "TShiVxwcmaBRD1EfvZeKoVdq9psgiwAwLka8dqnIjUI=",
    ),
    ("https://phone.example.org/plivo/document/x", {}, "5hfXrSvfuig+LHODWz3MWKm67fyjo1vuB9YRctJAZ5I="),
]


def webhook(url: str, form: dict[str, str], **headers: str) -> Webhook:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Webhook(url, named, urlencode(form).encode(), tuple(form.items()))


def test_twilios_own_example_is_signed() -> None:
    twilio = Twilio("12345")
    assert twilio.signed(webhook(TWILIO_URL, TWILIO_FORM, x_twilio_signature=TWILIO_SIGNATURE))


@pytest.mark.parametrize(
    ("url", "form", "secret"),
    [
        (TWILIO_URL.replace("bar=2", "bar=3"), TWILIO_FORM, "12345"),
        (TWILIO_URL, {**TWILIO_FORM, "Digits": "1235"}, "12345"),
        (TWILIO_URL, TWILIO_FORM, "12346"),
    ],
)
def test_another_address_body_or_secret_is_not(url: str, form: dict[str, str], secret: str) -> None:
    assert not Twilio(secret).signed(webhook(url, form, x_twilio_signature=TWILIO_SIGNATURE))
    assert not Twilio(secret).signed(webhook(url, form))
    assert not Twilio(secret).signed(webhook(url, form, x_twilio_signature="\udcff"))


@pytest.mark.parametrize(("url", "form", "signature"), PLIVO)
def test_plivos_signatures_are_told_from_others(url: str, form: dict[str, str], signature: str) -> None:
    def signed(given: str, nonce: str = "5a1", url: str = url) -> bool:
        hook = webhook(url, form, x_plivo_signature_v3=given, x_plivo_signature_v3_nonce=nonce)
        return Plivo("12345").signed(hook)

    assert signed(signature)
    assert signed(f"c29tZXRoaW5n, {signature}")  # of two tokens, while one takes over from the other
    assert not signed(signature, nonce="5a2")
    assert not signed(signature, url=f"{url}/")
    assert not signed("")


def test_telnyxs_key_time_and_body_are_checked() -> None:
    key = base64.b64encode(TELNYX_KEY.public_key().public_bytes_raw()).decode()
    form, now = {"CallSid": "v3:x"}, time.time()

    def signed(at: str, body: dict[str, str], signature: bytes, public_key: str = key) -> bool:
        telnyx = Telnyx(public_key, clock=lambda: now)
        given = base64.b64encode(signature).decode()
        return telnyx.signed(webhook("https://x/", body, telnyx_timestamp=at, telnyx_signature_ed25519=given))

    at, late = str(int(now)), str(int(now - MAX_AGE_S - 2))
    right = TELNYX_KEY.sign(f"{at}|CallSid=v3%3Ax".encode())
    assert signed(at, form, right)
    assert not signed(at, {"CallSid": "v3:y"}, right)
    assert not signed(str(int(now) + 1), form, right)
    assert not signed(late, form, TELNYX_KEY.sign(f"{late}|CallSid=v3%3Ax".encode()))
    assert not signed("soon", form, right)
    assert not signed(at, form, right, public_key="c2hvcnQ=")
    assert not signed(at, form, right, public_key="no key")


@pytest.mark.parametrize("kind", MANNERS)
def test_a_webhook_tells_who_calls(kind: Any) -> None:
    manners = MANNERS[kind]
    carrier = manners.make("http://127.0.0.1")
    number = manners.form.get("CallSid") or manners.form["CallUUID"]
    arrival = carrier.arrival(webhook("https://x/", manners.form))
    assert arrival.call == CallInfo(number, "+15550111", "+15550100")
    outbound = {**manners.form, "Direction": "outbound" if kind == "plivo" else "outbound-api", "From": ""}
    assert carrier.arrival(webhook("https://x/", outbound)).call == CallInfo(number, None, "+15550100", True)
    with pytest.raises(BadRequest, match="CallUUID" if kind == "plivo" else "CallSid"):
        carrier.arrival(webhook("https://x/", {"AccountSid": "AC0"}))


@pytest.mark.parametrize("kind", MANNERS)
def test_every_message_of_a_carrier_is_read(kind: Any) -> None:
    manners = MANNERS[kind]
    dialect = manners.make("http://127.0.0.1").dialect
    assert dialect.read(manners.start("S1", "C1", "a1b2"), None) == Started("S1", "C1", "a1b2")
    at = 1_705_312_200_040 if kind == "plivo" else 40
    assert dialect.read(manners.media("S1", 2, "/////w=="), "S1") == Media(b"\xff" * 4, at)
    assert dialect.read(manners.digit("S1", "#"), "S1") == Digit("#")
    assert dialect.read(manners.mark("S1", "m1"), "S1") == Played("m1")
    assert dialect.read({"event": "connected"}, None) is None
    assert dialect.read({"event": "clearedAudio", dialect.stream: "S1"}, "S1") is None


@pytest.mark.parametrize("kind", MANNERS)
def test_what_a_message_lacks_is_said(kind: Any) -> None:
    manners = MANNERS[kind]
    dialect = manners.make("http://127.0.0.1").dialect
    start = manners.start("S1", "C1", "t")
    wide = {**start, "start": {**start["start"], dialect.media_format: {"encoding": "audio/x-l16"}}}
    fast = {
        **start,
        "start": {
            **start["start"],
            dialect.media_format: {"encoding": min(dialect.encodings), dialect.rate: 16000},
        },
    }
    for message, complaint in (
        ({"event": "start"}, "has start"),
        ({"event": "start", "start": []}, dialect.call),
        (wide, "should be"),
        (fast, "8000 Hz"),
        (manners.media("S2", 0, "/w=="), "another stream"),
        ({"event": "media"}, "has media"),
        ({"event": "media", "media": {"payload": "?"}}, "base64"),
        ({"event": "dtmf", "dtmf": {"digit": "11"}}, "digit"),
        ({"event": dialect.played[0]}, "has"),
    ):
        with pytest.raises(BadRequest, match=complaint):
            dialect.read(message, "S1")


@pytest.mark.parametrize(
    "told",
    ["token=a1b2;other=1", "X-PH-token=a1b2", "{token: a1b2}", '{"Token": "a1b2"}', {"X-PH-token": "a1b2"}],
)
def test_plivos_extra_headers_are_read_however_they_are_written(told: object) -> None:
    assert extra_headers({"extra_headers": told})["token"] == "a1b2"


def test_no_secret_is_in_a_carriers_repr() -> None:
    shown = repr([Twilio("SECRET"), Telnyx("key", "SECRET"), Plivo("SECRET", "id")])
    assert "SECRET" not in shown
