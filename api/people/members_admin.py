"""/v1/admin/teams/{team_id}/members: members of a team and their roles."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.people.admin_types import MemberOut, PutMember, member_out
from api.people.members_change import put_member, read_members, remove_member
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Listed
from api.web.openapi import PREFIX, described
from proxy.errors import PersonNotFound

router = APIRouter(tags=["members"])

_PLACE = f"{PREFIX}/teams/{{team_id}}/members"


@router.get(_PLACE, **described("List a team's members", gives={200: Listed[MemberOut]}))
async def list_members(desk: Annotated[AdminRequest, Depends(admin("team.read"))]) -> Response:
    """Return the team's members, by e-mail address."""
    found = await read_members(desk.gateway.identity.people, desk.the_team)
    return desk.reply(Listed(data=[member_out(each) for each in found]))


@router.put(
    f"{_PLACE}/{{email}}",
    **described(
        "Give somebody a place in a team",
        takes=PutMember,
        gives={200: MemberOut, 201: MemberOut},
        example={"role": "admin"},
    ),
)
async def set_member(desk: Annotated[AdminRequest, Depends(admin("team.change"))], email: str) -> Response:
    """Add a person of the organisation to the team, or change their role. People are invited first, by PUT
    /v1/admin/people/{email}.
    """
    asked = await desk.body(PutMember)
    member, created = await put_member(
        desk.gateway.identity.audit, desk.actor, desk.the_team, email, asked.role, reason=asked.reason
    )
    return desk.reply(member_out(member), 201 if created else 200)


@router.delete(f"{_PLACE}/{{email}}", **described("Take somebody out of a team", gives={200: Deleted}))
async def take_member(desk: Annotated[AdminRequest, Depends(admin("team.change"))], email: str) -> Response:
    """Remove a member. A membership given by a group of the OpenID provider comes back at the next sign-in."""
    if not await remove_member(desk.gateway.identity.audit, desk.actor, desk.the_team, email):
        raise PersonNotFound(f"{email[:80]!r} is no member of this team.", param="email")
    return desk.reply(Deleted(id=email, object="team.member.deleted"))
