"""/dashboard/teams/{team_id}/members: members of a team and their roles."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, cast, get_args

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.access import TeamRole
from accounts.people.person import Member, Person
from api.people.change import put_person, read_people
from api.people.members_change import put_member, read_members, remove_member
from api.web.changing import looking
from dashboards.people.invitation import with_link
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest, PersonNotFound, Refused

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/teams/{team_id}/members"
_EMAIL_CHARS: Final = 254
_MOST_PICKED: Final = 200
_ROLES: Final = (
    ("member", "Member: reads the team's pages"),
    ("admin", "Team administrator: also hands out keys and changes the policy"),
)
_COLUMNS: Final = (
    Column("name", "Name"),
    Column("email", "E-mail"),
    Column("role", "Role"),
    Column(
        "source",
        "Given",
        note="Added by hand, or through a group of the sign-in provider and then kept in step with it.",
    ),
    Column("state", "State", "badge"),
    Column("seen", "Last signed in", "time"),
)


@router.get(_PLACE)
async def list_members(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the team's members, and the form to add one."""
    return await _list(view, {}, {})


@router.post(_PLACE)
async def add_member(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Add a person of the organisation, or change a member's role."""
    form = await view.form()
    try:
        email = form.text("email", most=_EMAIL_CHARS, required=True).lower()
        role = cast(TeamRole, form.one_of("role", get_args(TeamRole)))
        member, created = await put_member(view.gateway.identity.audit, view.actor, view.the_team, email, role)
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except (BadRequest, PersonNotFound) as error:
        return await _list(view, form.plain, {error.param or "email": error.message})
    name = member.person.name
    said = f"{name} is a member now." if created else f"{name} has the role {member.role} in this team now."
    return view.redirect(_base(view), said)


@router.post(f"{_PLACE}/invite")
async def invite(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Invite somebody who is not in the organisation yet into this team, and show their one-time link, this once. They
    get no role but the one in the team.
    """
    form = await view.form()
    try:
        email = form.text("new_email", most=_EMAIL_CHARS, required=True).lower()
        name = form.text("name", required=True)
        role = cast(TeamRole, form.one_of("new_role", get_args(TeamRole)))
        person = await _new_person(view, email, name)
        await put_member(view.gateway.identity.audit, view.actor, view.the_team, person.email, role)
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except Refused as error:
        return await _list(view, form.plain, {error.param if error.param == "name" else "new_email": error.message})
    if not view.gateway.config().sign_in.passwords:
        return view.redirect(_base(view), f"{person.name} may sign in now, through the provider.")
    return await with_link(view, person, is_new=True, back=_base(view), above="Members")


async def _new_person(view: PageRequest, email: str, name: str) -> Person:
    """Add a new person without a role. Who is in the organisation already gets no link: it would change their password."""
    owner, gateway = view.principal.organisation_id, view.gateway
    async with looking():
        there = await gateway.identity.people.find(email, organisation_id=owner)
    if there is not None:
        raise FormError("new_email", "They are in the organisation already: add them above.")
    person, is_new = await put_person(
        gateway.identity.audit, view.actor, owner, email, operator=gateway.operator, name=name
    )
    if not is_new:
        raise FormError("new_email", "They were invited just now: add them above.")
    return person


@router.post(f"{_PLACE}/remove")
async def take_member(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Remove a member from the team."""
    form = await view.form()
    try:
        email = form.text("email", most=_EMAIL_CHARS, required=True).lower()
    except FormError as error:
        return await _list(view, {}, {error.field: error.message})
    was_there = await remove_member(view.gateway.identity.audit, view.actor, view.the_team, email)
    said = f"{email} is no member any more." if was_there else f"{email} was no member."
    # Viewers who removed themselves may no longer read this team.
    stays = view.may("organisation.read") or view.session.person.email != email
    return view.redirect(_base(view) if stays else "/dashboard", said)


async def _list(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    members = await read_members(view.gateway.identity.people, view.the_team)
    known = {each.person.email for each in members}
    others: list[tuple[str, str]] = []
    if view.may("team.change") and view.may("organisation.read"):
        people = await read_people(view.gateway.identity.people, view.principal.organisation_id)
        others = [
            (each.email, f"{each.name} ({each.email})")
            for each in people
            if each.disabled_at is None and each.email not in known
        ]
    table = Table.of(
        _COLUMNS,
        [_row(each) for each in members],
        view.query,
        caption="Members",
        sort="email",
        search=("name", "email"),
        empty="Nobody belongs to this team yet. The organisation's administrators and finance see it all the same.",
    )
    return view.csv_asked(f"members-{view.the_team.team_id}", table) or view.page(
        "people/members.html",
        title="Members",
        status=400 if errors else 200,
        table=table,
        base=_base(view),
        roles=_ROLES,
        may_change=view.may("team.change"),
        # Too many to pick from a list; the address is typed.
        others=others if len(others) <= _MOST_PICKED else [],
        values=values,
        errors=errors,
    )


def _base(view: PageRequest) -> str:
    return f"/dashboard/teams/{view.the_team.team_id}/members"


def _row(member: Member) -> dict[str, Any]:
    person = member.person
    return {
        "name": person.name,
        "email": person.email,
        "role": "admin" if member.role == "admin" else "member",
        "is_admin": member.role == "admin",
        "source": "provider" if member.source == "oidc" else "by hand",
        "state": _state(member),
        "seen": None if person.signed_in_at is None else _us(person.signed_in_at),
    }


def _state(member: Member) -> tuple[str, str]:
    if member.person.disabled_at is not None:
        return "disabled", "quiet"
    return ("active", "good") if member.person.signed_in_at is not None else ("invited", "info")


def _us(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
