"""Body and reply types of the admin API's people and members."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from accounts.access import OrganisationRole, TeamRole
from accounts.people.person import Member, Person
from api.web.api_types import Name, Reason, RequestBody


class PutMember(RequestBody, frozen=True):
    """A person's membership of a team."""

    role: TeamRole
    reason: Reason = ""


class MemberOut(msgspec.Struct, frozen=True, kw_only=True):
    """A person's membership of a team. `source` is its origin: set here, or by a group of the OpenID provider."""

    email: str
    name: str
    team_id: str
    role: str
    source: str
    disabled: bool
    object: str = "team.member"


class PutPerson(RequestBody, frozen=True):
    """A person of the organisation. Omitted fields stay; a new person's name is the address, without a role."""

    name: Name | UnsetType = UNSET
    role: (
        Annotated[
            OrganisationRole,
            msgspec.Meta(description="What they are to the whole organisation; empty: only what their teams let them."),
        ]
        | UnsetType
    ) = UNSET
    disabled: bool | UnsetType = UNSET
    reason: Reason = ""


class PersonOut(msgspec.Struct, frozen=True, kw_only=True):
    """A person of the organisation."""

    email: str
    name: str
    role: str
    source: str
    disabled: bool
    teams: dict[str, str]
    """Role by team id."""
    created_at: datetime
    signed_in_at: datetime | None
    link: str | UnsetType = UNSET
    """One-time link to choose a password; only in the reply that created it."""
    object: str = "person"


def member_out(member: Member) -> MemberOut:
    """Return a member as the API returns it."""
    return MemberOut(
        email=member.person.email,
        name=member.person.name,
        team_id=member.team_id,
        role=member.role,
        source=member.source,
        disabled=member.person.disabled_at is not None,
    )


def person_out(person: Person, teams: dict[str, str], link: str | UnsetType = UNSET) -> PersonOut:
    """Return a person as the API returns it."""
    return PersonOut(
        email=person.email,
        name=person.name,
        role=person.role,
        source=person.source,
        disabled=person.disabled_at is not None,
        teams=teams,
        created_at=person.created_at,
        signed_in_at=person.signed_in_at,
        link=link,
    )
