"""Mapping of an upstream's refusal, a status and a body, to an UpstreamError that is safe to show."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from providers.errors import (
    AnswerLost,
    Original,
    PromptTooLong,
    RequestRejected,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamUnavailable,
)

_MAX_MESSAGE_CHARS = 500
_MAX_WORD_CHARS = 100
_MAX_RETRY_AFTER_S = 3_600.0

_KEY = re.compile(
    r"\b(?:sk|pk|rk|wb|gsk|xai|hf|ghp|tgp|fw|key|api)[-_][A-Za-z0-9_*-]{6,}"  # Providers' own prefixes.
    r"|\b(?:AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"  # JSON web tokens.
    r"|(?i:\bbearer\s+)\S+"
    r"|\b(?=[A-Za-z+/_-]*\d)(?=[\d+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}"  # Anything long that mixes letters and digits.
)

_REJECTED = frozenset({400, 413, 422})
_UNAVAILABLE = frozenset({409, 424, 425})
"""424 is TGI's word for a generation that failed."""
# Somebody in between stopped waiting, so the model behind may have worked on: 524 is Cloudflare's, 499 nginx's.
LOST_STATUSES = frozenset({408, 499, 504, 524})
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""OpenAI's code, and llama.cpp's type."""
_TOO_LONG_IN_WORDS = (
    "maximum context length",
    "prompt is too long",
    "exceed context limit",
    "exceeds the available context size",
    "longer than the model's context length",
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens` must be <=",
    "should not exceed max_num_tokens",
)
"""vLLM's words, Anthropic's two, llama.cpp's, SGLang's, TGI's two, and TensorRT-LLM's."""
_STATUS_IN_WORDS: Mapping[str, int] = {"input validation error": 422, "model is overloaded": 429}
"""TGI's errors in a stream, which all say 422, by how they begin. The others are its own."""
_TOO_MANY = 429
_KEY_REFUSED = frozenset({401, 402})
_REFUSED = {401: "key", 402: "account", 403: "permission", 404: "model name or address"}
"""What of ours is refused, by status."""
_TAG = re.compile(r"<(?:style|script)[^>]*>.*?</(?:style|script)>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MOST_READ = 8_192
_ECHO_CHARS = 16
"""So many characters in a row that the request has too are taken for a repetition of it."""
_MOST_ECHOED = 128 * 1024
_SERVER_FAULT = 500
_MOST_OF_ORIGINAL = 64 * 1024

# Error objects in a stream often name their kind and carry no status.
_STATUS_OF_KIND: Mapping[str, int] = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "bad_request_error": 400,
    "validation": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "notfounderror": 404,
    "model_not_found": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "requests": 429,
    "tokens": 429,
}


_ANTHROPIC_STATUS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Anthropic's errors that are its callers' to read, and the status of each."""


class _Error(msgspec.Struct):
    type: str
    message: str


class _Said(msgspec.Struct):
    error: _Error


class _Fault(msgspec.Struct, frozen=True):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None
    status: int | None = None


def error_of_status(
    status: int, body: bytes, headers: Mapping[str, str], *, deployment_id: str, secret: str | None = None
) -> UpstreamError:
    """The error for a reply with a status other than success."""
    fault = _fault_of_body(body)
    if status in _REJECTED:
        return _rejection(status, fault, deployment_id, secret)
    told = fault.message or _TAG.sub(" ", body[:_MOST_READ].decode(errors="replace"))
    return _gateway_error(status, deployment_id, retry_after_s(headers), clean(told, secret=secret))


def error_in_reply(error: Any, deployment_id: str, secret: str | None = None) -> UpstreamError:
    """The error for an error object inside a reply that began with status 200."""
    fault = _fault_of(error)
    status = fault.status
    if status is None:
        kinds = (fault.code or "", fault.type or "")
        status = next(
            (_STATUS_OF_KIND[kind.lower()] for kind in kinds if kind.lower() in _STATUS_OF_KIND),
            _status_in_words(fault),
        )
    if status in _REJECTED:
        return _rejection(status, fault, deployment_id, secret)
    return _gateway_error(status, deployment_id, None, clean(fault.message, secret=secret))


def _status_in_words(fault: _Fault) -> int:
    said = fault.message.lower()
    return next((status for words, status in _STATUS_IN_WORDS.items() if said.startswith(words)), _SERVER_FAULT)


def original_of(bodies: Iterable[bytes], secret: str | None) -> Original | None:
    """Anthropic's own error out of the first of these bodies that has one. None where none has, or where it is about our
    key or account.
    """
    for body in bodies:
        told = body[:_MOST_OF_ORIGINAL]
        try:
            said = msgspec.json.decode(told.replace(secret.encode(), b"***") if secret else told, type=_Said).error
        except msgspec.MsgspecError:
            continue
        status = _ANTHROPIC_STATUS.get(said.type)
        return None if status is None else Original(status, said.type, said.message)
    return None


def without_echo(text: str, sent: Iterable[bytes]) -> str:
    """An upstream's cleaned text without what it repeats of the request: logs and pages hold nothing of a prompt.

    `sent` are the request's raw fields. Of each long one its beginning and its end are looked at.
    """
    if len(text) < _ECHO_CHARS:
        return text
    raw = b"\n".join(part for each in sent for part in (each[:_MOST_ECHOED], each[_MOST_ECHOED:][-_MOST_ECHOED:]))
    heard = raw.decode(errors="replace")
    told, at = [], 0
    while at < len(text):
        piece = text[at : at + _ECHO_CHARS]
        if len(piece) < _ECHO_CHARS or piece not in heard:
            told.append(text[at])
            at += 1
            continue
        end = at + _ECHO_CHARS
        while end < len(text) and text[at : end + 1] in heard:
            end += 1
        told.append("…")
        at = end
    return "".join(told)


def clean(text: str, limit: int = _MAX_MESSAGE_CHARS, secret: str | None = None) -> str:
    """An upstream's text made safe to show: one line of at most `limit` characters, keys masked."""
    # Far more than is shown is enough to judge what is shown, and bounds the work.
    text = text[: limit * 4]
    if secret:
        text = text.replace(secret, "***")
    text = _KEY.sub("***", text)
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds from `retry-after-ms`, or from `retry-after` as seconds or a date.

    None when absent, malformed, negative or above an hour.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")[:64]
        if not value:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            seconds = _seconds_until(value, now or datetime.now(UTC))
        if 0 <= seconds <= _MAX_RETRY_AFTER_S:
            return seconds
    return None


def _seconds_until(date: str, now: datetime) -> float:
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return -1.0
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


def _gateway_error(status: int, deployment_id: str, wait_s: float | None, detail: str) -> UpstreamError:
    """The error for a status that is not the caller's fault; the upstream's text is for operators alone."""
    error = _error_without_detail(status, deployment_id, wait_s)
    error.detail = detail
    return error


def _error_without_detail(status: int, deployment_id: str, wait_s: float | None) -> UpstreamError:
    if status == _TOO_MANY:
        return UpstreamRateLimited(
            "The provider's rate limit is reached.", deployment_id=deployment_id, status=status, retry_after_s=wait_s
        )
    if status in LOST_STATUSES:
        return AnswerLost(
            f"The upstream's answer was lost: status {status}.",
            deployment_id=deployment_id,
            status=status,
            retry_after_s=wait_s,
        )
    if status >= _SERVER_FAULT or status in _UNAVAILABLE:
        return UpstreamUnavailable(
            f"The provider failed with status {status}; neither your request nor the gateway is at fault.",
            deployment_id=deployment_id,
            status=status,
            retry_after_s=wait_s,
        )
    return UpstreamRefusedUs(
        f"The provider refused the gateway's own {_REFUSED.get(status, 'call')} with status {status}. Your request is not at "
        "fault: tell the gateway's operators the x-request-id of this reply, they find the reason in its log.",
        deployment_id=deployment_id,
        status=status,
        reason="key" if status in _KEY_REFUSED else "permission",
        known=status in _KEY_REFUSED,
    )


def _rejection(status: int, fault: _Fault, deployment_id: str, secret: str | None) -> RequestRejected:
    def word(value: str | None) -> str | None:
        return clean(value, _MAX_WORD_CHARS, secret) if value else None

    # Some say it in words only.
    said = fault.message.lower()
    too_long = not _TOO_LONG.isdisjoint({fault.code, fault.type}) or any(words in said for words in _TOO_LONG_IN_WORDS)
    kind = PromptTooLong if too_long else RequestRejected
    return kind(
        clean(fault.message, secret=secret) or "The upstream rejected the request.",
        deployment_id=deployment_id,
        status=status,
        error_type=word(fault.type) or "invalid_request_error",
        param=word(fault.param),
        code=word(fault.code),
    )


def _fault_of_body(body: bytes) -> _Fault:
    try:
        return _fault_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not JSON: an HTML page of some proxy in between tells a caller nothing.
        return _Fault("")


def _fault_of(found: Any) -> _Fault:
    """The fault in any of the dialects: OpenAI's `{error: {...}}`, TGI's `{error: text}`, the flat one of SGLang, TensorRT-LLM,
    DeepSpeed-MII and old vLLMs, FastAPI's `{detail}`, which may hold any of them.
    """
    if isinstance(found, str):
        return _Fault(found)
    if not isinstance(found, dict):
        return _Fault("")
    inner = found.get("error") or found.get("detail")
    if isinstance(inner, dict):
        return _fault_of(inner)
    message = next((found[key] for key in ("message", "error", "detail") if isinstance(found.get(key), str)), "")
    code = found.get("code")
    kind = found.get("type") or found.get("error_type")
    return _Fault(
        message,
        type=kind if isinstance(kind, str) else None,
        param=found["param"] if isinstance(found.get("param"), str) else None,
        code=code if isinstance(code, str) else None,
        status=_status(code) or _status(found.get("status")),
    )


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:4])
    is_status = isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599  # noqa: PLR2004
    return int(value) if is_status else None
