"""Every role's rights, written out once more: who changes them changes them here, too."""

from typing import get_args

import pytest

from accounts.access import OrganisationRole, Principal, Right, may, principal_of, rights
from accounts.caller import Caller, Role

_OWN = {"signed-in"}
_FINANCE = {"team.read", "organisation.read", "finance.read", "books.close", "audit.read"}
_ADMIN = _FINANCE | {"team.change", "organisation.change"}


def person(role: OrganisationRole = "", *, of_operators: bool = False, **teams: str) -> Principal:
    return Principal(
        kind="person",
        principal_id="p",
        name="Pat",
        organisation_id="acme",
        role=role,
        teams=teams,  # type: ignore[arg-type]
        of_operators=of_operators,
    )


@pytest.mark.parametrize(
    ("role", "of_operators", "expected"),
    [
        ("", False, set()),
        ("", True, set()),
        ("finance", False, _FINANCE),
        ("finance", True, _FINANCE | {"operations.read"}),
        ("admin", False, _ADMIN),
        ("admin", True, _ADMIN | {"prices.change", "operations.read", "operations.change"}),
        ("operator", False, set()),
        ("operator", True, {"operations.read", "operations.change", "audit.read"}),
    ],
)
def test_rights_in_the_organisation(role: OrganisationRole, of_operators: bool, expected: set[str]) -> None:
    """What holds for every organisation belongs to those of the one that runs the gateway."""
    assert rights(person(role, of_operators=of_operators)) == expected | _OWN


def test_rights_in_a_team() -> None:
    """A member reads its own team, its admin changes it, and neither sees another."""
    pat = person(search="member", support="admin")
    seen = {
        (right, team)
        for right in get_args(Right)
        for team in ("search", "support", "other")
        if may(pat, right, team_id=team)
    }
    assert {each for each in seen if each[0] != "signed-in"} == {
        ("team.read", "search"),
        ("team.read", "support"),
        ("team.change", "support"),
    }
    assert not may(pat, "team.read")


@pytest.mark.parametrize("role", ["member", "finance", "admin"])
def test_a_key_is_as_its_role(role: Role) -> None:
    """A member's key is its team's alone; the others are the organisation's."""
    caller = Caller(key_id="key_1", key_name="ci", team_id="search", organisation_id="acme", role=role)
    found = principal_of(caller, "default")
    assert found.role == ("" if role == "member" else role)
    assert dict(found.teams) == ({"search": "member"} if role == "member" else {})
    assert not found.of_operators
    assert principal_of(caller, "acme").of_operators
    assert may(found, "team.change", team_id="search") == (role == "admin")
