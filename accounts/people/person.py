"""Who a person is, as the stores tell it. The password's hash is no part of it."""

from datetime import datetime
from typing import Literal

import msgspec

from accounts.access import OrganisationRole, TeamRole

Source = Literal["local", "oidc"]
"""Who decides a role: somebody here, or an OpenID provider."""


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
    """A person's place in a team."""

    person: Person
    team_id: str
    role: TeamRole
    source: Source
