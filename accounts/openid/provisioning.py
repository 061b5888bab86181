"""Provisioning of people who sign in through a provider: found, linked or created, with the role and teams of their
groups.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.errors import UnknownTeam
from accounts.people.oidc import GroupRights, Identity, IdentityRefused, standing_of
from accounts.people.oidc_config import OidcSection
from accounts.people.people import PeopleStore
from accounts.people.people_errors import PersonExists
from accounts.people.person import Person
from accounts.people.subjects import is_linked

_log: Final = logging.getLogger("weighbridge.sign_in")

Stores = Callable[[AsyncEngine], PeopleStore]


async def arrive(
    audit: AuditLog, identity: Identity, section: OidcSection, address: str, *, stores: Stores = PeopleStore
) -> Person:
    """Return the person to sign in, with role and teams updated. Raises IdentityRefused; then nothing was changed.

    One transaction: its lock on the audit log keeps two first sign-ins of one person from running at once.
    """
    actor = Actor(
        kind="gateway",
        actor_id=f"sign-in/{section.name}",
        name=f"Sign-in with {section.label}",
        organisation_id=section.organisation,
        address=address,
    )
    async with audit.change(actor, "person.set", reason=f"Signed in with {section.label}.") as change:
        people = stores(change.within)
        person, before = await _find_or_create(people, change.within, identity, section)
        person = await _apply_standing(people, person, standing_of(identity.groups, section), section)
        change.tell("person", person.person_id, before, await _audit_record(people, person, identity))
    return person


async def _find_or_create(
    people: PeopleStore, engine: AsyncEngine, identity: Identity, section: OidcSection
) -> tuple[Person, dict[str, Any] | None]:
    """Return the person, found, linked or created, and their audit record before; None for a new one."""
    person = await people.find_subject(identity.issuer, identity.subject)
    if person is not None:
        _check_may_enter(person, section)
        return person, await _audit_record(people, person, identity)
    person = None if identity.email is None else await people.find(identity.email)
    if person is None:
        return await _create(people, identity, section), None
    _check_may_enter(person, section)
    if await is_linked(engine, person.person_id, section.organisation):
        # The provider gave the address to another account, or two accounts share it.
        raise IdentityRefused("email_of_another", _uninvited_message(section))
    if not section.link_by_email:
        raise IdentityRefused(
            "not_linked",
            f"There is an account with your e-mail address here that is not used with {section.label}. Sign in with your "
            "password, or ask an administrator of your organisation.",
        )
    before = await _audit_record(people, person, None)
    await people.link_subject(person.person_id, identity.issuer, identity.subject, organisation_id=section.organisation)
    return person, before


async def _create(people: PeopleStore, identity: Identity, section: OidcSection) -> Person:
    if not section.create_people:
        raise IdentityRefused("unknown", _uninvited_message(section))
    if identity.email is None:
        raise IdentityRefused(
            "email_unverified",
            f"{section.label} does not vouch for an e-mail address of yours, which an account here needs. Have it verified "
            "there, then try again.",
        )
    try:
        return await people.create(
            section.organisation,
            identity.email,
            identity.name,
            # Without rules about roles, who administers the organisation here decides.
            source="oidc" if section.gives_roles else "local",
            issuer=identity.issuer,
            subject=identity.subject,
        )
    except PersonExists as taken:
        raise IdentityRefused("email_of_another", _uninvited_message(section)) from taken


async def _apply_standing(people: PeopleStore, person: Person, standing: GroupRights, section: OidcSection) -> Person:
    """Apply the role and teams that the groups give now, and remove those given by groups before. Those given by
    people here stay.
    """
    own = section.organisation
    if person.source == "oidc" and person.role != standing.role:
        person = await people.set_role(person.person_id, standing.role, organisation_id=own)
    places = {place.team_id: place for place in await people.memberships_of(person.person_id)}
    for team_id, role in sorted(standing.teams.items()):
        try:
            await people.put_member(person.person_id, team_id, role, organisation_id=own, source="oidc")
        except UnknownTeam:
            _log.warning("sign-in provider %s: groups name the team %s, which does not exist", section.name, team_id)
    for team_id, place in places.items():
        if place.source == "oidc" and team_id not in standing.teams:
            await people.remove_member(person.person_id, team_id, organisation_id=own, source="oidc")
    return person


def _check_may_enter(person: Person, section: OidcSection) -> None:
    if person.organisation_id != section.organisation:
        # Same message as for unknown people, so as not to reveal other organisations' members.
        raise IdentityRefused("other_organisation", _uninvited_message(section))
    if person.disabled_at is not None:
        raise IdentityRefused("disabled", _uninvited_message(section))


def _uninvited_message(section: OidcSection) -> str:
    return (
        f"Your account at {section.label} may not sign in here. Ask an administrator of your organisation to invite you, "
        "with the e-mail address that you have there."
    )


async def _audit_record(people: PeopleStore, person: Person, identity: Identity | None) -> dict[str, Any]:
    places = await people.memberships_of(person.person_id)
    return {
        "email": person.email,
        "role": person.role,
        "teams": {place.team_id: place.role for place in places},
        "signs_in_with": None if identity is None else identity.issuer,
    }
