"""What a route may ask of a key: anybody's, or only those of some roles."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from accounts.caller import Caller, Role
from api.web.gateway import ActingCaller, AdminCaller, FinanceReader, KeyWith, OperatorCaller, TeamChanger
from cost.reports.scope import ReadScope
from proxy.errors import AdminOnly, NotAllowed, OperatorOnly, ReadsOnly, Refused

OWN = ReadScope(organisation_id="acme", team_id="team_a")
_REQUEST: Any = SimpleNamespace(state=SimpleNamespace(gateway=SimpleNamespace(operator="default")))
"""A request of a gateway that another organisation runs than the keys' own."""
WHOLE = ReadScope(organisation_id="acme", team_id=None)


def caller(role: Role) -> Caller:
    return Caller(key_id="key_1", key_name="ci", team_id="team_a", organisation_id="acme", role=role)


async def granted(dependency: Any, role: Role) -> Any:
    """What a route that asks for this is given, or the refusal's kind."""
    _, asked = get_args(dependency)
    try:
        if isinstance(asked.dependency, KeyWith):
            return await asked.dependency(_REQUEST, caller(role))
        return await asked.dependency(caller(role))
    except Refused as refusal:
        return type(refusal)


@pytest.mark.parametrize(
    ("role", "scope", "admin", "operator", "changer", "acting"),
    [
        ("member", OWN, AdminOnly, AdminOnly, NotAllowed, None),
        ("finance", WHOLE, AdminOnly, AdminOnly, ReadsOnly, ReadsOnly),
        ("admin", WHOLE, None, OperatorOnly, None, None),
    ],
)
async def test_what_each_role_may_do(
    role: Role, scope: ReadScope, admin: object, operator: object, changer: object, acting: object
) -> None:
    """Members see their team, finance sees all and does nothing, admins do everything; None stands for the caller."""
    assert await granted(FinanceReader, role) == scope
    assert await granted(AdminCaller, role) == (admin or caller(role))
    assert await granted(OperatorCaller, role) == operator
    assert await granted(TeamChanger, role) == (changer or caller(role))
    assert await granted(ActingCaller, role) == (acting or caller(role))


async def test_a_role_that_is_not_known_here_may_the_least() -> None:
    """Such as one of a newer version, in the same database."""
    newer: Any = "auditor"
    assert await granted(FinanceReader, newer) == OWN
    assert await granted(AdminCaller, newer) == AdminOnly
