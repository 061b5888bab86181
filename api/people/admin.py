"""/v1/admin/people: people of the organisation and their roles."""

from typing import Annotated

from fastapi import APIRouter, Depends
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from accounts.people.links import link_url
from accounts.people.person import Person
from api.people.admin_types import PersonOut, PutPerson, person_out
from api.people.change import disable_person, enable_person, make_link, put_person, read_people, read_person
from api.web.address import link_base
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Listed
from api.web.changing import looking
from api.web.openapi import PREFIX, described

router = APIRouter(tags=["people"])

_PLACE = f"{PREFIX}/people/{{email}}"


@router.get(f"{PREFIX}/people", **described("List the organisation's people", gives={200: Listed[PersonOut]}))
async def list_people(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return all people, by e-mail address, disabled ones included."""
    people = await read_people(desk.gateway.identity.people, desk.organisation_id)
    teams = await _teams_of(desk, people)
    return desk.reply(Listed(data=[person_out(each, teams.get(each.person_id, {})) for each in people]))


@router.get(_PLACE, **described("Read a person", gives={200: PersonOut}))
async def show_person(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))], email: str) -> Response:
    """Show one person of the organisation."""
    return await _person_reply(desk, await read_person(desk.gateway.identity.people, desk.organisation_id, email))


@router.put(
    _PLACE,
    **described(
        "Invite or change a person",
        takes=PutPerson,
        gives={200: PersonOut, 201: PersonOut},
        example={"name": "Ada Lovelace", "role": "finance"},
    ),
)
async def set_person(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], email: str) -> Response:
    """Invite or change a person. 201 for a new one, with a one-time link to choose a password where passwords are
    enabled.
    """
    asked = await desk.body(PutPerson)
    log, actor, owner = desk.gateway.identity.audit, desk.actor, desk.organisation_id
    person, created = await put_person(
        log,
        actor,
        owner,
        email,
        operator=desk.gateway.operator,
        name=asked.name,
        role=asked.role,
        reason=asked.reason,
    )
    if not isinstance(asked.disabled, UnsetType):
        change = disable_person if asked.disabled else enable_person
        person = await change(log, actor, owner, person.email, reason=asked.reason)
    comes_in = created and person.disabled_at is None and desk.gateway.config().sign_in.passwords
    return await _person_reply(desk, person, await _link(desk, person) if comes_in else UNSET, 201 if created else 200)


@router.post(f"{_PLACE}/link", **described("Make a new one-time link", gives={201: PersonOut}))
async def new_link(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], email: str) -> Response:
    """Create a one-time link to choose a new password. Earlier links stop working."""
    person = await read_person(desk.gateway.identity.people, desk.organisation_id, email)
    return await _person_reply(desk, person, await _link(desk, person), 201)


@router.delete(_PLACE, **described("Disable a person", gives={200: PersonOut}))
async def end_person(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], email: str) -> Response:
    """Disable a person and end their sessions. Nobody is deleted, so that the audit log keeps its actors."""
    person = await disable_person(desk.gateway.identity.audit, desk.actor, desk.organisation_id, email)
    return await _person_reply(desk, person)


async def _person_reply(
    desk: AdminRequest, person: Person, link: str | UnsetType = UNSET, status: int = 200
) -> Response:
    teams = await _teams_of(desk, [person])
    return desk.reply(person_out(person, teams.get(person.person_id, {}), link), status)


async def _teams_of(desk: AdminRequest, people: list[Person]) -> dict[str, dict[str, str]]:
    async with looking():
        found = await desk.gateway.identity.people.teams_of([each.person_id for each in people])
    return {person_id: {team: str(role) for team, role in teams.items()} for person_id, teams in found.items()}


async def _link(desk: AdminRequest, person: Person) -> str:
    token = await make_link(
        desk.gateway.identity.audit, desk.actor, desk.organisation_id, person.email, desk.gateway.identity.links
    )
    return link_url(link_base(desk.request, desk.gateway.config()), token)
