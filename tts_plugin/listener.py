"""listen: the socket on which a server of this project takes connections."""

from __future__ import annotations

import socket

from tts_plugin.errors import ConfigError


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """The listening socket (port 0 takes a free one), or ConfigError that says what to do. option: of the
    command line, which chooses the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host that cannot be a name
        # create_server adds the address once more, in brackets
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while ")[0]
        raise ConfigError(
            f"cannot listen on port {port} of {host}: {reason}; "
            f"choose another with {option} (0 takes a free one)"
        ) from error
