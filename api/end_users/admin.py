"""/v1/admin/teams/{team_id}/end_users: the same for administrators."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.end_users.standing import EndUserOut, read_end_user
from api.web.admin_access import AdminRequest, admin
from api.web.openapi import PREFIX, described

router = APIRouter(tags=["budgets"])


@router.get(
    f"{PREFIX}/teams/{{team_id}}/end_users/{{end_user:path}}",
    **described("Read how an end user stands", gives={200: EndUserOut}),
)
async def show_end_user(desk: Annotated[AdminRequest, Depends(admin("team.read"))], end_user: str) -> Response:
    """Return what an end user of the team spent, the budgets and limits that hold for this one, and what is left of them."""
    team = desk.the_team
    return desk.reply(await read_end_user(desk.gateway, team.organisation_id, team.team_id, end_user))
