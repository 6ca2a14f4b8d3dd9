"""The table of carriers: each is served under its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.config import PhoneSettings
from agent.transports.carrier import Carrier
from agent.transports.dialect import Kind
from agent.transports.plivo import Plivo
from agent.transports.telnyx import Telnyx
from agent.transports.twilio import Twilio

CARRIERS: Mapping[Kind, Callable[[PhoneSettings], Carrier]] = {
    "twilio": lambda phone: Twilio(phone.twilio.auth_token, phone.twilio.api),
    "telnyx": lambda phone: Telnyx(phone.telnyx.public_key, phone.telnyx.api_key, phone.telnyx.api),
    "plivo": lambda phone: Plivo(phone.plivo.auth_token, phone.plivo.auth_id, phone.plivo.api),
}


def carriers(phone: PhoneSettings) -> dict[Kind, Carrier]:
    """Every carrier with its settings, those without a secret included."""
    return {kind: make(phone) for kind, make in CARRIERS.items()}
