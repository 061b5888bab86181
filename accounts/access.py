"""What somebody may do: every role's rights in one table, asked by the routes and by nothing behind them."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from accounts.caller import Caller

OrganisationRole = Literal["", "admin", "finance", "operator"]
"""What a person is to the whole organisation: nothing, or its administrator, its finance, or who runs the gateway."""
TeamRole = Literal["member", "admin"]
Right = Literal[
    "signed-in",
    "team.read",
    "team.change",
    "organisation.read",
    "organisation.change",
    "finance.read",
    "prices.change",
    "operations.read",
    "operations.change",
    "audit.read",
]
"""What a route asks for. Those of a team are asked about one team, the others about the organisation."""

_OF_EVERYBODY: Final[frozenset[Right]] = frozenset({"signed-in"})
_OF_TEAM: Final[Mapping[TeamRole, frozenset[Right]]] = {
    "member": frozenset({"team.read"}),
    "admin": frozenset({"team.read", "team.change"}),
}
_OF_ORGANISATION: Final[Mapping[OrganisationRole, frozenset[Right]]] = {
    "": frozenset(),
    "admin": frozenset(
        {"team.read", "team.change", "organisation.read", "organisation.change", "finance.read", "audit.read"}
    ),
    # Reads everything, changes nothing.
    "finance": frozenset({"team.read", "organisation.read", "finance.read", "audit.read"}),
    "operator": frozenset(),
}
# What holds for every organisation belongs to the one that runs the gateway.
_OF_OPERATORS: Final[Mapping[OrganisationRole, frozenset[Right]]] = {
    "": frozenset(),
    "admin": frozenset({"prices.change", "operations.read", "operations.change"}),
    "finance": frozenset({"operations.read"}),
    "operator": frozenset({"operations.read", "operations.change", "audit.read"}),
}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is known: a person who signed in, or the owner of a key."""

    kind: Literal["person", "key"]
    principal_id: str
    name: str
    organisation_id: str
    role: OrganisationRole = ""
    teams: Mapping[str, TeamRole] = {}
    """Its teams, all of its own organisation."""
    of_operators: bool = False
    """Its organisation is the one that runs the gateway."""


def rights(principal: Principal) -> frozenset[Right]:
    """What it may do in the whole organisation."""
    own = _OF_EVERYBODY | _OF_ORGANISATION[principal.role]
    return own | _OF_OPERATORS[principal.role] if principal.of_operators else own


def may(principal: Principal, right: Right, *, team_id: str | None = None) -> bool:
    """Whether it may, in one of its organisation's teams or, without one, in the whole organisation.

    That the team is one of its organisation's is for the caller to have found out.
    """
    if right in rights(principal):
        return True
    role = None if team_id is None else principal.teams.get(team_id)
    return role is not None and right in _OF_TEAM[role]


def principal_of(caller: Caller, operator: str) -> Principal:
    """A key's owner. A key of the role member is its team's member; the others are the organisation's."""
    is_member = caller.role == "member"
    return Principal(
        kind="key",
        principal_id=caller.key_id,
        name=caller.key_name,
        organisation_id=caller.organisation_id,
        role="" if caller.role == "member" else caller.role,
        teams={caller.team_id: "member"} if is_member else {},
        of_operators=caller.organisation_id == operator,
    )
