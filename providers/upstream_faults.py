"""An upstream's refusal, a status and a body, as an UpstreamError that is safe to show. Whose it is stands in `data/refusals.toml`."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from providers.errors import (
    AnswerLost,
    Original,
    PromptTooLong,
    RequestRejected,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamUnavailable,
)
from providers.parameters import KNOWN
from providers.refusals import SERVER_FAULT, Refusal, pace_s, refusal_of, refused_parameter, status_of
from settings.decoding import DECODE_ERRORS

_MAX_MESSAGE_CHARS = 500
_MAX_WORD_CHARS = 100
_AROUND_CHARS = 40

_KEY = re.compile(
    r"\b(?:sk|pk|rk|wb|gsk|xai|hf|ghp|tgp|fw|key|api)[-_][A-Za-z0-9_*-]{6,}"  # Providers' own prefixes.
    r"|\b(?:org|proj|team)[-_](?=[A-Za-z]*\d)[A-Za-z0-9]{12,}"  # Our accounts there.
    r"|\b(?:AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"  # JSON web tokens.
    r"|(?i:\bbearer\s+)\S+"
    r"|\b(?=[A-Za-z+/_-]*\d)(?=[\d+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}"  # Anything long that mixes letters and digits.
)

_TAG = re.compile(r"<(?:style|script)[^>]*>.*?</(?:style|script)>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MOST_READ = 8_192
_ECHO_CHARS = 16
"""So many characters in a row that the request has too are taken for a repetition of it."""
_MOST_ECHOED = 128 * 1024
_MOST_OF_ORIGINAL = 64 * 1024

_TOLD_STATUSES: Final = frozenset({400, 413, 422})
"""A request's refusal is told with one of them: its upstream may have said 500."""
_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_TOO_LONG_CODE: Final = "context_length_exceeded"
_OURS: Final[Mapping[str, str]] = {
    "key": "key",
    "credit": "account",
    "quota": "account",
    "permission": "permission",
    "model": "model name or address",
    "address": "model name or address",
}
"""Things of ours that are refused, in the words that callers read."""
_AROUND_OTHERS: Final = ("error", "detail", "errors", "message")
"""Names under which an error, or a list of them, stands within another. The last is Mistral's for what FastAPI says."""
_SAYING: Final = (
    *(
        "message",
        "error_description",
        "error_message",
        "msg",
        "error",
        "detail",
        "Message",
        "reason",
        "exception",
        "title",
    ),
)
"""Names under which an error says what is wrong, the plainest words first."""
_PART_OF_PAGE: Final = re.compile(r"<(title|h[1-6]|p)\b[^>]*>([^<]{1,400})", re.IGNORECASE)
"""Title, headings and paragraphs: what else a page has, such as the names of hosts, is for nobody outside."""
_MOST_OF_PAGE: Final = 200
_MOST_NESTED: Final = 4
_MOST_ENTRIES: Final = 8


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
    kind: str | None = None
    """The type, or what stands for one at Google and AWS, which callers of OpenAI's API know nothing of."""
    finer: str | None = None
    """A code that says more than `code`, from what stands beside it."""
    details: Any = None
    around: tuple[str, ...] = ()
    """The beginnings of the texts of JSON that it was found in."""
    page: str = ""
    """The words of a page of some proxy in between: the caller reads them, and they mean nothing else."""


def error_of_status(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    deployment_id: str,
    secret: str | None = None,
    now: datetime | None = None,
) -> UpstreamError:
    """Return the error for a reply with a status other than success."""
    fault = _fault_of_body(body)
    said = fault.message or _TAG.sub(" ", body[:_MOST_READ].decode(errors="replace"))
    told = status
    if status >= SERVER_FAULT and fault.status in _TOLD_STATUSES:
        # A gateway in between failed because of what the provider behind it said.
        told = fault.status
    error = _error(told, fault, headers, deployment_id, secret, said, now)
    return _with_the_status_alone(error, status, fault, headers, secret, now)


def error_in_reply(error: Any, deployment_id: str, secret: str | None = None) -> UpstreamError:
    """Return the error for an error object inside a reply that began with status 200."""
    fault = _fault_of(error)
    status = fault.status or status_of(fault.finer or fault.code, fault.kind) or SERVER_FAULT
    error = _error(status, fault, {}, deployment_id, secret, fault.message, None)
    return _with_the_status_alone(error, SERVER_FAULT, fault, {}, secret, None)


def without_repeated_words(error: UpstreamError, sent: Mapping[str, bytes]) -> UpstreamError:
    """Return the error without words that its request contains itself. Providers repeat words of a request, some before
    any of their own, and whoever could write there that our account is empty would take the deployment from everybody.
    Then the status counts alone.

    `sent` has the raw fields of the request.
    """
    if error.without_words is None or not says_any(sent, error.said):
        return error
    return error.without_words


def _with_the_status_alone(
    error: UpstreamError,
    status: int,
    fault: _Fault,
    headers: Mapping[str, str],
    secret: str | None,
    now: datetime | None,
) -> UpstreamError:
    if error.said:
        alone = _error(status, _Fault(""), headers, error.deployment_id, secret, fault.message, now)
        if alone.owner == "request":
            # Its caller reads the words all the same.
            alone.public = clean(fault.message, secret=secret)
        error.without_words = alone
    return error


def says_any(sent: Mapping[str, bytes], words: Iterable[str]) -> bool:
    """Return whether one of these words stands in the fields, by their letters and digits alone."""
    wanted = [_letters(each.encode(errors="replace")) for each in words]
    for name, raw in sent.items():
        # The name of the model is in the errors about it.
        if name == "model":
            continue
        if raw.count(_ESCAPED) > _MOST_ESCAPED:
            return True
        heard = _letters(_unescaped(name.encode(errors="replace"))) + b" " + _letters(_unescaped(raw))
        if any(each in heard for each in wanted):
            return True
    return False


_ESCAPED: Final = b"\\u00"
_ESCAPE: Final = re.compile(rb"\\u00([0-7][0-9a-fA-F])")
_MOST_ESCAPED: Final = 4_096
"""Nobody writes so many letters of ASCII as numbers; taking them apart would cost a loop's turn."""
_SPACED: Final = re.compile(rb"(?i)\\u(?:0085|00a0|1680|20[0-2][0-9a-f]|205f|3000)")
"""Escapes of spaces and quotes beyond ASCII, which `providers.refusals` reads as those of ASCII."""
_KELVIN: Final = (b"\\u212a", b"\\u212A", "\u212a".encode())
"""The one letter beyond ASCII that is a letter of ASCII in lower case."""
_ANY_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_LOWER: Final = bytes(range(256)).lower()
_NO_LETTERS: Final = bytes(each for each in range(256) if not bytes([each]).isalnum())


def _unescaped(raw: bytes) -> bytes:
    """Return the letters of a JSON value, without those that are the second half of an escape."""
    for kelvin in _KELVIN:
        raw = raw.replace(kelvin, b"k")
    if b"\\" not in raw:
        return raw
    for escape in (b"\\\\", b"\\n", b"\\t", b"\\r", b"\\b", b"\\f"):
        raw = raw.replace(escape, b" ")
    raw = _SPACED.sub(b" ", raw)
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)


def _letters(text: bytes) -> bytes:
    return text.translate(_LOWER, _NO_LETTERS)


def _error(
    status: int,
    fault: _Fault,
    headers: Mapping[str, str],
    deployment_id: str,
    secret: str | None,
    said: str,
    now: datetime | None,
) -> UpstreamError:
    refusal = refusal_of(status, code=fault.finer or fault.code, kind=fault.kind, message=fault.message)
    if refusal.owner == "request":
        return _rejection(status, fault, refusal, deployment_id, secret)
    error = _fault_of_others(status, fault, refusal, headers, deployment_id, clean(said, secret=secret), now)
    if refusal.owner != "health":
        error.said = (*filter(None, (refusal.words,)), *fault.around)
    return error


def _fault_of_others(
    status: int,
    fault: _Fault,
    refusal: Refusal,
    headers: Mapping[str, str],
    deployment_id: str,
    detail: str,
    now: datetime | None,
) -> UpstreamError:
    """Return the error of a refusal that is not the request's."""
    if refusal.owner == "operator":
        what = _OURS.get(refusal.reason, "call")
        return UpstreamRefusedUs(
            f"The provider refused the gateway's own {what} with status {status}. Your request is not at fault: tell the "
            "gateway's operators the x-request-id of this reply, they find the reason in its log.",
            deployment_id=deployment_id,
            status=status,
            detail=detail,
            reason=refusal.reason,
            known=refusal.certain,
        )
    kind, public = _TOLD[refusal.reason]
    return kind(
        public.format(status=status),
        deployment_id=deployment_id,
        status=status,
        retry_after_s=pace_s(headers, fault.message, fault.details, now or datetime.now(UTC)),
        detail=detail,
        reason=refusal.reason,
    )


_TOLD: Final[Mapping[str, tuple[type[UpstreamError], str]]] = {
    "rate": (UpstreamRateLimited, "The provider's rate limit is reached."),
    "overloaded": (UpstreamOverloaded, "The provider has too much to do at the moment."),
    "lost": (AnswerLost, "The upstream's answer was lost: status {status}."),
    "unavailable": (
        UpstreamUnavailable,
        "The provider failed with status {status}; neither your request nor the gateway is at fault.",
    ),
}
"""Class and public text by reason, of refusals for the provider's pace or health."""


def original_of(error: UpstreamError, bodies: Iterable[bytes], secret: str | None) -> Original | None:
    """Return Anthropic's own words for an error, out of the first of these bodies that has any. None where none has, or
    where it is about our key or account.
    """
    if error.owner == "operator":
        return None
    for body in bodies:
        told = body[:_MOST_OF_ORIGINAL]
        try:
            said = msgspec.json.decode(told.replace(secret.encode(), b"***") if secret else told, type=_Said).error
        except DECODE_ERRORS:
            continue
        status = status_of(said.type, None)
        return None if status is None else Original(status, said.type, said.message)
    return None


def without_echo(text: str, sent: Iterable[bytes]) -> str:
    """Return an upstream's cleaned text without what it repeats of the request: logs and pages hold nothing of a prompt.

    `sent` are the request's raw fields. Of each long one its beginning and its end are looked at.
    """
    if len(text) < _ECHO_CHARS:
        return text
    raw = b"\n".join(part for each in sent for part in (each[:_MOST_ECHOED], each[_MOST_ECHOED:][-_MOST_ECHOED:]))
    heard = raw.decode(errors="replace")
    if "\\u" in heard:
        # Many clients write all letters beyond ASCII so.
        heard = _ANY_ESCAPE.sub(lambda found: chr(int(found[1], 16)), heard)
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
    """Return an upstream's text made safe to show: one line of at most `limit` characters, keys masked."""
    # Far more than is shown is enough to judge what is shown, and bounds the work.
    text = text[: limit * 4]
    if secret:
        text = text.replace(secret, "***")
    text = _KEY.sub("***", text)
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _rejection(status: int, fault: _Fault, refusal: Refusal, deployment_id: str, secret: str | None) -> RequestRejected:
    def word(value: str | None) -> str | None:
        return clean(value, _MAX_WORD_CHARS, secret) if value else None

    kind = PromptTooLong if refusal.told_code == _TOO_LONG_CODE else RequestRejected
    if kind is PromptTooLong:
        # Whoever says it with another one: clients that shorten a conversation ask for OpenAI's.
        status = _BAD_REQUEST
    elif status not in _TOLD_STATUSES:
        status = _TOO_LARGE if refusal.reason == "size" else _BAD_REQUEST
    parameter = refused_parameter(fault.message)
    if parameter is not None and parameter.name not in KNOWN:
        parameter = None
    rejected = kind(
        clean(fault.message, secret=secret)
        or clean(fault.page, _MOST_OF_PAGE, secret)
        or "The upstream rejected the request.",
        deployment_id=deployment_id,
        status=status,
        error_type=word(fault.type) or "invalid_request_error",
        param=word(fault.param),
        code=refusal.told_code or word(fault.code),
        reason=refusal.reason,
        # A parameter that one model does not know is no reason to believe that others do not.
        elsewhere=refusal.elsewhere or parameter is not None,
    )
    rejected.parameter = parameter
    return rejected


def _fault_of_body(body: bytes) -> _Fault:
    try:
        return _fault_of(msgspec.json.decode(body))
    except DECODE_ERRORS:
        text = body[:_MOST_READ].decode(errors="replace").strip()
        if not text.startswith("<"):
            return _Fault(text)
        return _Fault("", page=". ".join(dict.fromkeys(found[2].strip() for found in _PART_OF_PAGE.finditer(text))))


def _fault_of(found: Any, depth: int = 0) -> _Fault:
    """Return the fault in any of the dialects: OpenAI's `{error: {...}}`, TGI's `{error: text}`, the flat one of SGLang, TensorRT-LLM,
    DeepSpeed-MII and old vLLMs, Gemini's array, FastAPI's `{detail}`, which may hold any of them or a list, and the error of
    another provider as a text of JSON within any of them.
    """
    if isinstance(found, str):
        return _within(found, _Fault(found), depth)
    if isinstance(found, list):
        return _fault_of_list(found, depth)
    if not isinstance(found, dict) or depth > _MOST_NESTED:
        return _Fault("")
    for name in _AROUND_OTHERS:
        if isinstance(inner := found.get(name), dict | list) and inner:
            return _fault_of(inner, depth + 1)
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    message = _text(found, *_SAYING)
    kind = _text(found, "type", "error_type")
    fault = _Fault(
        message,
        type=kind or None,
        param=_text(found, "param") or None,
        code=_text(found, "code") or None,
        status=_status(found.get("code")) or _status(found.get("status")),
        kind=kind or _text(found, "status", "__type").rpartition("#")[2] or None,
        finer=_finer(found, metadata) or None,
        details=metadata or found.get("details"),
    )
    raw = metadata.get("raw")
    if isinstance(raw, str) and raw.strip():
        # OpenRouter's own words say only that its provider failed; these are the provider's.
        return _within(raw, msgspec.structs.replace(fault, message=raw), depth)
    return _within(message, fault, depth)


def _within(text: str, outer: _Fault, depth: int) -> _Fault:
    """Return the fault in a text of JSON, completed by the fields of the one around it; `outer` for any other text."""
    text = text.strip()
    if not text.startswith(("{", "[{")) or depth > _MOST_NESTED:
        return outer
    try:
        inner = _fault_of(json.JSONDecoder().raw_decode(text[:_MOST_OF_ORIGINAL])[0], depth + 1)
    except (ValueError, RecursionError):
        return outer
    if not inner.message:
        return outer
    return _Fault(
        inner.message,
        type=inner.type or outer.type,
        param=inner.param or outer.param,
        code=inner.code or outer.code,
        status=inner.status or outer.status,
        kind=inner.kind or outer.kind,
        finer=inner.finer or outer.finer,
        details=inner.details or outer.details,
        around=(text[:_AROUND_CHARS], *outer.around, *inner.around),
    )


def _fault_of_list(found: list[Any], depth: int) -> _Fault:
    """Return the first fault of a list, or all that FastAPI finds wrong with a body."""
    wrong = [each for each in found[:_MOST_ENTRIES] if isinstance(each, dict) and isinstance(each.get("msg"), str)]
    if not wrong:
        texts = [each for each in found[:_MOST_ENTRIES] if isinstance(each, str)]
        if len(texts) > 1:
            return _Fault("; ".join(texts))
        return _fault_of(found[0], depth + 1) if found and depth <= _MOST_NESTED else _Fault("")
    places = [_place(each.get("loc")) for each in wrong]
    told = [f"{place}: {each['msg']}" if place else each["msg"] for place, each in zip(places, wrong, strict=True)]
    # The place stays whole before the words: a caller names fields as it likes, and must not begin a message.
    return _Fault("; ".join(told), param=places[0].removeprefix("body.") or None)


def _place(loc: Any) -> str:
    return ".".join(map(str, loc[:_MOST_ENTRIES])) if isinstance(loc, list) else ""


def _finer(found: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return a code beside the error's own: Google's reason, Anthropic's in `details`, OpenRouter's in `metadata`."""
    details = found.get("details")
    if isinstance(details, dict):
        return _text(details, "error_code")
    for each in details[:_MOST_ENTRIES] if isinstance(details, list) else ():
        if isinstance(each, dict) and isinstance(each.get("reason"), str):
            return str(each["reason"])
    return "flagged_input" if "flagged_input" in metadata else _text(metadata, "error_type", "limit_source")


def _text(found: Mapping[str, Any], *names: str) -> str:
    return next((value for name in names if isinstance(value := found.get(name), str)), "")


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:4])
    is_status = isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599  # noqa: PLR2004
    return int(value) if is_status else None
