"""Twilio: TwiML, webhooks signed with HMAC-SHA1, and the Media Streams dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

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

API = "https://api.twilio.com"
AUTH_TOKEN = "SPARKVOICE_TWILIO_AUTH_TOKEN"  # the variable's name

DIALECT = Dialect(
    kind="twilio",
    stream="streamSid",
    call="callSid",
    media_format="mediaFormat",
    rate="sampleRate",
    encodings=frozenset({"audio/x-mulaw"}),
    parameters=lambda message: named(message["start"].get("customParameters")),
    played=("mark", "mark", "name"),
    send_media=lambda stream, data: {"event": "media", "streamSid": stream, "media": {"payload": data}},
    send_mark=lambda stream, mark: {"event": "mark", "streamSid": stream, "mark": {"name": mark}},
    send_clear=lambda stream: {"event": "clear", "streamSid": stream},
)


def connect(media_url: str, token: str, attributes: tuple[tuple[str, str], ...] = ()) -> str:
    """The document that streams a call both ways, and hangs up when the stream is over.

    The token is a parameter because query strings are not passed on.
    """
    parameter = element("Parameter", attributes=(("name", TOKEN), ("value", token)))
    stream = element("Stream", parameter, attributes=(("url", media_url), *attributes))
    return document(element("Connect", stream), element("Hangup"))


@dataclass(frozen=True, slots=True)
class Twilio:
    """A Carrier. auth_token: the account's, which signs webhooks and opens the REST interface."""

    auth_token: str | None = field(repr=False)
    api: str = API
    dialect: Dialect = DIALECT
    busy: str = document(element("Reject", attributes=(("reason", "busy"),)))

    @property
    def missing(self) -> str | None:
        return None if self.auth_token else AUTH_TOKEN

    def signed(self, webhook: Webhook) -> bool:
        given = webhook.headers.get("x-twilio-signature")
        if given is None or self.auth_token is None:
            return False
        signed = webhook.url + "".join(key + value for key, value in sorted(set(webhook.form)))
        return same_hmac("sha1", self.auth_token, signed, [given])

    def arrival(self, webhook: Webhook) -> Arrival:
        outbound = (webhook.get("Direction") or "").startswith("outbound")
        call = CallInfo(webhook.need("CallSid"), webhook.get("From"), webhook.get("To"), outbound)
        return Arrival(call, webhook.need("AccountSid"))

    def welcome(self, media_url: str, token: str) -> str:
        return connect(media_url, token)

    async def hang_up(self, http: aiohttp.ClientSession, arrival: Arrival) -> None:
        await self._update(http, arrival, {"Status": "completed"})

    async def transfer(
        self, http: aiohttp.ClientSession, arrival: Arrival, target: str, publish: Publish
    ) -> None:
        twiml = document(element("Dial", dialled(target, "Number", "Sip")))
        await self._update(http, arrival, {"Twiml": twiml})

    async def _update(self, http: aiohttp.ClientSession, arrival: Arrival, form: Json) -> None:
        if self.auth_token is None:
            raise RestFailed(f"{AUTH_TOKEN} is not set")
        account, call = quote(arrival.account, safe=""), quote(arrival.call.id, safe="")
        await rest(
            http,
            "POST",
            f"{self.api}/2010-04-01/Accounts/{account}/Calls/{call}.json",
            authorization=basic(arrival.account, self.auth_token),
            form=form,
        )
