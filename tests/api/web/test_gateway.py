"""What a route may ask of a key: anybody's, or only those of some roles."""

from typing import Any, get_args

import pytest

from accounts.caller import Caller, Role
from api.web.gateway import ActingCaller, AdminCaller, FinanceReader
from cost.reports.scope import ReadScope
from proxy.errors import AdminOnly, ReadsOnly, Refused

OWN = ReadScope(organisation_id="acme", team_id="team_a")
WHOLE = ReadScope(organisation_id="acme", team_id=None)


def caller(role: Role) -> Caller:
    return Caller(key_id="key_1", key_name="ci", team_id="team_a", organisation_id="acme", role=role)


async def granted(dependency: Any, role: Role) -> Any:
    """What a route that asks for this is given, or the refusal's kind."""
    _, asked = get_args(dependency)
    try:
        return await asked.dependency(caller(role))
    except Refused as refusal:
        return type(refusal)


@pytest.mark.parametrize(
    ("role", "scope", "admin", "acting"),
    [
        ("member", OWN, AdminOnly, None),
        ("finance", WHOLE, AdminOnly, ReadsOnly),
        ("admin", WHOLE, None, None),
    ],
)
async def test_what_each_role_may_do(role: Role, scope: ReadScope, admin: object, acting: object) -> None:
    """Members see their team, finance sees all and does nothing, admins do everything; None stands for the caller."""
    assert await granted(FinanceReader, role) == scope
    assert await granted(AdminCaller, role) == (admin or caller(role))
    assert await granted(ActingCaller, role) == (acting or caller(role))


async def test_a_role_that_is_not_known_here_may_the_least() -> None:
    """Such as one of a newer version, in the same database."""
    newer: Any = "auditor"
    assert await granted(FinanceReader, newer) == OWN
    assert await granted(AdminCaller, newer) == AdminOnly
