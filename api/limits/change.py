"""Changes of rate limits, by people and by administrators' keys, each with its audit entry."""

from typing import Any

import msgspec

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.errors import UnknownKeyId, UnknownTeam
from accounts.store import AccountStore, TeamRecord
from api.web.changing import changing, check_may_change, looking, no_such_place, sentence
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule, check_limits, check_place, team_of
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest, LimitNotFound, NotAllowed
from proxy.plan.known_names import KnownNames


async def put_limit(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    rule: Rule,
    *,
    names: KnownNames,
    only_keys_of: TeamRecord | None = None,
    reason: str = "",
) -> tuple[Rule, bool]:
    """Replace the limits of one place; the second value is True where none were set. Processes follow within
    `limits.poll_s`.

    A model's limit is shared by all organisations: the caller has checked that the actor may set it. `only_keys_of`
    restricts the actor to limits of that team's keys. A new one is of a model that callers can name (`names`). Raises NotAllowed and
    BadRequest.
    """
    place = rule.place
    async with changing(log, actor, "limit.set", organisation_id, reason=reason) as change:
        store = LimitStore(change.within)
        team_id = await _team_of(AccountStore(change.within), organisation_id, place, only_keys_of)
        before = await store.at(place)
        if before is None and (problem := names.limit_problem(place)):
            raise BadRequest(sentence(problem), param="model")
        check_limits(place, rule.limits)
        if before is None or before.limits != rule.limits:
            await store.put(rule)
        after = await store.at(place)
        assert after is not None  # noqa: S101 - it was put just now
        change.tell(
            "limit", str(place), None if before is None else audit_record(before), audit_record(after), team_id=team_id
        )
    return after, before is None


async def remove_limit(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    place: Place,
    *,
    only_keys_of: TeamRecord | None = None,
    reason: str = "",
) -> Rule:
    """Remove the limits of a place; the configuration's apply again. Raises LimitNotFound."""
    async with changing(log, actor, "limit.removed", organisation_id, reason=reason) as change:
        team_id = await _team_of(AccountStore(change.within), organisation_id, place, only_keys_of)
        store = LimitStore(change.within)
        if await store.at(place) is None:
            raise LimitNotFound(f"No limit is set for {str(place)[:200]}; the configuration's hold.")
        found = await store.remove(place)
        change.tell("limit", str(place), audit_record(found), None, team_id=team_id)
    return found


async def read_limits(store: LimitStore, organisation_id: str) -> list[Rule]:
    """Return limits set for an organisation, its teams, their keys and end users."""
    async with looking():
        return await store.of_organisation(organisation_id)


async def read_limit(store: LimitStore, accounts: AccountStore, organisation_id: str, place: Place) -> Rule:
    """Return limits set for one place. Raises LimitNotFound, also for a place of another organisation."""
    async with looking():
        await _team_of(accounts, organisation_id, place, None)
        found = await store.at(place)
    if found is None:
        raise LimitNotFound(f"No limit is set for {str(place)[:200]}; the configuration's hold.")
    return found


def audit_record(rule: Rule) -> dict[str, Any]:
    """Return a limit as its audit entry stores it, without values that fall back to the configuration's."""
    return {name: value for name, value in as_fields(rule.limits).items() if value is not None}


def as_fields(limits: Limits) -> dict[str, int | None]:
    """Return the limits' values by name."""
    return msgspec.structs.asdict(limits)


async def _team_of(accounts: AccountStore, organisation_id: str, place: Place, only_keys_of: TeamRecord | None) -> str:
    """Return the team whose audit log the change also belongs to, or ''. A place of another organisation is not found."""
    check_place(place)
    if only_keys_of is not None and place.scope != "key":
        raise NotAllowed("Only the organisation's administrators set other limits than those of a team's keys.")
    try:
        match place.scope:
            case "organisation" if place.scope_id != organisation_id:
                raise BadRequest(f"There is no organisation `{place.scope_id[:80]}`.", param="scope_id")
            case "team" | "end_user":
                return (await accounts.team_of(organisation_id, team_of(place))).team_id
            case "key":
                within = None if only_keys_of is None else only_keys_of.team_id
                key = await accounts.key_of(organisation_id, within, place.scope_id)
                check_may_change(key, may_all=only_keys_of is None)
                return key.team_id
            case _:
                return ""
    except (UnknownTeam, UnknownKeyId) as error:
        unknown = ("key", place.scope_id) if place.scope == "key" else ("team", team_of(place))
        raise no_such_place(*unknown) from error
