"""Body and reply types of the admin API's keys."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from accounts.caller import Role
from accounts.store import KeyRecord
from api.web.api_types import Reason, RequestBody
from cost.reports.keys import KeyUse
from cost.times import iso

_MAX_OVERLAP_S = 30 * 86_400
_MAX_LIFE_S = 100 * 366 * 86_400


class PutKey(RequestBody, frozen=True):
    """The key to ensure. `expires_at` is null by default: the key does not expire."""

    role: Annotated[
        Role,
        msgspec.Meta(description="member calls models; finance reads everything; admin changes everything. For good."),
    ] = "member"
    expires_at: (
        Annotated[datetime, msgspec.Meta(tz=True, description="When it stops working, with its time zone.")] | None
    ) = None
    expires_in_s: (
        Annotated[
            int,
            msgspec.Meta(
                ge=1, le=_MAX_LIFE_S, description="The same as seconds from its creation; not beside `expires_at`."
            ),
        ]
        | None
    ) = None
    models: (
        Annotated[
            list[Annotated[str, msgspec.Meta(min_length=1, max_length=128)]],
            msgspec.Meta(
                max_length=1_000, description="The only models it may use, of its team's; null for all of those."
            ),
        ]
        | None
    ) = None


class BlockKey(RequestBody, frozen=True):
    """Why, for the audit log."""

    reason: Reason = ""


class RotateKey(RequestBody, frozen=True):
    """Seconds for which the old key works beside the new one."""

    overlap_s: Annotated[
        int,
        msgspec.Meta(ge=0, le=_MAX_OVERLAP_S, description="Seconds; with 0 the old key is revoked at once."),
    ]


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A key. Its secret is only in the reply that created it."""

    id: str
    team_id: str
    name: str
    role: str
    models: list[str] | None
    state: Literal["working", "blocked", "expired", "revoked"]
    last4: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    blocked_at: datetime | None
    last_used_on: str | UnsetType | None = UNSET
    """UTC day of its last request within 90 days, or of its last that asked no model."""
    requests_30d: int | UnsetType = UNSET
    key: str | UnsetType = UNSET
    object: str = "key"


def key_out(key: KeyRecord, now: datetime, *, plaintext: str | UnsetType = UNSET) -> KeyOut:
    """Return a key, with its secret when `plaintext` is given."""
    return KeyOut(
        id=key.key_id,
        team_id=key.team_id,
        name=key.name,
        role=key.role,
        models=key.models,
        state=_state(key, now),
        last4=key.last4,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        blocked_at=key.blocked_at,
        key=plaintext,
    )


def _state(key: KeyRecord, now: datetime) -> Literal["working", "blocked", "expired", "revoked"]:
    if key.works_at(now):
        return "working" if key.blocked_at is None else "blocked"
    return "expired" if key.revoked_at is None else "revoked"


def last_day_us(key: KeyRecord, use: KeyUse | None) -> int | None:
    """Return the start of the UTC day on which a key was last used, to call or to read, in microseconds since 1970; None for none."""
    return max(
        (day for day in (key.read_day_us, None if use is None else use.last_day_us) if day is not None), default=None
    )


def used_key_out(key: KeyRecord, now: datetime, use: KeyUse | None) -> KeyOut:
    """Return a key with its recent use."""
    day_us = last_day_us(key, use)
    return msgspec.structs.replace(
        key_out(key, now),
        last_used_on=None if day_us is None else iso(day_us)[:10],
        requests_30d=0 if use is None else use.requests,
    )
