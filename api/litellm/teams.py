"""Teams in LiteLLM's shapes."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from accounts.store import TeamRecord
from api.keys.change import read_keys, revoke_key
from api.litellm import keys, users
from api.litellm.desk import BOUNDS, keep_fields, set_bounds, shown
from api.litellm.sent import Sent
from api.people.members_change import put_member, read_members
from api.people.members_change import remove_member as take_member
from api.policy.change import PolicyChoice, set_policy
from api.teams.change import block_team, put_team
from api.web.admin_access import AdminRequest
from api.web.changing import looking
from api.web.parameters import Parameters
from proxy.errors import BadRequest, NameTaken, TeamNotFound

_KNOWN: Final = BOUNDS | {
    "team_id",
    "team_alias",
    "models",
    "metadata",
    "tags",
    "blocked",
    "organization_id",
    "members_with_roles",
    "members",
    "admins",
}
_KEPT: Final = ("metadata", "tags")
_NOTHING: Final[Mapping[str, Any]] = {
    **{name: {} for name in ("model_max_budget", "model_spend", "router_settings")},
    **{
        name: []
        for name in (
            "admins",
            "members",
            "access_group_ids",
            "default_team_member_models",
            "policies",
            "team_member_permissions",
        )
    },
    "allow_team_guardrail_config": False,
}
"""What no team here has, for clients that go over it."""
_DELETED: Final = "deleted"
_REASON: Final = "by LiteLLM's routes"


async def new(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Make a team as POST /team/new does."""
    sent = Sent(fields, _KNOWN)
    _check_organisation(desk, sent)
    team_id = sent.text("team_id") or str(uuid4())
    if await _find(desk, team_id) is not None:
        raise NameTaken(f"There is a team {team_id[:80]!r} already; POST /team/update changes it.", param="team_id")
    await put_team(
        desk.gateway.identity.audit, desk.actor, desk.organisation_id, team_id, name=sent.text("team_alias") or team_id
    )
    return await _apply(desk, team_id, sent, fields)


async def update(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Change what was sent of a team; what was not sent stays."""
    sent = Sent(fields, _KNOWN, changes=True)
    team = await _team(desk, sent.text("team_id"))
    _check_organisation(desk, sent)
    alias = sent.text("team_alias")
    if alias is not None and alias != team.name:
        await put_team(desk.gateway.identity.audit, desk.actor, desk.organisation_id, team.team_id, name=alias)
    told = await _apply(desk, team.team_id, sent, fields)
    return {"team_id": team.team_id, "data": told, **told}


async def _apply(desk: AdminRequest, team_id: str, sent: Sent, fields: dict[str, Any]) -> dict[str, Any]:
    team = await keys.team_of(desk, team_id)
    log = desk.gateway.identity.audit
    models = keys.models_in(sent)
    wanted = None if models is None else frozenset(models)
    if "models" in sent and wanted != team.allowed_models:
        await set_policy(
            log,
            desk.actor,
            team,
            PolicyChoice(allowed_models=models),
            reason=_REASON,
            forget=None,
            models=desk.gateway.rules().catalog,
        )
    blocked = sent.flag("blocked")
    if blocked is not None and blocked != (team.blocked_at is not None):
        await block_team(log, desk.actor, desk.organisation_id, team_id, blocked=blocked)
    await set_bounds(desk, "team", team_id, sent)
    await _set_members(desk, team, fields)
    await keep_fields(desk, "team", team_id, {name: fields.get(name) for name in _KEPT} | {_DELETED: False})
    return await _told(desk, await keys.team_of(desk, team_id))


async def _set_members(desk: AdminRequest, team: TeamRecord, fields: dict[str, Any]) -> None:
    listed = fields.get("members_with_roles") or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise BadRequest(
            "`members_with_roles` is a list of objects with `user_email` or `user_id`, and `role`.",
            param="members_with_roles",
        )
    for each in listed:
        email = str(each.get("user_email") or "")
        if not email and each.get("user_id"):
            email = (await users.find(desk, str(each["user_id"]))).email
        role = "admin" if each.get("role") == "admin" else "member"
        as_role: Any = role
        await put_member(desk.gateway.identity.audit, desk.actor, team, email, as_role)


async def info(desk: AdminRequest, team_id: str | None) -> dict[str, Any]:
    """Show a team with its keys; its fields stand at the top, too, where older clients look for them."""
    team = await _team(desk, team_id)
    if not desk.may("organisation.read") and team.team_id != desk.caller.team_id:
        raise TeamNotFound(f"There is no team `{team.team_id[:80]}` for this key.", param="team_id")
    told = await _told(desk, team)
    return {**told, "team_info": told, "keys": await keys.told_of_team(desk, team), "team_memberships": []}


async def delete(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Block teams and revoke their keys. The books keep what they spent, so a team's id is not free again."""
    sent = Sent(fields, {"team_ids"})
    named = sent.texts("team_ids")
    if not named:
        raise BadRequest("`team_ids` says which teams.", param="team_ids")
    log = desk.gateway.identity.audit
    for team in [await _team(desk, each) for each in named]:
        for key in await read_keys(desk.gateway.identity.accounts, team):
            if key.revoked_at is None:
                await revoke_key(log, desk.actor, team, key.key_id, may_all=True, reason=_REASON)
        await block_team(log, desk.actor, desk.organisation_id, team.team_id, blocked=True, reason=_REASON)
        await keep_fields(desk, "team", team.team_id, {_DELETED: True})
    return {"deleted_teams": named}


async def block(desk: AdminRequest, fields: dict[str, Any], *, blocked: bool) -> dict[str, Any]:
    """Block a team, or lift its block."""
    return await _apply_blocked(desk, Sent(fields, {"team_id"}).text("team_id"), blocked=blocked)


async def _apply_blocked(desk: AdminRequest, team_id: str | None, *, blocked: bool) -> dict[str, Any]:
    team = await _team(desk, team_id)
    await block_team(desk.gateway.identity.audit, desk.actor, desk.organisation_id, team.team_id, blocked=blocked)
    return await _told(desk, await keys.team_of(desk, team.team_id))


async def add_members(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Add one member or several, as POST /team/member_add does."""
    sent = Sent(fields, {"team_id", "member"})
    team = await _team(desk, sent.text("team_id"))
    member = fields.get("member")
    await _set_members(desk, team, {"members_with_roles": member if isinstance(member, list) else [member]})
    return {**await _told(desk, team), "updated_users": [], "updated_team_memberships": []}


async def change_member(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Change a member's role, as POST /team/member_update does."""
    sent = Sent(fields, {"team_id", "user_id", "user_email", "role"})
    team = await _team(desk, sent.text("team_id"))
    await _set_members(desk, team, {"members_with_roles": [fields]})
    return {name: sent.text(name) for name in ("team_id", "user_id", "user_email", "role")} | {
        "max_budget_in_team": None
    }


async def remove_member(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Take a member out of a team, as POST /team/member_delete does."""
    sent = Sent(fields, {"team_id", "user_id", "user_email"})
    team = await _team(desk, sent.text("team_id"))
    person = await users.find(desk, sent.text("user_email") or sent.text("user_id"))
    await take_member(desk.gateway.identity.audit, desk.actor, team, person.email)
    return await _told(desk, team)


async def page(desk: AdminRequest, asked: Parameters) -> dict[str, Any]:
    """List teams by the page, as GET /v2/team/list does."""
    number, size = asked.whole("page", 1, least=1, most=100_000), asked.whole("page_size", 10, least=1, most=100)
    found = await listed(desk, asked.text("user_id"), asked.text("organization_id"))
    one, part = asked.text("team_id"), (asked.text("team_alias") or "").lower()
    found = [each for each in found if one in {None, each["team_id"]} and part in each["team_alias"].lower()]
    return users.page_of("teams", found, number, size)


async def listed(
    desk: AdminRequest, user_id: str | None = None, organization_id: str | None = None
) -> list[dict[str, Any]]:
    """List the organisation's teams, or those of one user."""
    if organization_id is not None and organization_id != desk.organisation_id:
        return []
    async with looking():
        teams = await desk.gateway.identity.accounts.teams_of(desk.organisation_id)
        if user_id is not None:
            person = await users.find(desk, user_id)
            own = await desk.gateway.identity.people.teams_of([person.person_id])
            teams = [team for team in teams if team.team_id in own.get(person.person_id, {})]
    beside = await shown(desk, "team", [team.team_id for team in teams])
    return [
        _as_theirs(team, beside.bounds[team.team_id], fields, [])
        for team in teams
        if not (fields := beside.fields.get(team.team_id, {})).get(_DELETED)
    ]


async def _team(desk: AdminRequest, team_id: str | None) -> TeamRecord:
    if team_id is None:
        raise BadRequest("`team_id` says which team.", param="team_id")
    found = await _find(desk, team_id)
    if found is None:
        raise TeamNotFound(f"There is no team `{team_id[:80]}`.", param="team_id")
    return found


async def _find(desk: AdminRequest, team_id: str) -> TeamRecord | None:
    """Return a team that was not deleted by these routes."""
    try:
        team = await keys.team_of(desk, team_id)
    except TeamNotFound:
        return None
    fields = (await shown(desk, "team", [team_id])).fields.get(team_id, {})
    return None if fields.get(_DELETED) else team


def _check_organisation(desk: AdminRequest, sent: Sent) -> None:
    named = sent.text("organization_id")
    if named is not None and named != desk.organisation_id:
        raise BadRequest("A team belongs to the organisation of the key that makes it.", param="organization_id")


async def _told(desk: AdminRequest, team: TeamRecord) -> dict[str, Any]:
    beside = await shown(desk, "team", [team.team_id])
    members = await read_members(desk.gateway.identity.people, team)
    return _as_theirs(
        team,
        beside.bounds[team.team_id],
        beside.fields.get(team.team_id, {}),
        [
            {
                "user_id": each.person.email,
                "user_email": each.person.email,
                "role": "admin" if each.role == "admin" else "user",
            }
            for each in members
        ],
    )


def _as_theirs(
    team: TeamRecord, bounds: dict[str, Any], fields: dict[str, Any], members: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "team_id": team.team_id,
        "team_alias": team.name,
        "organization_id": team.organisation_id,
        "models": sorted(team.allowed_models or ()),
        "metadata": fields.get("metadata") or {},
        "tags": fields.get("tags") or [],
        "blocked": team.blocked_at is not None,
        "members_with_roles": members,
        "created_at": team.created_at,
        **_NOTHING,
        **bounds,
    }
