"""Tickets: what lets a media websocket in once, and a document out once, for a short time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Issued(Generic[T]):
    what: T
    expiry: asyncio.TimerHandle


class Tickets(Generic[T]):
    """Hands out a random token for a thing and the thing for the token, once and within `life_s` seconds.

    expired: gets what nobody came for.
    """

    def __init__(self, life_s: float, expired: Callable[[T], None] = lambda _: None) -> None:
        self._life_s = life_s
        self._expired = expired
        self._issued: dict[str, _Issued[T]] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, what: T) -> str:
        """The token: 32 of the characters 0-9 and a-f."""
        token = secrets.token_hex(16)
        expiry = asyncio.get_running_loop().call_later(self._life_s, self._expire, token)
        self._issued[token] = _Issued(what, expiry)
        return token

    def take(self, token: str) -> T | None:
        """What the token was issued for; None if that was never, too long ago or already taken."""
        issued = self._issued.pop(token, None)
        if issued is None:
            return None
        issued.expiry.cancel()
        return issued.what

    def drop(self, wanted: Callable[[T], bool]) -> None:
        """Let what is `wanted` expire now."""
        for token in [token for token, issued in self._issued.items() if wanted(issued.what)]:
            self._expire(token)

    def _expire(self, token: str) -> None:
        what = self.take(token)
        if what is not None:
            self._expired(what)
