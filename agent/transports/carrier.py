"""Carrier: what a telephone company asks of our webhook and takes by REST, the same for all of them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from xml.sax.saxutils import escape, quoteattr

import aiohttp

from agent.line import CallInfo, TransferFailed
from agent.transports.dialect import Dialect
from tts_plugin.errors import BadRequest

REST_S = 5.0

log = logging.getLogger("sparkvoice.phone")

_NUMBER = re.compile(r"\+?[0-9]{2,20}\Z")
_SIP = re.compile(r"sips?:[A-Za-z0-9._~!$&'()*+,;=:%-]{1,100}@[A-Za-z0-9.:\[\]-]{1,200}\Z")

# keeps an XML document for a carrier that takes one only from an address, for one request; returns that
Publish = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A request of a carrier. url: as the carrier has called it. headers: by lower-case name. form: the
    parameters of the body in their order."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    form: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The form's value, if it has one that is not empty."""
        return next((value for key, value in self.form if key == name and value), None)

    def need(self, name: str) -> str:
        """The form's value, or BadRequest."""
        value = self.get(name)
        if value is None:
            raise BadRequest(f"the webhook has no {name}")
        return value


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call that a webhook has told of. account: whose REST interface has it."""

    call: CallInfo
    account: str


class Carrier(Protocol):
    """A telephone company: one entry of `carriers`."""

    @property
    def dialect(self) -> Dialect:
        """How its media websocket talks."""

    @property
    def missing(self) -> str | None:
        """The environment variable without which its webhooks cannot be told from anybody's; None if set."""

    @property
    def busy(self) -> str:
        """The document that gives the caller the busy signal."""

    def signed(self, webhook: Webhook) -> bool:
        """Whether the webhook comes from the carrier."""

    def arrival(self, webhook: Webhook) -> Arrival:
        """The call it tells of, or BadRequest."""

    def welcome(self, media_url: str, token: str) -> str:
        """The document that connects the caller with our media websocket, which is shown the token."""

    async def hang_up(self, http: aiohttp.ClientSession, arrival: Arrival) -> None:
        """End the call; RestFailed says why not."""

    async def transfer(
        self, http: aiohttp.ClientSession, arrival: Arrival, target: str, publish: Publish
    ) -> None:
        """Connect the caller with `target`; RestFailed says why not."""


class RestFailed(Exception):
    """The carrier's REST interface did not do it; the message says why, without numbers."""


@dataclass(frozen=True, slots=True)
class CarrierCall:
    """One call as its stream sees the carrier: hung up and handed over."""

    carrier: Carrier
    http: aiohttp.ClientSession
    arrival: Arrival
    publish: Publish

    async def hang_up(self) -> None:
        try:
            await self.carrier.hang_up(self.http, self.arrival)
        except RestFailed as error:  # the stream's end hangs up as well, by the document's last line
            log.warning("a call was not hung up by REST: %s", error)

    async def transfer(self, target: str) -> None:
        if not (_NUMBER.match(target) or _SIP.match(target)):
            raise TransferFailed('a call can be handed over to "+15550100" or "sip:someone@example.org"')
        try:
            await self.carrier.transfer(self.http, self.arrival, target, self.publish)
        except RestFailed as error:
            raise TransferFailed(f"the carrier did not hand the call over: {error}") from error


def document(*elements: str) -> str:
    """A carrier's XML answer."""
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{"".join(elements)}</Response>'


def element(name: str, content: str = "", /, attributes: Iterable[tuple[str, str]] = ()) -> str:
    """One XML element; `content` is XML already."""
    words = "".join(f" {key}={quoteattr(value)}" for key, value in attributes)
    return f"<{name}{words}>{content}</{name}>" if content else f"<{name}{words}/>"


def dialled(target: str, number: str, sip: str) -> str:
    """The element that names whom to dial, called `sip` for SIP addresses and `number` for others."""
    return element(sip if _SIP.match(target) else number, escape(target))


def same_hmac(kind: str, secret: str, signed: str, given: Iterable[str]) -> bool:
    """Whether one of `given` is the base64 HMAC of `signed`."""
    digest = hmac.new(secret.encode(), signed.encode(), getattr(hashlib, kind)).digest()
    wanted = b64encode(digest)
    same = [hmac.compare_digest(wanted, one.encode(errors="surrogateescape")) for one in given]
    return any(same)


def basic(user: str, password: str) -> str:
    """The Authorization header of a user."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


async def rest(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    authorization: str,
    form: Mapping[str, str] | None = None,
) -> None:
    """One request to a carrier; RestFailed unless it is answered with success."""
    headers = {"Authorization": authorization}
    limit = aiohttp.ClientTimeout(total=REST_S)
    try:
        async with http.request(
            method, url, headers=headers, data=form, timeout=limit, allow_redirects=False
        ) as response:
            if response.status >= 300:
                raise RestFailed(f"it answered {response.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RestFailed(f"it cannot be reached ({type(error).__name__})") from error
