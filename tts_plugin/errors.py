"""The errors a caller of this package can meet, each saying what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class TTSError(Exception):
    """Base of every error raised here on purpose.

    `code` is its name on the wire; `retryable` says whether the same request may succeed later.
    """

    code: ClassVar[str] = "tts_error"
    retryable: ClassVar[bool] = False


class BadRequest(TTSError):
    """The request itself is wrong: a bad option, an unknown message, an oversize text."""

    code = "bad_request"


class ConfigError(TTSError):
    """A YAML file or an environment variable holds something that cannot be used."""

    code = "config_error"


class VoiceNotFound(TTSError):
    """No voice has that id."""

    code = "voice_not_found"


class UnsupportedText(TTSError):
    """Nothing in the text is in a language that the voice speaks."""

    code = "unsupported_text"


class EngineUnavailable(TTSError):
    """The engine or its server is not there: not started, died or unreachable."""

    code = "engine_unavailable"
    retryable = True


class NotInstalled(EngineUnavailable):
    """Something that the request needs is not installed here, or not in the version that was tested."""

    code = "not_installed"
    retryable = False


class Overloaded(TTSError):
    """The engine takes no more work now. retry_after_s: when it may be worth trying again, if known."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SynthesisFailed(TTSError):
    """The engine failed while it spoke."""

    code = "synthesis_failed"
    retryable = True


class Unauthorized(TTSError):
    """The bearer token is missing or wrong."""

    code = "unauthorized"


_KINDS: tuple[type[TTSError], ...] = (
    BadRequest,
    ConfigError,
    VoiceNotFound,
    UnsupportedText,
    EngineUnavailable,
    NotInstalled,
    Overloaded,
    SynthesisFailed,
    Unauthorized,
)


def told(error: TTSError) -> dict[str, str | bool | float]:
    """What is told of an error outside this process; `retold` makes it an error again."""
    known: dict[str, str | bool | float] = {
        "code": error.code,
        "message": str(error),
        "retryable": error.retryable,
    }
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        known["retry_after_s"] = error.retry_after_s
    return known


def retold(code: str, message: str, retryable: bool, retry_after_s: float | None = None) -> TTSError:
    """The error that another process told of; one this version does not know keeps its `retryable`."""
    if code == Overloaded.code:
        return Overloaded(message, retry_after_s)
    for kind in _KINDS:
        if kind.code == code:
            return kind(message)
    return (SynthesisFailed if retryable else BadRequest)(f"{code}: {message}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"? (known: a, b)` for an error message, the guess only if one is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1, cutoff=0.5)
    guess = f'; did you mean "{near[0]}"?' if near else ""
    return f"{guess} (known: {', '.join(names) or 'none'})"
