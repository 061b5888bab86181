"""Money of hard budgets for what a provider's batch holds."""

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget
from cost.budgets.grants import GrantStore
from cost.budgets.store import BudgetStore
from cost.times import wall_us
from providers.catalog import Catalog
from proxy.batch.cost_bound import CostBounds
from proxy.batch.store import BatchStore
from proxy.plan.route_plan import Policy
from proxy.shared.database_clock import DatabaseTime
from tests.proxy.contexts import ALICE


async def test_money_is_held_under_a_name_once_and_no_more_than_there_is(engine: AsyncEngine) -> None:
    """Until it is freed; and what has no price is not held under a hard budget."""
    grants = GrantStore(engine)
    money = CostBounds(BatchStore(engine, DatabaseTime(engine)), grants, lambda: (Policy(), Catalog(targets={})))
    assert await money.hold("handed_1", ALICE, None)
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

    assert not await money.hold("handed_1", ALICE, None)
    assert await money.hold("handed_1", ALICE, 60)
    assert await held() == 60
    assert not await money.hold("handed_2", ALICE, 60)
    assert await held() == 60
    await money.free("handed_1")
    assert await money.hold("handed_2", ALICE, 60)
    assert await held() == 60
