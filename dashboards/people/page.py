"""/dashboard/people: people of the organisation, their roles, invitations, and disabling."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.access import OrganisationRole, TeamRole
from accounts.people.people_errors import UnknownPerson
from accounts.people.person import Member, Person
from accounts.store import TeamRecord
from api.people.change import disable_person, enable_person, put_person, read_people
from api.people.members_change import put_member, remove_member
from api.web.changing import changing, looking
from dashboards.people.invitation import with_link
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.errors import PersonNotFound, Refused

router: Final = APIRouter(include_in_schema=False)

_HERE: Final = "/dashboard/people"
_ONE: Final = f"{_HERE}/{{person_id}}"
_EMAIL_CHARS: Final = 254
_REASON_CHARS: Final = 500
_ROLES: Final = (
    ("", "No role: only what their teams let them do"),
    ("finance", "Finance: reads everything, changes nothing"),
    ("admin", "Administrator: can change everything in the organisation"),
)
_OPERATOR: Final = ("operator", "Operator: runs the gateway for all organisations")
_TEAM_ROLES: Final = (("member", "Member"), ("admin", "Team administrator"))
_PLACES: Final = ("member", "admin")
_SHORT: Final = {"": "member", "admin": "administrator", "finance": "finance", "operator": "operator"}
_COLUMNS: Final = (
    Column("name", "Name", "link"),
    Column("email", "E-mail"),
    Column("role", "Role"),
    Column("teams", "Teams"),
    Column("state", "State", "badge"),
    Column(
        "source", "Signs in", note="Roles and teams from groups of the sign-in provider are set anew at each sign-in."
    ),
    Column("seen", "Last signed in", "time"),
)
_SESSIONS: Final = (
    Column("created", "Since", "time"),
    Column("seen", "Last seen", "time"),
    Column("via", "Signed in by"),
    Column("address", "From", "code"),
    Column("agent", "Browser"),
)


@router.get(_HERE)
async def list_people(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """List all people, and the form to invite one."""
    return await _list(view, {}, {})


@router.post(_HERE)
async def invite(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Invite a person, and show their one-time link, this once."""
    form = await view.form()
    try:
        # Validate everything before creating the person, so that a corrected form does not find them existing.
        team, team_role = await _team(view, form.text("team")), form.one_of("team_role", _PLACES)
        person = await _invite_person(view, form)
        if team is not None:
            await put_member(view.gateway.identity.audit, view.actor, team, person.email, cast(TeamRole, team_role))
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except Refused as error:
        return await _list(view, form.plain, {_field(error, "email"): error.message})
    if not view.gateway.config().sign_in.passwords:
        return view.redirect(f"{_HERE}/{person.person_id}", f"{person.name} may sign in now, through the provider.")
    return await _with_link(view, person, is_new=True)


@router.get(_ONE)
async def show_person(view: Annotated[PageRequest, Depends(allowed("organisation.read"))], person_id: str) -> Response:
    """Show one person: role, teams, and sessions."""
    return await _show(view, await _person(view, person_id), {}, {})


@router.post(_ONE)
async def change_person(
    view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str
) -> Response:
    """Change a person's name or role."""
    person, form = await _person(view, person_id), await view.form()
    try:
        role = _role(view, form)
        name, reason = form.text("name", required=True), form.text("reason", most=_REASON_CHARS)
        await put_person(
            view.gateway.identity.audit,
            view.actor,
            view.principal.organisation_id,
            person.email,
            operator=view.gateway.operator,
            name=name,
            role=role,
            reason=reason,
        )
    except FormError as error:
        return await _show(view, person, form.plain, {error.field: error.message})
    except Refused as error:
        return await _show(view, person, form.plain, {_field(error, "role"): error.message})
    return view.redirect(f"{_HERE}/{person_id}", "Saved.")


@router.post(f"{_ONE}/team")
async def change_team(
    view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str
) -> Response:
    """Add a person to a team, change their role there, or remove them."""
    person, form = await _person(view, person_id), await view.form()
    try:
        team, role = await _team(view, form.text("team", required=True)), form.one_of("team_role", (*_PLACES, "none"))
        assert team is not None  # noqa: S101 - one is named
        told = await _set_membership(view, person, team, role)
    except FormError as error:
        return await _show(view, person, form.plain, {error.field: error.message})
    except Refused as error:
        return await _show(view, person, form.plain, {"team": error.message})
    return view.redirect(f"{_HERE}/{person_id}", told)


@router.post(f"{_ONE}/disable")
async def disable(view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str) -> Response:
    """Disable a person and end their sessions."""
    person = await _person(view, person_id)
    if person.person_id == view.session.person.person_id:
        return view.redirect(f"{_HERE}/{person_id}", "You cannot disable yourself; ask another administrator.", "bad")
    return await _set_enabled(
        view, person, f"{person.name} is signed out everywhere and may not come in any more.", enable=False
    )


@router.post(f"{_ONE}/enable")
async def enable(view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str) -> Response:
    """Enable a disabled person."""
    person = await _person(view, person_id)
    return await _set_enabled(view, person, f"{person.name} may sign in again.", enable=True)


@router.post(f"{_ONE}/sign-out")
async def sign_out(view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str) -> Response:
    """End every session of a person."""
    person = await _person(view, person_id)
    owner = view.principal.organisation_id
    async with changing(view.gateway.identity.audit, view.actor, "person.signed_out_everywhere", owner) as change:
        ended = await view.gateway.identity.sessions.within(change.within).close_all(person.person_id)
        change.tell("person", person.person_id, {"sessions": ended}, {"sessions": 0})
    told = f"{person.name} was signed in nowhere." if not ended else f"{person.name} is signed out everywhere."
    return view.redirect(f"{_HERE}/{person_id}", told)


@router.post(f"{_ONE}/link")
async def make_link(view: Annotated[PageRequest, Depends(allowed("organisation.change"))], person_id: str) -> Response:
    """Create a one-time link to choose a new password."""
    person = await _person(view, person_id)
    if not view.gateway.config().sign_in.passwords:
        return view.redirect(
            f"{_HERE}/{person_id}", "Passwords are off here: people sign in through the provider.", "bad"
        )
    if person.disabled_at is not None:
        return view.redirect(
            f"{_HERE}/{person_id}", "Enable this person first; a link would not let them sign in.", "bad"
        )
    return await _with_link(view, person, is_new=False)


async def _invite_person(view: PageRequest, form: Form) -> Person:
    email = form.text("email", most=_EMAIL_CHARS, required=True).lower()
    name, role = form.text("name", required=True), _role(view, form)
    owner = view.principal.organisation_id
    async with looking():
        there = await view.gateway.identity.people.find(email, organisation_id=owner)
    if there is not None:
        raise FormError("email", f"{there.name} is in the organisation already; find them in the list to change them.")
    person, _ = await put_person(
        view.gateway.identity.audit, view.actor, owner, email, operator=view.gateway.operator, name=name, role=role
    )
    return person


def _role(view: PageRequest, form: Form) -> OrganisationRole:
    allowed_here = tuple(role for role, _ in _roles(view))
    return cast(OrganisationRole, form.one_of("role", allowed_here))


def _roles(view: PageRequest) -> tuple[tuple[str, str], ...]:
    """Return the roles on offer; only the organisation that runs the gateway has operators."""
    return (*_ROLES, _OPERATOR) if view.principal.of_operators else _ROLES


async def _set_membership(view: PageRequest, person: Person, team: TeamRecord, role: str) -> str:
    log, actor = view.gateway.identity.audit, view.actor
    if role == "none":
        was = await remove_member(log, actor, team, person.email)
        return f"{person.name} is out of {team.name}." if was else f"{person.name} was not in {team.name}."
    await put_member(log, actor, team, person.email, cast(TeamRole, role))
    return f"{person.name} is {'an administrator' if role == 'admin' else 'a member'} of {team.name} now."


async def _team(view: PageRequest, team_id: str) -> TeamRecord | None:
    """Return one of the organisation's teams, or None where none is named. Another organisation's is not found."""
    if not team_id:
        return None
    async with looking():
        return await view.gateway.identity.accounts.team_of(view.principal.organisation_id, team_id)


async def _with_link(view: PageRequest, person: Person, *, is_new: bool) -> Response:
    return await with_link(view, person, is_new=is_new, back=f"{_HERE}/{person.person_id}", above="People")


async def _set_enabled(view: PageRequest, person: Person, told: str, *, enable: bool) -> Response:
    place, reason = f"{_HERE}/{person.person_id}", (await view.form()).text("reason", most=_REASON_CHARS)
    do = enable_person if enable else disable_person
    try:
        await do(view.gateway.identity.audit, view.actor, person.organisation_id, person.email, reason=reason)
    except Refused as error:
        return view.redirect(place, error.message, "bad")
    return view.redirect(place, told)


async def _person(view: PageRequest, person_id: str) -> Person:
    """Return one of the organisation's people. Raises PersonNotFound, also for another organisation's."""
    try:
        async with looking():
            return await view.gateway.identity.people.get(person_id, organisation_id=view.principal.organisation_id)
    except (UnknownPerson, PersonNotFound) as error:
        raise PersonNotFound("There is no such person in your organisation.", param="person_id") from error


async def _list(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    owner = view.principal.organisation_id
    people = await read_people(view.gateway.identity.people, owner)
    async with looking():
        places = await view.gateway.identity.people.teams_of([each.person_id for each in people])
        teams = await view.gateway.identity.accounts.team_names(owner)
    table = Table.of(
        _COLUMNS,
        [_row(each, places.get(each.person_id, {}), teams) for each in people],
        view.query,
        caption="People",
        sort="name",
        search=("name", "email", "role", "teams"),
    )
    return view.csv_asked("people", table) or view.page(
        "people/list.html",
        title="People",
        status=400 if errors else 200,
        table=table,
        roles=_roles(view),
        teams=[("", "No team yet"), *_by_name(teams)],
        team_roles=_TEAM_ROLES,
        may_change=view.may("organisation.change"),
        values=values,
        errors=errors,
    )


async def _show(view: PageRequest, person: Person, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    async with looking():
        sessions = await view.gateway.identity.sessions.of_person(person.person_id)
        members = await view.gateway.identity.people.memberships_of(person.person_id)
        teams = await view.gateway.identity.accounts.team_names(person.organisation_id)
    rows = [
        {
            "created": each.created_us,
            "seen": each.seen_us,
            "via": _VIA[each.via],
            "address": each.address,
            "agent": each.agent,
        }
        for each in sessions
    ]
    return view.page(
        "people/person.html",
        title=person.name,
        status=400 if errors else 200,
        person=person,
        state=_state(person),
        created_us=_us(person.created_at),
        seen_us=None if person.signed_in_at is None else _us(person.signed_in_at),
        role=_SHORT[person.role],
        roles=_roles(view),
        places=sorted((_membership_row(each, teams) for each in members), key=lambda each: each["name"].casefold()),
        teams=[each for each in _by_name(teams) if each[0] not in {member.team_id for member in members}],
        team_roles=_TEAM_ROLES,
        sessions=Table.of(
            _SESSIONS, rows, view.query, caption="Sessions", sort="-seen", empty="Signed in nowhere.", csv=False
        ),
        may_change=view.may("organisation.change"),
        may_audit=view.may("audit.read"),
        with_passwords=view.gateway.config().sign_in.passwords,
        is_self=person.person_id == view.session.person.person_id,
        base=f"{_HERE}/{person.person_id}",
        values={"name": person.name, "role": person.role, **values},
        errors=errors,
    )


_VIA: Final = {"password": "a password", "link": "a one-time link", "oidc": "the provider"}


def _row(person: Person, places: Mapping[str, TeamRole], teams: Mapping[str, str]) -> dict[str, Any]:
    of = sorted(
        teams.get(team_id, team_id) + (" (admin)" if role == "admin" else "") for team_id, role in places.items()
    )
    return {
        "name": person.name,
        "name_href": f"{_HERE}/{person.person_id}",
        "email": person.email,
        "role": _SHORT[person.role],
        "teams": ", ".join(of) or None,
        "state": _state(person),
        "source": "provider" if person.source == "oidc" else "here",
        "seen": None if person.signed_in_at is None else _us(person.signed_in_at),
    }


def _state(person: Person) -> tuple[str, str]:
    if person.disabled_at is not None:
        return "disabled", "quiet"
    if person.signed_in_at is None:
        return "invited", "info"
    return "active", "good"


def _membership_row(member: Member, teams: Mapping[str, str]) -> dict[str, Any]:
    return {
        "team_id": member.team_id,
        "name": teams.get(member.team_id, member.team_id),
        "role": member.role,
        "from_provider": member.source == "oidc",
    }


def _by_name(teams: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(teams.items(), key=lambda item: item[1].casefold())


def _field(error: Refused, usual: str) -> str:
    return error.param if error.param in {"email", "name", "role", "reason"} else usual


def _us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
