"""Changes of API keys, each with its audit entry: creation, rotation with an overlap, expiry, and revocation.

Actors who may change only one team (`may_all` false) manage member keys: keys of the roles finance and admin read or
change the whole organisation, so only administrators create, rotate or revoke them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Change
from accounts.caller import Role
from accounts.keys import MintedKey, Pepper
from accounts.store import AccountStore, KeyRecord, TeamRecord, utc_now
from api.web.changing import changing, check_may_change, looking
from proxy.errors import BadRequest, KeyNotFound, NameTaken, NotAllowed
from settings.key_ids import first_id

MAX_LIVE_KEYS: Final = 1_000
"""Most working keys of one team."""
MAX_MODELS: Final = 1_000
MAX_OVERLAP_S: Final = 30 * 86_400
_TRIES: Final = 3
_SAME_END: Final = timedelta(minutes=1)


async def put_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    name: str,
    pepper: Pepper,
    *,
    may_all: bool,
    role: Role = "member",
    expires_at: datetime | None = None,
    life_s: int | None = None,
    models: Sequence[str] | None = None,
    known: Container[str] | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> tuple[KeyRecord, MintedKey | None]:
    """Ensure that the team has a working key of this name and expiry. The second value is None where it existed: a
    secret is known only at creation. `life_s` in place of `expires_at` counts from the key's creation. Raises NameTaken for a key of
    another role.
    """
    if life_s is not None and expires_at is not None:
        raise BadRequest("A key ends at `expires_at` or after `expires_in_s`; send one of them.", param="expires_in_s")
    check_models(models, known)
    for _ in range(_TRIES):
        found = await _update_existing(
            log, actor, team, name, role, expires_at, models, life_s=life_s, may_all=may_all, clock=clock
        )
        if found is not None:
            return found, None
        try:
            return await create_key(
                log,
                actor,
                team,
                name,
                pepper,
                may_all=may_all,
                role=role,
                expires_at=expires_at if life_s is None else ends_after(clock(), life_s),
                models=models,
                clock=clock,
            )
        except NameTaken:
            # Another request created the key in between; try again.
            continue
    raise NameTaken(f"Others are changing the key {name[:80]!r} right now; try again.", param="name")


async def create_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    name: str,
    pepper: Pepper,
    *,
    may_all: bool,
    role: Role = "member",
    expires_at: datetime | None = None,
    models: Sequence[str] | None = None,
    known: Container[str] | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> tuple[KeyRecord, MintedKey]:
    """Create a key, for some of the team's models only where they are given. `known` are the configured ones. Raises NameTaken while another one of this name works, so that submitting a form twice creates one
    key.
    """
    _check_new(role, expires_at, models, known, may_all=may_all, now=clock())
    async with _adding(log, actor, "key.created", team, name, clock) as (change, store):
        minted = await store.create_key(team.team_id, name, pepper, expires_at=expires_at, role=role, models=models)
        made = await _tell_added(change, store, team, minted.key_id)
    return made, minted


async def import_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    name: str,
    pepper: Pepper,
    token: str,
    *,
    last4: str,
    may_all: bool,
    role: Role = "member",
    expires_at: datetime | None = None,
    models: Sequence[str] | None = None,
    known: Container[str] | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> KeyRecord:
    """Let a key that somebody chose work here, by the SHA-256 of it. Raises NameTaken, as `create_key` does and for a key that is known."""
    _check_new(role, expires_at, models, known, may_all=may_all, now=clock())
    async with _adding(log, actor, "key.imported", team, name, clock) as (change, store):
        key_id = await store.import_key(
            team.team_id, name, pepper, token, last4=last4, expires_at=expires_at, role=role, models=models
        )
        return await _tell_added(change, store, team, key_id)


def _check_new(
    role: Role,
    expires_at: datetime | None,
    models: Sequence[str] | None,
    known: Container[str] | None,
    *,
    may_all: bool,
    now: datetime,
) -> None:
    _check_role(role, may_all=may_all)
    _check_expiry(expires_at, now)
    check_models(models, known)


@contextlib.asynccontextmanager
async def _adding(
    log: AuditLog, actor: Actor, action: str, team: TeamRecord, name: str, clock: Callable[[], datetime]
) -> AsyncIterator[tuple[Change, AccountStore]]:
    """Give the change within which the team gets one more key, where it has room for one of this name."""
    async with changing(log, actor, action, team.organisation_id, team_id=team.team_id) as change:
        store = AccountStore(change.within, clock=clock)
        await _check_room(store, team, name, clock())
        yield change, store


async def _tell_added(change: Change, store: AccountStore, team: TeamRecord, key_id: str) -> KeyRecord:
    made = await store.key_of(team.organisation_id, team.team_id, key_id)
    change.tell("key", key_id, None, audit_record(made))
    return made


async def _check_room(store: AccountStore, team: TeamRecord, name: str, now: datetime) -> None:
    """Raise NameTaken while a key of this name works, and BadRequest where a team has its most keys."""
    await store.team_of(team.organisation_id, team.team_id)
    working = [key for key in await store.keys_of(team.organisation_id, team.team_id) if key.works_at(now)]
    if any(key.name == name for key in working):
        raise NameTaken(
            f"The team has a key named {name[:80]!r} already; use another name, or rotate that key.", param="name"
        )
    if len(working) >= MAX_LIVE_KEYS:
        raise BadRequest(f"The team has {MAX_LIVE_KEYS} keys that work; revoke some first.")


async def rotate_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    key_id: str,
    pepper: Pepper,
    *,
    overlap_s: int,
    may_all: bool,
    clock: Callable[[], datetime] = utc_now,
) -> tuple[KeyRecord, MintedKey]:
    """Create a key in the place of an old one, which works for `overlap_s` more. Both are one key to limits and budgets
    (`settings.key_ids`). Raises BadRequest and KeyNotFound.
    """
    if not 0 <= overlap_s <= MAX_OVERLAP_S:
        raise BadRequest(f"The overlap is between 0 and {MAX_OVERLAP_S} seconds (30 days).", param="overlap_s")
    owner = team.organisation_id
    async with changing(log, actor, "key.rotated", owner, team_id=team.team_id) as change:
        store = AccountStore(change.within, clock=clock)
        old = await _changeable_key(store, team, key_id, may_all=may_all)
        if not old.works_at(clock()):
            raise KeyNotFound("This key works no more, so there is nothing to replace; make a new key.")
        if old.blocked_at is not None:
            raise BadRequest("This key is blocked, and its successor would not be; unblock it first.")
        newest = newest_working(await store.keys_of(owner, team.team_id), old.name, clock())
        if newest is not None and newest.key_id != key_id:
            # A form that is sent twice replaces once.
            raise NameTaken("A newer key of this name works already: rotate that one, or revoke this one.")
        minted = await store.rotate_key(owner, team.team_id, key_id, pepper, overlap_s=overlap_s)
        made = await store.key_of(owner, team.team_id, minted.key_id)
        change.tell("key", key_id, audit_record(old), audit_record(await store.key_of(owner, team.team_id, key_id)))
        change.tell("key", made.key_id, None, audit_record(made))
    return made, minted


async def set_key_expiry(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    key_id: str,
    expires_at: datetime | None,
    *,
    may_all: bool,
    clock: Callable[[], datetime] = utc_now,
) -> KeyRecord:
    """Set or remove a key's expiry. Expired and revoked keys never work again."""
    _check_expiry(expires_at, clock())
    async with changing(log, actor, "key.changed", team.organisation_id, team_id=team.team_id) as change:
        store = AccountStore(change.within, clock=clock)
        before = await _changeable_key(store, team, key_id, may_all=may_all)
        return await _set_expiry(change, store, team, before, expires_at, clock())


async def set_key_models(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    key_id: str,
    models: Sequence[str] | None,
    *,
    may_all: bool,
    known: Container[str],
    clock: Callable[[], datetime] = utc_now,
) -> KeyRecord:
    """Set the only models that a key may use; None for all of its team's. Servers follow within `accounts.fresh_s`."""
    check_models(models, known)
    async with changing(log, actor, "key.changed", team.organisation_id, team_id=team.team_id) as change:
        store = AccountStore(change.within, clock=clock)
        before = await _changeable_key(store, team, key_id, may_all=may_all)
        if not before.works_at(clock()):
            raise KeyNotFound("This key works no more; make a new key.")
        after = await store.set_key_models(team.organisation_id, team.team_id, key_id, models)
        change.tell("key", key_id, audit_record(before), audit_record(after))
    return after


async def revoke_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    key_id: str,
    *,
    may_all: bool,
    reason: str = "",
    clock: Callable[[], datetime] = utc_now,
) -> KeyRecord:
    """Revoke a key. Idempotent. Servers follow within `accounts.fresh_s`."""
    async with changing(log, actor, "key.revoked", team.organisation_id, team_id=team.team_id, reason=reason) as change:
        store = AccountStore(change.within, clock=clock)
        before = await _changeable_key(store, team, key_id, may_all=may_all)
        if before.revoked_at is None:
            await store.revoke_key(key_id)
        after = await store.key_of(team.organisation_id, team.team_id, key_id)
        change.tell("key", key_id, audit_record(before), audit_record(after))
    return after


async def block_key(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    key_id: str,
    *,
    blocked: bool,
    may_all: bool,
    reason: str = "",
    clock: Callable[[], datetime] = utc_now,
) -> KeyRecord:
    """Refuse a key until it is unblocked, or unblock it. Idempotent. Servers follow within `accounts.fresh_s`."""
    action = "key.blocked" if blocked else "key.unblocked"
    async with changing(log, actor, action, team.organisation_id, team_id=team.team_id, reason=reason) as change:
        store = AccountStore(change.within, clock=clock)
        before = await _changeable_key(store, team, key_id, may_all=may_all)
        if not before.works_at(clock()):
            raise KeyNotFound("This key works no more, blocked or not; make a new key.")
        others = blocked_with(before, await store.keys_of(team.organisation_id, team.team_id), blocked=blocked)
        after = await store.block_key(team.organisation_id, team.team_id, key_id, blocked=blocked)
        change.tell("key", key_id, audit_record(before), audit_record(after) | others)
    return after


def blocked_with(key: KeyRecord, of_team: Iterable[KeyRecord], *, blocked: bool) -> dict[str, Any]:
    """Return, for the audit entry, the other keys of a rotation that are blocked or unblocked with this one; empty for none."""
    first = first_id(key.key_id)
    others = sorted(
        each.key_id
        for each in of_team
        if first_id(each.key_id) == first
        and each.key_id != key.key_id
        and each.revoked_at is None
        and (each.blocked_at is None) == blocked
    )
    return {"also": others} if others else {}


async def read_keys(store: AccountStore, team: TeamRecord) -> list[KeyRecord]:
    """Return a team's keys, oldest first."""
    async with looking():
        return await store.keys_of(team.organisation_id, team.team_id)


async def read_key(store: AccountStore, team: TeamRecord, key_id: str) -> KeyRecord:
    """Return one of a team's keys. Raises KeyNotFound."""
    async with looking():
        return await store.key_of(team.organisation_id, team.team_id, key_id)


def ends_after(created_at: datetime, life_s: int) -> datetime:
    """Return the expiry of a key that lives so many seconds. Raises BadRequest beyond the calendar."""
    try:
        return created_at + timedelta(seconds=life_s)
    except OverflowError as error:
        raise BadRequest("The key would live beyond the calendar; leave its end out instead.") from error


def newest_working(keys: list[KeyRecord], name: str, now: datetime) -> KeyRecord | None:
    """Return the newest working key of a name, or None: during a rotation two work."""
    return next((key for key in reversed(keys) if key.name == name and key.works_at(now)), None)


def audit_record(key: KeyRecord) -> dict[str, Any]:
    """Return a key as its audit entry stores it."""
    return {
        "name": key.name,
        "role": key.role,
        "models": key.models,
        "last4": key.last4,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "blocked_at": key.blocked_at,
    }


async def _update_existing(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    name: str,
    role: Role,
    expires_at: datetime | None,
    models: Sequence[str] | None,
    *,
    life_s: int | None,
    may_all: bool,
    clock: Callable[[], datetime],
) -> KeyRecord | None:
    """Return the working key of this name, with its expiry and models changed if needed; None where no key of the name works."""
    owner = team.organisation_id
    async with changing(log, actor, "key.changed", owner, team_id=team.team_id) as change:
        store = AccountStore(change.within, clock=clock)
        found = newest_working(await store.keys_of(owner, team.team_id), name, clock())
        if found is None:
            return None
        if found.role != role:
            raise NameTaken(
                f"The key {name[:80]!r} has the role {found.role}, which never changes; revoke it, or use another name.",
                param="role",
            )
        wanted = None if models is None else sorted(set(models))
        if found.models != wanted:
            check_may_change(found, may_all=may_all)
            before, found = found, await store.set_key_models(owner, team.team_id, found.key_id, wanted)
            change.tell("key", found.key_id, audit_record(before), audit_record(found))
        if life_s is not None:
            expires_at = ends_after(found.created_at, life_s)
            if found.expires_at is not None and abs(found.expires_at - expires_at) < _SAME_END:
                # Its end was counted a moment before it was stored.
                return found
        if found.expires_at == expires_at:
            return found
        check_may_change(found, may_all=may_all)
        _check_expiry(expires_at, clock())
        return await _set_expiry(change, store, team, found, expires_at, clock())


async def _set_expiry(
    change: Change,
    store: AccountStore,
    team: TeamRecord,
    before: KeyRecord,
    expires_at: datetime | None,
    now: datetime,
) -> KeyRecord:
    if not before.works_at(now):
        raise KeyNotFound("This key works no more; make a new key.")
    after = await store.set_expiry(team.organisation_id, team.team_id, before.key_id, expires_at)
    change.tell("key", before.key_id, audit_record(before), audit_record(after))
    return after


async def _changeable_key(store: AccountStore, team: TeamRecord, key_id: str, *, may_all: bool) -> KeyRecord:
    found = await store.key_of(team.organisation_id, team.team_id, key_id)
    check_may_change(found, may_all=may_all)
    return found


def check_models(models: Sequence[str] | None, known: Container[str] | None) -> None:
    """Raise BadRequest for a name that is no model: it would allow nothing while its author believes it does."""
    if models is not None and len(models) > MAX_MODELS:
        raise BadRequest(f"A key has at most {MAX_MODELS} models.", param="models")
    unknown = [name for name in models or () if known is not None and name not in known]
    if unknown:
        raise BadRequest(
            f"There is no model `{unknown[0][:80]}` in the configuration; GET /v1/models lists them.", param="models"
        )


def _check_role(role: Role, *, may_all: bool) -> None:
    if role != "member" and not may_all:
        raise NotAllowed(f"Only the organisation's administrators hand out keys of the role {str(role)[:20]}.")


def _check_expiry(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is None:
        return
    if expires_at.tzinfo is None:
        raise BadRequest("The expiry needs its time zone, such as 2027-01-31T00:00:00Z.", param="expires_at")
    if expires_at <= now:
        raise BadRequest("The expiry lies in the past; choose a later day, or none.", param="expires_at")
