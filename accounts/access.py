"""Role-based access control: one table of the rights of every role, checked by the routes and by nothing behind them."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from accounts.caller import Caller

NamedRole = Literal["admin", "finance", "operator"]
OrganisationRole = Literal["", NamedRole]
"""A person's role in the organisation: none, administrator, finance, or operator of the gateway."""
TeamRole = Literal["member", "admin"]
"""A person's role in one team."""
Right = Literal[
    "signed-in",
    "team.read",
    "team.change",
    "organisation.read",
    "organisation.change",
    "finance.read",
    "books.close",
    "prices.change",
    "operations.read",
    "operations.change",
    "audit.read",
]
"""A permission that a route requires. `team.*` rights are checked for one team, the others for the organisation."""

_NONE: Final[frozenset[Right]] = frozenset()
_EVERYONE_RIGHTS: Final[frozenset[Right]] = frozenset({"signed-in"})
_TEAM_RIGHTS: Final[Mapping[TeamRole, frozenset[Right]]] = {
    "member": frozenset({"team.read"}),
    "admin": frozenset({"team.read", "team.change"}),
}
_ORGANISATION_RIGHTS: Final[Mapping[OrganisationRole, frozenset[Right]]] = {
    "": frozenset(),
    "admin": frozenset(
        {
            "team.read",
            "team.change",
            "organisation.read",
            "organisation.change",
            "finance.read",
            "books.close",
            "audit.read",
        }
    ),
    # Reads everything, and closes its months.
    "finance": frozenset({"team.read", "organisation.read", "finance.read", "books.close", "audit.read"}),
    "operator": frozenset(),
}
# What holds for every organisation belongs to the one that runs the gateway.
_OPERATOR_RIGHTS: Final[Mapping[OrganisationRole, frozenset[Right]]] = {
    "": frozenset(),
    "admin": frozenset({"prices.change", "operations.read", "operations.change"}),
    "finance": frozenset({"operations.read"}),
    "operator": frozenset({"operations.read", "operations.change", "audit.read"}),
}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated party: a person who signed in, or the owner of an API key."""

    kind: Literal["person", "key"]
    principal_id: str
    name: str
    organisation_id: str
    role: OrganisationRole = ""
    teams: Mapping[str, TeamRole] = {}
    """Role by team id; all teams are of the principal's own organisation."""
    of_operators: bool = False
    """True when its organisation is the one that runs the gateway (`accounts.operator`)."""


def rights(principal: Principal) -> frozenset[Right]:
    """Return the rights that a principal has in the whole organisation; those of its team roles are not among them."""
    # A role that a newer version gave has no row here, and no rights but everybody's.
    own = _EVERYONE_RIGHTS | _ORGANISATION_RIGHTS.get(principal.role, _NONE)
    return own | _OPERATOR_RIGHTS.get(principal.role, _NONE) if principal.of_operators else own


def may(principal: Principal, right: Right, *, team_id: str | None = None) -> bool:
    """Return True when the principal has the right in the team, or, without a `team_id`, in the whole organisation.

    The caller has to have checked that the team belongs to the principal's organisation.
    """
    if right in rights(principal):
        return True
    role = None if team_id is None else principal.teams.get(team_id)
    return role is not None and right in _TEAM_RIGHTS[role]


def principal_of(caller: Caller, operator: str) -> Principal:
    """Return the principal of an API key: a `member` key acts for its team, any other role for the organisation.

    `operator` is the id of the organisation that runs the gateway.
    """
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
