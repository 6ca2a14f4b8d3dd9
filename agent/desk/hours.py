"""Whether people are there at a moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from agent.desk.settings import HoursSettings

Now = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def is_open(hours: HoursSettings | None, moment: datetime) -> bool:
    """`moment` has a time zone, any; None is always open."""
    if hours is None:
        return True
    local = moment.astimezone(hours.zone)
    if local.date() in hours.holidays:
        return False
    return any(first <= local.time() < last for first, last in hours.of(local.weekday()))
