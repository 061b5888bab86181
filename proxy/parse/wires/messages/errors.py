"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.errors import ErrorReply
from proxy.parse.wires.completions_of_chat import sse

_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_FIRST_SERVER_ERROR: Final = 500
_TOO_LONG_CODE: Final = "context_length_exceeded"
_TOO_LONG: Final = "prompt is too long"
"""Anthropic's words for a prompt beyond the context, which its clients look for before they shorten a conversation."""


def error_reply_of(told: ErrorReply, request_id: str) -> ErrorReply:
    """Return the reply with a body that Anthropic's clients read; an Anthropic upstream's own error keeps its status."""
    status = told.status if told.original is None else told.original.status
    return msgspec.structs.replace(told, status=status, body=msgspec.json.encode(_error(told, request_id)))


def error_event(told: ErrorReply, request_id: str) -> bytes:
    """Return the event that ends a stream which failed."""
    return sse(b"error", _error(told, request_id))


def _error(told: ErrorReply, request_id: str) -> dict[str, Any]:
    if told.original is not None:
        # Word for word: agents know by the words what to do next.
        original = {"type": told.original.type, "message": told.original.message}
        return {"type": "error", "error": original, "request_id": request_id}
    kind = _TYPES.get(told.status, "api_error" if told.status >= _FIRST_SERVER_ERROR else "invalid_request_error")
    message = told.message
    if told.code == _TOO_LONG_CODE and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    # `code` and `param` are beside what Anthropic tells, and name what is wrong as on the other wires.
    error = {"type": kind, "message": message, "code": told.code, "param": told.param}
    return {"type": "error", "error": error, "request_id": request_id}
