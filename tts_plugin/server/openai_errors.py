"""Errors as OpenAI's API tells them: a body, a status and headers that its clients act on."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from tts_plugin.errors import (
    BadRequest,
    ConfigError,
    EngineUnavailable,
    NotInstalled,
    Overloaded,
    SynthesisFailed,
    TTSError,
    Unauthorized,
    UnsupportedText,
    VoiceNotFound,
    told,
)

# HTTP status, OpenAI's type of error, the parameter to blame
_TELLING: dict[type[TTSError], tuple[int, str, str | None]] = {
    BadRequest: (400, "invalid_request_error", None),
    VoiceNotFound: (400, "invalid_request_error", "voice"),
    UnsupportedText: (400, "invalid_request_error", "input"),
    Unauthorized: (401, "authentication_error", None),
    Overloaded: (429, "rate_limit_error", None),
    ConfigError: (500, "server_error", None),
    SynthesisFailed: (500, "server_error", None),
    NotInstalled: (501, "server_error", None),
    EngineUnavailable: (503, "server_error", None),
}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
RETRY_S = 1  # what Retry-After says if the error does not know better


class BadParameter(BadRequest):
    """A parameter of the request cannot be used; `param` is its name, None for the body itself."""

    status = 400

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.param = param


class ModelNotFound(BadParameter):
    """No model has that name."""

    code = "model_not_found"
    status = 404


class TooLarge(BadParameter):
    """The body is larger than any text that may be spoken."""

    code = "request_too_large"
    status = 413


class TooSlow(BadParameter):
    """The body did not come in time."""

    code = "request_timeout"
    status = 408


def error_body(
    code: str, message: str, retryable: bool, kind: str, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's four keys, and whether the same request may succeed later."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, "retryable": retryable}}


def body_of(error: TTSError) -> dict[str, Any]:
    """The error as JSON, for an answer or an event of a stream."""
    _, kind, param = _telling(error)
    known = told(error)
    return error_body(str(known["code"]), str(known["message"]), bool(known["retryable"]), kind, param)


def answer(error: TTSError) -> JSONResponse:
    """The error as a whole HTTP answer."""
    status, _, _ = _telling(error)
    headers = {}
    if status in (429, 503):
        wait_s = error.retry_after_s if isinstance(error, Overloaded) else None
        headers["Retry-After"] = str(math.ceil(RETRY_S if wait_s is None else wait_s))
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body may still come
    if status >= 500 and not error.retryable:
        headers["x-should-retry"] = "false"  # OpenAI's clients try a 5xx again unless told not to
    return JSONResponse(body_of(error), status, headers)


def type_of(status: int) -> str:
    """OpenAI's type of error for a refusal with that HTTP status."""
    return _TYPES.get(status, "server_error")


def _telling(error: TTSError) -> tuple[int, str, str | None]:
    if isinstance(error, BadParameter):
        return error.status, "invalid_request_error", error.param
    for kind in type(error).__mro__:
        if kind in _TELLING:
            return _TELLING[kind]
    return 500, "server_error", None
