"""The name under which an answer is kept: a keyed hash over all that may change it, its owner first.

A body counts as it was sent, but for blanks and the order of its outermost fields. What is further in keeps its order: models are
shown a schema's properties in theirs.
"""

import hmac
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from accounts.caller import Caller
from proxy.parse.headers import RequestHeaders
from proxy.parse.parsed_request import ParsedRequest
from settings.decoding import DECODE_ERRORS

_VERSION: Final = b"1"
"""The form of what is kept; a process with another one finds nothing."""
_LENGTH_BYTES: Final = 8
CHANGES_ANSWER: Final = ("tier", "anthropic_version", "anthropic_beta", "escalate")
"""Headers, as fields of `RequestHeaders`, by which the same body may be answered otherwise."""
CHANGES_NOTHING: Final = (
    # Who asks. Its team is in the key, and what its key may use is asked at each hit.
    *("authorization", "api_key", "azure_key", "team_id"),
    # Which of equal targets is asked, for the sake of their caches, and when.
    *("session_id", "claude_session", "codex_session", "codex_session_id", "priority"),
    *("timeout_ms", "read_timeout", "client_timeout"),
    # What is written down of it.
    *("traceparent", "tag", "idempotency_key", "cache"),
)
"""All other headers that are read."""

Fields = Mapping[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def fields_of_body(body: bytes) -> Fields | None:
    """Return the outermost fields of a body without blanks; None for one that is no JSON object."""
    try:
        return _decode(msgspec.json.format(body, indent=-1))
    except DECODE_ERRORS:
        return None


def key_of(
    secret: bytes,
    wire: str,
    caller: Caller,
    parsed: ParsedRequest,
    fields: Fields,
    headers: RequestHeaders,
    rules: Iterable[bytes],
) -> str:
    """Return the name of a request's answer. `rules` are the digests of all that the gateway itself decides by."""
    request, settings = parsed.request, caller.settings
    told = (
        _VERSION,
        caller.organisation_id.encode(),
        caller.team_id.encode(),
        b"%d" % settings.cache_epoch,
        wire.encode(),
        b"stream" if request.stream else b"whole",
        (request.alias or request.model).encode(),
        request.tier.encode(),
        (request.service_tier or "").encode(),
        repr(settings.quality_floor).encode(),
        settings.escalation.encode(),
        *rules,
        *(_said(getattr(headers, name)) for name in CHANGES_ANSWER),
    )
    found = hmac.new(secret, digestmod="sha256")
    for part in told:
        _add(found, part)
    for name in sorted(fields):
        _add(found, name.encode(errors="surrogatepass"))
        _add(found, fields[name])
    return found.hexdigest()


def _add(found: hmac.HMAC, part: bytes | msgspec.Raw) -> None:
    """Add one part with its length before it: no two lists of parts are one text."""
    view = memoryview(part)
    found.update(len(view).to_bytes(_LENGTH_BYTES, "big"))
    found.update(view)


def _said(value: str | None) -> bytes:
    return b"" if value is None else b"=" + value.encode()
