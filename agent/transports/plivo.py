"""Plivo: its XML, webhooks signed with HMAC-SHA256 (V3), and the audio streaming dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit
from xml.sax.saxutils import escape

import aiohttp

from agent.line import CallInfo
from agent.transports.carrier import (
    Arrival,
    Publish,
    RestFailed,
    Webhook,
    basic,
    dialled,
    document,
    element,
    rest,
    same_hmac,
)
from agent.transports.dialect import TOKEN, Dialect, Json, named

API = "https://api.plivo.com/v1"
AUTH_ID = "SPARKVOICE_PLIVO_AUTH_ID"  # the variables' names
AUTH_TOKEN = "SPARKVOICE_PLIVO_AUTH_TOKEN"

_AROUND = " \t{}\"'"


def extra_headers(message: Json) -> Mapping[str, str]:
    """The answer document's extraHeaders, as a start message gives them back, without case or "X-PH-"."""
    told = message.get("extra_headers")
    pairs = _pairs(told) if isinstance(told, str) else named(told).items()
    return {key.lower().removeprefix("x-ph-"): value for key, value in pairs}


def _pairs(told: str) -> Iterator[tuple[str, str]]:
    """ "a=1;b=2" by the reference, "{a: 1, b: 2}" on the wire of some; both are read, in time that grows as
    their length."""
    for part in re.split("[;,]", told):
        key, _, value = part.replace(":", "=", 1).partition("=")
        yield key.strip(_AROUND), value.strip(_AROUND)


DIALECT = Dialect(
    kind="plivo",
    stream="streamId",
    call="callId",
    media_format="mediaFormat",
    rate="sampleRate",
    encodings=frozenset({"audio/x-mulaw"}),
    parameters=extra_headers,
    played=("playedStream", "name"),
    send_media=lambda _stream, data: {
        "event": "playAudio",
        "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": data},
    },
    send_mark=lambda stream, mark: {"event": "checkpoint", "streamId": stream, "name": mark},
    send_clear=lambda stream: {"event": "clearAudio", "streamId": stream},
)
STREAM = (
    ("bidirectional", "true"),
    ("keepCallAlive", "true"),
    ("audioTrack", "inbound"),
    ("contentType", "audio/x-mulaw;rate=8000"),
)


@dataclass(frozen=True, slots=True)
class Plivo:
    """A Carrier. auth_token: signs webhooks, and opens the REST interface together with auth_id."""

    auth_token: str | None = field(repr=False)
    auth_id: str | None = None
    api: str = API
    dialect: Dialect = DIALECT
    busy: str = document(element("Hangup", attributes=(("reason", "busy"),)))

    @property
    def missing(self) -> str | None:
        return None if self.auth_token else AUTH_TOKEN

    def signed(self, webhook: Webhook) -> bool:
        nonce = webhook.headers.get("x-plivo-signature-v3-nonce")
        if nonce is None or self.auth_token is None:
            return False
        # by the token of the account that has the number, and by the main account's
        given = [webhook.headers.get(f"x-plivo-signature-{kind}", "") for kind in ("v3", "ma-v3")]
        signed = f"{_signed_url(webhook)}.{nonce}"
        return same_hmac("sha256", self.auth_token, signed, ",".join(given).replace(" ", "").split(","))

    def arrival(self, webhook: Webhook) -> Arrival:
        outbound = webhook.get("Direction") == "outbound"
        call = CallInfo(webhook.need("CallUUID"), webhook.get("From"), webhook.get("To"), outbound)
        return Arrival(call, self.auth_id or "")

    def welcome(self, media_url: str, token: str) -> str:
        headers = (("extraHeaders", f"{TOKEN}={token}"),)
        return document(
            element("Stream", escape(media_url), attributes=(*STREAM, *headers)), element("Hangup")
        )

    async def hang_up(self, http: aiohttp.ClientSession, arrival: Arrival) -> None:
        await self._call(http, "DELETE", arrival, None)

    async def transfer(
        self, http: aiohttp.ClientSession, arrival: Arrival, target: str, publish: Publish
    ) -> None:
        xml = document(element("Dial", dialled(target, "Number", "User")))
        await self._call(http, "POST", arrival, {"legs": "aleg", "aleg_url": publish(xml)})

    async def _call(
        self, http: aiohttp.ClientSession, method: str, arrival: Arrival, form: Mapping[str, str] | None
    ) -> None:
        if self.auth_id is None or self.auth_token is None:
            raise RestFailed(f"{AUTH_TOKEN if self.auth_id else AUTH_ID} is not set")
        account, call = quote(self.auth_id, safe=""), quote(arrival.call.id, safe="")
        url = f"{self.api}/Account/{account}/Call/{call}/"
        await rest(http, method, url, authorization=basic(self.auth_id, self.auth_token), form=form)


def _signed_url(webhook: Webhook) -> str:
    """The URL with its query in order, and the body's parameters in order behind a dot."""
    parts = urlsplit(webhook.url)
    url = f"{parts.scheme}://{parts.netloc}{parts.path}"
    query = "&".join(f"{key}={value}" for key, value in sorted(parse_qsl(parts.query, True)))
    form = "".join(key + value for key, value in sorted(webhook.form))
    if query or form:
        url += f"?{query}"
    if query and form:
        url += "."
    return url + form
