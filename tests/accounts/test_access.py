"""Every role's rights, written out once more: who changes them changes them here, too."""

from pathlib import Path
from typing import Any, get_args

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


def test_a_role_that_is_not_known_here_has_no_right_of_its_own() -> None:
    """Such as one of a newer version, in the same database."""
    newer: Any = "auditor"
    assert rights(person(newer)) == rights(person(newer, of_operators=True)) == _OWN


def test_every_right_is_somebodys() -> None:
    """One that no role has would close its routes to all."""
    everybody = rights(person("admin", of_operators=True)) | rights(person("operator", of_operators=True))
    assert everybody == set(get_args(Right))


_DASHBOARD = Path(__file__).parents[2] / "docs" / "dashboard.md"
_PEOPLE: dict[str, dict[str, Any]] = {
    "team member": {"own": "member"},
    "team administrator": {"own": "admin"},
    "finance": {"role": "finance"},
    "operator": {"role": "operator"},
    "administrator": {"role": "admin"},
}
_COLUMNS: tuple[tuple[str | None, Right, Right | None, str], ...] = (
    ("own", "team.read", "team.change", "changes"),
    ("other", "team.read", "team.change", "changes"),
    (None, "finance.read", None, ""),
    (None, "operations.read", "operations.change", "drains"),
    (None, "organisation.read", "organisation.change", "changes"),
    (None, "audit.read", None, ""),
)


def _cell(of_operators: Principal, elsewhere: Principal, column: tuple[str | None, Right, Right | None, str]) -> str:
    team, read, change, word = column
    wanted = [(right, name) for right, name in ((read, "reads"), (change, word)) if right is not None]
    held = ", ".join(name for right, name in wanted if may(of_operators, right, team_id=team))
    everywhere = ", ".join(name for right, name in wanted if may(elsewhere, right, team_id=team))
    return (held or "-") + ("¹" if held != everywhere and rights(elsewhere) != _OWN else "")


def test_the_page_of_who_sees_what_is_this_table() -> None:
    """A footnote marks what is so only in the organisation that runs the gateway; of a role that is nothing elsewhere, its name."""
    rows = []
    for name, given in _PEOPLE.items():
        of_operators, elsewhere = person(of_operators=True, **given), person(**given)
        mark = "¹" if given.get("role") and rights(elsewhere) == _OWN else ""
        rows.append(f"| {name}{mark} | {' | '.join(_cell(of_operators, elsewhere, each) for each in _COLUMNS)} |\n")
    assert "".join(rows) in _DASHBOARD.read_text(), "".join(rows)
