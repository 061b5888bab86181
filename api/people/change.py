"""Changes of an organisation's people, each with its audit entry: inviting, roles, disabling, and password links."""

from typing import Any

from msgspec import UNSET, UnsetType

from accounts.access import OrganisationRole
from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.people.links import OneTimeLinks
from accounts.people.people import PeopleStore, normal_email
from accounts.people.person import Person
from api.web.changing import changing, looking, refusals
from proxy.errors import BadRequest, LastAdmin, NameTaken, PersonNotFound


async def put_person(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    email: str,
    *,
    operator: str,
    name: str | UnsetType = UNSET,
    role: OrganisationRole | UnsetType = UNSET,
    reason: str = "",
) -> tuple[Person, bool]:
    """Invite or change a person; the second value is True for a new one. Omitted values stay.

    `operator` is the organisation that runs the gateway: only its people can be operators. Raises BadRequest and
    LastAdmin.
    """
    if role == "operator" and organisation_id != operator:
        raise BadRequest("Only people of the organisation that runs the gateway can be operators.", param="role")
    with refusals():
        email = normal_email(email)
    async with changing(log, actor, "person.set", organisation_id, reason=reason) as change:
        store = PeopleStore(change.within)
        before = await store.find(email, organisation_id=organisation_id)
        if before is None:
            person = await _create(store, organisation_id, email, name, role)
        else:
            person = await _update(store, before, name, role)
        change.tell("person", person.person_id, None if before is None else audit_record(before), audit_record(person))
    return person, before is None


async def disable_person(log: AuditLog, actor: Actor, organisation_id: str, email: str, *, reason: str = "") -> Person:
    """Disable a person and end their sessions. Idempotent. Raises LastAdmin, PersonNotFound."""
    async with changing(log, actor, "person.disabled", organisation_id, reason=reason) as change:
        store = PeopleStore(change.within)
        before = await one_person(store, organisation_id, email)
        if before.disabled_at is not None:
            return before
        await check_another_admin(store, before)
        person = await store.disable(before.person_id, organisation_id=organisation_id)
        change.tell("person", person.person_id, audit_record(before), audit_record(person))
    return person


async def enable_person(log: AuditLog, actor: Actor, organisation_id: str, email: str, *, reason: str = "") -> Person:
    """Enable a disabled person. Idempotent. Raises PersonNotFound."""
    async with changing(log, actor, "person.enabled", organisation_id, reason=reason) as change:
        store = PeopleStore(change.within)
        before = await one_person(store, organisation_id, email)
        if before.disabled_at is None:
            return before
        person = await store.enable(before.person_id, organisation_id=organisation_id)
        change.tell("person", person.person_id, audit_record(before), audit_record(person))
    return person


async def make_link(log: AuditLog, actor: Actor, organisation_id: str, email: str, links: OneTimeLinks) -> str:
    """Return the token of a new one-time link to choose a password. Earlier links stop working. Raises BadRequest for a
    disabled person.
    """
    async with changing(log, actor, "person.link_made", organisation_id) as change:
        person = await one_person(PeopleStore(change.within), organisation_id, email)
        if person.disabled_at is not None:
            raise BadRequest(f"{person.email} is disabled; enable them first.", param="email")
        token = await links.within(change.within).make(person.person_id)
        change.add("person", person.person_id, None, {"email": person.email})
    return token


async def read_people(store: PeopleStore, organisation_id: str) -> list[Person]:
    """Return an organisation's people, by e-mail address."""
    async with looking():
        return await store.of_organisation(organisation_id)


async def read_person(store: PeopleStore, organisation_id: str, email: str) -> Person:
    """Return one of an organisation's people. Raises PersonNotFound."""
    async with looking():
        return await one_person(store, organisation_id, email)


async def one_person(store: PeopleStore, organisation_id: str, email: str) -> Person:
    """Return one of an organisation's people. Raises PersonNotFound, also for another organisation's."""
    found = await store.find(email, organisation_id=organisation_id)
    if found is None:
        raise PersonNotFound(
            f"There is nobody with the address {email[:80]!r} in the organisation; invite them first.", param="email"
        )
    return found


def audit_record(person: Person) -> dict[str, Any]:
    """Return a person as its audit entry stores it."""
    return {
        "email": person.email,
        "name": person.name,
        "role": person.role,
        "source": person.source,
        "disabled": person.disabled_at is not None,
    }


async def _create(
    store: PeopleStore,
    organisation_id: str,
    email: str,
    name: str | UnsetType,
    role: OrganisationRole | UnsetType,
) -> Person:
    chosen = email.partition("@")[0] if isinstance(name, UnsetType) else name
    if await store.find(email) is not None:
        # The person belongs to another organisation, which must not be revealed.
        raise NameTaken(f"The address {email[:80]!r} cannot be used here.", param="email")
    return await store.create(organisation_id, email, chosen, role="" if isinstance(role, UnsetType) else role)


async def _update(
    store: PeopleStore, before: Person, name: str | UnsetType, role: OrganisationRole | UnsetType
) -> Person:
    person, owner = before, before.organisation_id
    if not isinstance(name, UnsetType) and name != before.name:
        person = await store.rename(before.person_id, name, organisation_id=owner)
    if not isinstance(role, UnsetType) and role != before.role:
        await check_another_admin(store, before)
        person = await store.set_role(before.person_id, role, organisation_id=owner, source="local")
    return person


async def check_another_admin(store: PeopleStore, person: Person) -> None:
    """Raise LastAdmin for the only enabled administrator. Changes are serialised, so two cannot leave together."""
    if person.role != "admin" or person.disabled_at is not None:
        return
    people = await store.of_organisation(person.organisation_id)
    if not any(
        each.role == "admin" and each.disabled_at is None and each.person_id != person.person_id for each in people
    ):
        raise LastAdmin(f"{person.email} is the organisation's last administrator; make somebody else one first.")
