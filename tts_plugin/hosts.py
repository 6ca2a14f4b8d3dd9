"""Host names: which of them mean this machine alone."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def name_of(host: str) -> str:
    """The name or address in a Host header or HOST:PORT, in lower case; "" if there is none to be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Whether nobody but this machine can reach what is at `name`."""
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761
        return True
    return is_address(name) and ip_address(name).is_loopback


def is_address(name: str) -> bool:
    """Whether `name` is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
