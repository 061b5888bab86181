"""Errors on OpenAI's wires: replies are in their shape already, and a stream ends with one in place of `[DONE]`."""

from proxy.errors import ErrorReply


def as_told(told: ErrorReply, _request_id: str) -> ErrorReply:
    return told


def error_event(told: ErrorReply, _request_id: str) -> bytes:
    return b"data: " + told.body + b"\n\n"
