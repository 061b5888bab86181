"""Request headers: what of them the gateway reads."""

from collections.abc import Iterable

import msgspec


class RequestHeaders(msgspec.Struct, frozen=True):
    """The request headers that the gateway reads."""

    authorization: str | None = None
    api_key: str | None = msgspec.field(default=None, name="x-api-key")
    azure_key: str | None = msgspec.field(default=None, name="api-key")
    team_id: str | None = msgspec.field(default=None, name="x-team-id")
    tier: str | None = msgspec.field(default=None, name="x-tier")
    session_id: str | None = msgspec.field(default=None, name="x-session-id")
    claude_session: str | None = msgspec.field(default=None, name="x-claude-code-session-id")
    codex_session: str | None = msgspec.field(default=None, name="session_id")
    codex_session_id: str | None = msgspec.field(default=None, name="session-id")
    anthropic_version: str | None = msgspec.field(default=None, name="anthropic-version")
    anthropic_beta: str | None = msgspec.field(default=None, name="anthropic-beta")
    traceparent: str | None = None
    escalate: str | None = msgspec.field(default=None, name="x-weighbridge-escalate")
    tag: str | None = msgspec.field(default=None, name="x-weighbridge-tag")
    cache: str | None = msgspec.field(default=None, name="x-weighbridge-cache")
    priority: str | None = msgspec.field(default=None, name="x-priority")
    timeout_ms: str | None = msgspec.field(default=None, name="x-request-timeout-ms")
    read_timeout: str | None = msgspec.field(default=None, name="x-stainless-read-timeout")
    client_timeout: str | None = msgspec.field(default=None, name="x-stainless-timeout")
    idempotency_key: str | None = msgspec.field(default=None, name="idempotency-key")


_HEADER_FIELDS = {field.encode_name.encode(): field.name for field in msgspec.structs.fields(RequestHeaders)}


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """Parse ASGI's lower-cased header list; of a repeated header the first value counts."""
    found: dict[str, str] = {}
    for name, value in raw:
        field = _HEADER_FIELDS.get(name)
        if field is not None and field not in found:
            found[field] = value.decode("latin-1").strip()
    return RequestHeaders(**found)


def is_batch(raw: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True when the headers alone select the tier batch; the body may still do so."""
    return (b"x-tier", b"batch") in raw
