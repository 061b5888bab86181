"""/v1/admin/teams: teams and their policies."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.access import may
from api.policy.change import PolicyChoice, set_policy
from api.teams.admin_types import BlockTeam, FlushCache, PolicyOut, PutPolicy, PutTeam, TeamOut, policy_out, team_out
from api.teams.change import block_team, flush_cache, put_team
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Listed
from api.web.changing import looking
from api.web.openapi import PREFIX, described

router = APIRouter(tags=["teams"])


@router.get(f"{PREFIX}/teams", **described("List the teams that the key may read", gives={200: Listed[TeamOut]}))
async def list_teams(desk: Annotated[AdminRequest, Depends(admin("signed-in"))]) -> Response:
    """Return all teams of the organisation for finance and administrators; for a member's key, its own."""
    async with looking():
        teams = await desk.gateway.identity.accounts.teams_of(desk.organisation_id)
    mine = [team_out(team) for team in teams if may(desk.principal, "team.read", team_id=team.team_id)]
    return desk.reply(Listed(data=mine))


@router.get(f"{PREFIX}/teams/{{team_id}}", **described("Read a team", gives={200: TeamOut}))
async def show_team(desk: Annotated[AdminRequest, Depends(admin("team.read"))]) -> Response:
    """Show one team."""
    return desk.reply(team_out(desk.the_team))


@router.put(
    f"{PREFIX}/teams/{{team_id}}",
    **described(
        "Make or change a team",
        takes=PutTeam,
        gives={200: TeamOut, 201: TeamOut},
        example={"name": "Payments", "weight": 2, "reason": "they answer customers"},
    ),
)
async def set_team(
    desk: Annotated[AdminRequest, Depends(admin("organisation.change", makes_team=True))], team_id: str
) -> Response:
    """Create or change a team. 201 where it is new."""
    asked = await desk.body(PutTeam)
    team, created = await put_team(
        desk.gateway.identity.audit,
        desk.actor,
        desk.organisation_id,
        team_id,
        name=asked.name,
        weight=asked.weight,
        may_weigh=desk.principal.of_operators,
        reason=asked.reason,
    )
    return desk.reply(team_out(team), 201 if created else 200)


@router.post(
    f"{PREFIX}/teams/{{team_id}}/block", **described("Block a team", takes=BlockTeam, gives={200: TeamOut}, example={})
)
async def block_team_keys(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Refuse all keys of a team with 403 until it is unblocked; every server follows within seconds."""
    return await _blocked(desk, blocked=True)


@router.post(
    f"{PREFIX}/teams/{{team_id}}/unblock",
    **described("Unblock a team", takes=BlockTeam, gives={200: TeamOut}, example={}),
)
async def unblock_team_keys(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Let a blocked team's keys work again."""
    return await _blocked(desk, blocked=False)


@router.post(
    f"{PREFIX}/teams/{{team_id}}/cache/flush",
    **described("Flush a team's answer cache", takes=FlushCache, gives={200: PolicyOut}, example={}),
)
async def flush_answers(desk: Annotated[AdminRequest, Depends(admin("team.change"))]) -> Response:
    """Have none of the team's kept answers given again; every server follows within seconds."""
    asked, team = await desk.body(FlushCache), desk.the_team
    changed = await flush_cache(
        desk.gateway.identity.audit, desk.actor, team.organisation_id, team.team_id, reason=asked.reason
    )
    return desk.reply(policy_out(changed))


async def _blocked(desk: AdminRequest, *, blocked: bool) -> Response:
    asked, team = await desk.body(BlockTeam), desk.the_team
    changed = await block_team(
        desk.gateway.identity.audit,
        desk.actor,
        team.organisation_id,
        team.team_id,
        blocked=blocked,
        reason=asked.reason,
    )
    return desk.reply(team_out(changed))


@router.get(f"{PREFIX}/teams/{{team_id}}/policy", **described("Read a team's policy", gives={200: PolicyOut}))
async def show_policy(desk: Annotated[AdminRequest, Depends(admin("team.read"))]) -> Response:
    """Return the team's policy."""
    return desk.reply(policy_out(desk.the_team))


@router.put(
    f"{PREFIX}/teams/{{team_id}}/policy",
    **described(
        "Change a team's policy",
        takes=PutPolicy,
        gives={200: PolicyOut},
        example={"quality_floor": 0.95, "spill_over": False, "reason": "trial of a lower minimum"},
    ),
)
async def change_policy(desk: Annotated[AdminRequest, Depends(admin("team.change"))]) -> Response:
    """Change the team's policy. Every server follows within seconds."""
    asked = await desk.body(PutPolicy)
    fields = {name: getattr(asked, name) for name in PolicyChoice.__struct_fields__}
    team = await set_policy(
        desk.gateway.identity.audit,
        desk.actor,
        desk.the_team,
        msgspec.structs.replace(PolicyChoice(), **fields),
        reason=asked.reason,
        forget=desk.gateway.learning,
        models=desk.gateway.rules().catalog,
    )
    return desk.reply(policy_out(team))
