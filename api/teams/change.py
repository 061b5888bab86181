"""Changes of teams, each with its audit entry: creation, name, and weight."""

from typing import Any

from msgspec import UNSET, UnsetType

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.errors import UnknownTeam
from accounts.store import AccountStore, TeamRecord
from api.web.changing import changing
from proxy.errors import NotAllowed, TeamNotFound


async def put_team(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    team_id: str,
    *,
    name: str | UnsetType = UNSET,
    weight: float | UnsetType = UNSET,
    may_weigh: bool = False,
    reason: str = "",
) -> tuple[TeamRecord, bool]:
    """Create or change a team; the second value is True for a new one. Omitted values stay; a new team's name is its
    id.

    Raises TeamNotFound where the id is another organisation's: ids are unique over all of them. Weights divide capacity
    that all organisations share, so only the operator may change them (`may_weigh`).
    """
    async with changing(log, actor, "team.set", organisation_id, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        found = await _team_or_none(store, team_id)
        if found is not None and found.organisation_id != organisation_id:
            raise TeamNotFound(
                f"There is no team `{team_id[:80]}`, and its id cannot be used; choose another one.", param="team_id"
            )
        before = found
        if found is None:
            chosen = None if isinstance(name, UnsetType) else name
            found = await store.create_team(team_id, chosen, organisation_id=organisation_id)
        if not (may_weigh or isinstance(weight, UnsetType) or weight == found.settings.weight):
            raise NotAllowed("A team's weight counts against every organisation's teams: who runs the gateway sets it.")
        team = await store.update_team(team_id, organisation_id=organisation_id, name=name, weight=weight)
        change.tell("team", team_id, None if before is None else audit_record(before), audit_record(team))
    return team, before is None


async def block_team(
    log: AuditLog, actor: Actor, organisation_id: str, team_id: str, *, blocked: bool, reason: str = ""
) -> TeamRecord:
    """Refuse all keys of a team until it is unblocked, or unblock it. Idempotent. Servers follow within `accounts.fresh_s`."""
    action = "team.blocked" if blocked else "team.unblocked"
    async with changing(log, actor, action, organisation_id, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = await store.team_of(organisation_id, team_id)
        team = await store.block_team(organisation_id, team_id, blocked=blocked)
        change.tell("team", team_id, audit_record(before), audit_record(team))
    return team


async def flush_cache(
    log: AuditLog, actor: Actor, organisation_id: str, team_id: str, *, reason: str = ""
) -> TeamRecord:
    """Have none of a team's kept answers given again. Servers follow within `accounts.fresh_s`."""
    async with changing(log, actor, "team.cache_flushed", organisation_id, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = await store.team_of(organisation_id, team_id)
        team = await store.flush_cache(organisation_id, team_id)
        change.tell("team", team_id, _flushes(before), _flushes(team))
    return team


def _flushes(team: TeamRecord) -> dict[str, Any]:
    return {"name": team.name, "cache_epoch": team.settings.cache_epoch}


def audit_record(team: TeamRecord) -> dict[str, Any]:
    """Return a team as its audit entry stores it, without its policy, which has entries of its own."""
    return {"name": team.name, "weight": team.settings.weight, "blocked_at": team.blocked_at}


async def _team_or_none(store: AccountStore, team_id: str) -> TeamRecord | None:
    try:
        return await store.get_team(team_id)
    except UnknownTeam:
        return None
