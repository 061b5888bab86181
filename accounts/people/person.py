"""Persons and memberships as the stores return them, without the password's hash."""

from datetime import datetime
from typing import Literal

import msgspec

from accounts.access import OrganisationRole, TeamRole

Source = Literal["local", "oidc"]
"""Origin of a role: set here, or by an OpenID provider."""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A person, who belongs to one organisation."""

    person_id: str
    organisation_id: str
    email: str
    name: str
    role: OrganisationRole
    source: Source
    created_at: datetime
    disabled_at: datetime | None
    signed_in_at: datetime | None
    has_password: bool


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person's membership in a team."""

    person: Person
    team_id: str
    role: TeamRole
    source: Source
