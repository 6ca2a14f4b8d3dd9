"""Our errors as LiveKit knows them."""

from __future__ import annotations

from livekit.agents import APIConnectionError, APIError, APIStatusError

from tts_plugin import errors

_STATUS: dict[type[errors.TTSError], int] = {
    errors.BadRequest: 400,
    errors.ConfigError: 400,
    errors.Unauthorized: 401,
    errors.VoiceNotFound: 404,
    errors.UnsupportedText: 422,
    errors.Overloaded: 429,
    errors.SynthesisFailed: 503,
}


def api_error(error: errors.TTSError) -> APIError:
    """The error as LiveKit knows them: what it may try again, and what it must not."""
    if isinstance(error, errors.EngineUnavailable):
        return APIConnectionError(str(error), retryable=error.retryable)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), None)
    if status is None:
        return APIError(str(error), body={"code": error.code}, retryable=error.retryable)
    body: dict[str, str | float] = {"code": error.code}
    if isinstance(error, errors.Overloaded) and error.retry_after_s is not None:
        body["retry_after_s"] = error.retry_after_s
    return APIStatusError(str(error), status_code=status, body=body, retryable=error.retryable)
