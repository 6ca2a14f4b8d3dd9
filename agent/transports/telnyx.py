"""Telnyx: TeXML, webhooks signed with Ed25519, and the media streaming dialect."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent.line import CallInfo
from agent.transports.carrier import Arrival, Publish, RestFailed, Webhook, dialled, document, element, rest
from agent.transports.dialect import Dialect, Json, named
from agent.transports.twilio import connect

API = "https://api.telnyx.com/v2"
PUBLIC_KEY = "SPARKVOICE_TELNYX_PUBLIC_KEY"  # the variables' names
API_KEY = "SPARKVOICE_TELNYX_API_KEY"
MAX_AGE_S = 300.0  # an older webhook is a replayed one

DIALECT = Dialect(
    kind="telnyx",
    stream="stream_id",
    call="call_control_id",
    media_format="media_format",
    rate="sample_rate",
    encodings=frozenset({"PCMU"}),
    parameters=lambda message: named(message["start"].get("custom_parameters")),
    played=("mark", "mark", "name"),
    # a connection has one stream, which is not named
    send_media=lambda _stream, data: {"event": "media", "media": {"payload": data}},
    send_mark=lambda _stream, mark: {"event": "mark", "mark": {"name": mark}},
    send_clear=lambda _stream: {"event": "clear"},
)
# both ways as plain mu-law; the defaults are the call's own codec, and MP3 towards it
STREAM = (("codec", "PCMU"), ("bidirectionalMode", "rtp"), ("bidirectionalCodec", "PCMU"))


@dataclass(frozen=True, slots=True)
class Telnyx:
    """A Carrier. public_key: base64, signs webhooks. api_key: opens the REST interface. clock: Unix time."""

    public_key: str | None
    api_key: str | None = field(default=None, repr=False)
    api: str = API
    clock: Callable[[], float] = time.time
    dialect: Dialect = DIALECT
    busy: str = document(element("Reject", attributes=(("reason", "busy"),)))

    @property
    def missing(self) -> str | None:
        return None if self.public_key else PUBLIC_KEY

    def signed(self, webhook: Webhook) -> bool:
        given, at = (webhook.headers.get(f"telnyx-{name}") for name in ("signature-ed25519", "timestamp"))
        if given is None or at is None or self.public_key is None:
            return False
        try:
            if abs(self.clock() - int(at)) > MAX_AGE_S:
                return False
            key = Ed25519PublicKey.from_public_bytes(b64decode(self.public_key, validate=True))
            key.verify(b64decode(given, validate=True), f"{at}|".encode() + webhook.body)
        except (ValueError, InvalidSignature):
            return False
        return True

    def arrival(self, webhook: Webhook) -> Arrival:
        outbound = (webhook.get("Direction") or "").startswith("outbound")
        call = CallInfo(webhook.need("CallSid"), webhook.get("From"), webhook.get("To"), outbound)
        return Arrival(call, webhook.need("AccountSid"))

    def welcome(self, media_url: str, token: str) -> str:
        return connect(media_url, token, STREAM)

    async def hang_up(self, http: aiohttp.ClientSession, arrival: Arrival) -> None:
        await self._update(http, arrival, {"Status": "completed"})

    async def transfer(
        self, http: aiohttp.ClientSession, arrival: Arrival, target: str, publish: Publish
    ) -> None:
        texml = document(element("Dial", dialled(target, "Number", "Sip")))
        await self._update(http, arrival, {"Texml": texml})

    async def _update(self, http: aiohttp.ClientSession, arrival: Arrival, form: Json) -> None:
        if self.api_key is None:
            raise RestFailed(f"{API_KEY} is not set")
        account, call = quote(arrival.account, safe=""), quote(arrival.call.id, safe="")
        url = f"{self.api}/texml/Accounts/{account}/Calls/{call}"
        await rest(http, "POST", url, authorization=f"Bearer {self.api_key}", form=form)
