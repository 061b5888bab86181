"""Changes of team memberships, each with its audit entry."""

from typing import Any, get_args

from accounts.access import TeamRole
from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.people.people import PeopleStore
from accounts.people.person import Member, Person
from accounts.store import TeamRecord
from api.people.change import one_person
from api.web.changing import changing, looking
from proxy.errors import BadRequest


async def put_member(
    log: AuditLog, actor: Actor, team: TeamRecord, email: str, role: TeamRole, *, reason: str = ""
) -> tuple[Member, bool]:
    """Add a person of the organisation to the team, or change their role; the second value is True for a new member.
    Raises BadRequest and PersonNotFound.
    """
    if role not in get_args(TeamRole):
        raise BadRequest(f"A role in a team is one of {', '.join(get_args(TeamRole))}.", param="role")
    owner = team.organisation_id
    async with changing(log, actor, "member.set", owner, team_id=team.team_id, reason=reason) as change:
        store = PeopleStore(change.within)
        person = await one_person(store, owner, email)
        before = await _membership(store, team, person)
        if before is not None and before.role == role:
            return before, False
        member = await store.put_member(person.person_id, team.team_id, role, organisation_id=owner)
        change.tell("member", person.person_id, None if before is None else audit_record(before), audit_record(member))
    return member, before is None


async def remove_member(log: AuditLog, actor: Actor, team: TeamRecord, email: str, *, reason: str = "") -> bool:
    """Remove a member; False where they were none. Their keys stay, as keys belong to the team."""
    owner = team.organisation_id
    async with changing(log, actor, "member.removed", owner, team_id=team.team_id, reason=reason) as change:
        store = PeopleStore(change.within)
        person = await one_person(store, owner, email)
        before = await _membership(store, team, person)
        if before is None:
            return False
        await store.remove_member(person.person_id, team.team_id, organisation_id=owner)
        change.tell("member", person.person_id, audit_record(before), None)
    return True


async def read_members(store: PeopleStore, team: TeamRecord) -> list[Member]:
    """Return a team's members, by e-mail address."""
    async with looking():
        found = await store.members_of(team.team_id)
    return sorted(found, key=lambda each: each.person.email)


def audit_record(member: Member) -> dict[str, Any]:
    """Return a membership as its audit entry stores it."""
    return {"email": member.person.email, "role": member.role, "source": member.source}


async def _membership(store: PeopleStore, team: TeamRecord, person: Person) -> Member | None:
    found = await store.members_of(team.team_id)
    return next((each for each in found if each.person.person_id == person.person_id), None)
