"""How one end user stands, over both APIs and the command: spending, the budgets that hold, and limits with what is left."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.times import wall_us
from tests.api.budgets.test_routes import SCRIPTED, call, key_of
from tests.cost.entries import settle
from tests.running_gateway import Running, model, running_gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    limits = {"poll_s": 0.1, "end_user": {"requests_per_minute": 60}}
    async with running_gateway(tmp_path, [model("m", SCRIPTED)], limits=limits) as running:
        admin = await key_of(running, "admin")
        for budget_id, scope_id, limit in (("each", "team_a/*", 5), ("ada", "team_a/ada@example.com", 9)):
            body = {"scope": "end_user", "scope_id": scope_id, "period": "month", "limit_usd": limit, "kind": "hard"}
            assert (await call(running, "PUT", f"/budgets/{budget_id}", admin, body))[0] == 201
        now = wall_us()
        digest = (await BudgetStore(running.engine).get("ada")).budget.scope_id.partition("/")[2]
        entries = [
            settle(request_id=f"r{end_user}", team_id="team_a", end_user=end_user, cost_nanousd=10**9, at_us=now)
            for end_user in ("bob", digest)
        ]
        await LedgerStore(running.engine).insert(entries)
        yield running


async def test_an_end_user_stands_where_the_budgets_and_limits_say(gateway: Running) -> None:
    """By the default for all or by an own budget, found under the name that callers send; one who never called has all of it."""
    admin = await key_of(gateway, "admin")
    for path, key in (("/end_users", None), ("/admin/teams/team_a/end_users", admin)):
        for name, spent, left, own in (
            ("bob", "1", "4", False),
            ("ada@example.com", "1", "8", True),
            ("new/one", "0", "5", False),
        ):
            status, told, _ = await call(gateway, "GET", f"{path}/{name}", key)
            assert (status, told["team_id"], float(told["spent_usd"])) == (200, "team_a", float(spent)), told
            (budget,) = told["budgets"]
            assert (float(budget["left_usd"]), budget["own"], budget["resets_at"] is not None) == (
                float(left),
                own,
                True,
            )
            (limit,) = told["limits"]
            assert (limit["kind"], limit["per_minute"], limit["remaining"]) == ("requests", 60, 60)
    assert told["end_user"] == "new/one"


async def test_another_teams_end_user_is_not_told(gateway: Running) -> None:
    """A member's key reads its own team; an administrator's the organisation's; neither another organisation's."""
    await gateway.accounts.create_organisation("globex")
    await gateway.accounts.create_team("team_g", organisation_id="globex")
    await gateway.accounts.create_team("team_b")
    admin = await key_of(gateway, "admin")
    for path, key, status in (
        ("/end_users/bob?team_id=team_b", None, 404),
        ("/end_users/bob?team_id=team_b", admin, 200),
        ("/end_users/bob?team_id=team_g", admin, 404),
        ("/admin/teams/team_g/end_users/bob", admin, 404),
        ("/end_users/*", None, 400),
        ("/end_users/", None, 400),
    ):
        assert (await call(gateway, "GET", path, key))[0] == status, path
