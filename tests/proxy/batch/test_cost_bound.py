"""Money of hard budgets for what a provider's batch holds."""

from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget
from cost.budgets.grants import GrantStore
from cost.budgets.store import BudgetStore
from cost.ledger.entries import Entry
from cost.times import wall_us
from providers.catalog import Catalog
from proxy.batch.cost_bound import CostBounds
from proxy.batch.store import BatchStore
from proxy.plan.route_plan import Policy
from proxy.shared.database_clock import DatabaseTime
from tests.cost.entries import reserve
from tests.proxy.contexts import ALICE


def one(most_nanousd: int | None, **changes: Any) -> list[tuple[Entry, int | None]]:
    """The reserve of one of Alice's lines, with the most that it may cost."""
    whose = {"organisation_id": ALICE.organisation_id, "team_id": ALICE.team_id, "key_id": ALICE.key_id}
    return [(reserve(**whose, **changes), most_nanousd)]


async def test_money_is_held_under_a_name_once_and_no_more_than_there_is(engine: AsyncEngine) -> None:
    """Until it is freed; and what has no price is not held under a hard budget."""
    grants = GrantStore(engine)
    money = CostBounds(BatchStore(engine, DatabaseTime(engine)), grants, lambda: (Policy(), Catalog(targets={})))
    assert await money.hold("handed_1", one(None))
    await BudgetStore(engine).put(
        Budget(
            budget_id="b1",
            organisation_id=ALICE.organisation_id,
            scope="team",
            scope_id=ALICE.team_id,
            period="month",
            kind="hard",
            limit_nanousd=100,
        )
    )

    async def held() -> int:
        return sum(each.held_nanousd for each in await grants.standings(wall_us()))

    assert not await money.hold("handed_1", one(None))
    assert await money.hold("handed_1", one(60))
    assert await held() == 60
    assert not await money.hold("handed_2", one(60))
    assert await held() == 60
    await money.free("handed_1")
    assert await money.hold("handed_2", one(60))
    assert await held() == 60


async def test_lines_are_held_to_the_budgets_of_their_end_users_and_models(engine: AsyncEngine) -> None:
    """Each line under its own; one that has no room keeps the group from the provider, and holds nothing."""
    grants, budgets = GrantStore(engine), BudgetStore(engine)
    money = CostBounds(BatchStore(engine, DatabaseTime(engine)), grants, lambda: (Policy(), Catalog(targets={})))
    usual = Budget(
        budget_id="each",
        organisation_id=ALICE.organisation_id,
        scope="end_user",
        scope_id=f"{ALICE.team_id}/*",
        period="month",
        kind="hard",
        limit_nanousd=100,
    )
    await budgets.put(usual)
    model = {"budget_id": "model", "scope": "team_model", "scope_id": f"{ALICE.team_id}/gpt-4o", "limit_nanousd": 150}
    await budgets.put(msgspec.structs.replace(usual, **model))
    both = one(80, end_user="ada", target_id="gpt-4o") + one(60, end_user="bob", target_id="gpt-4o")
    assert await money.hold("handed_1", both)
    assert not await money.hold("handed_2", one(20, end_user="eve", target_id="gpt-4o"))
    assert not await money.hold("handed_2", one(30, end_user="ada"))
    assert await money.hold("handed_2", one(20, end_user="ada"))
    of_each = await grants.standings_of_each(
        [f"each/{ALICE.team_id}/{name}" for name in ("ada", "bob", "eve")], wall_us()
    )
    assert sorted(each.held_nanousd for each in of_each) == [0, 60, 100]
