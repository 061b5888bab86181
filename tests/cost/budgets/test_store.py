"""Budgets in the database: one for each scope, period and kind, and each tenant's apart."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget_errors import BadBudget, BudgetConflict, UnknownBudget
from cost.budgets.grants import GrantNeed, GrantStore
from cost.budgets.periods import LONGEST_DAYS, PERIODS, Period, end_us, start_us
from cost.budgets.store import MAX_OF_ORGANISATION, BudgetStore, new_budget_id
from cost.ledger.store import LedgerStore
from cost.tables import BudgetRow
from cost.times import DAY_US
from tests.cost.budgets.crowd import NOON_US, budget
from tests.cost.entries import settle


@pytest.fixture
def store(engine: AsyncEngine) -> BudgetStore:
    return BudgetStore(engine, lambda: NOON_US)


async def test_a_budget_is_set_changed_and_removed(store: BudgetStore, engine: AsyncEngine) -> None:
    """Setting one for the same again changes its limit and keeps its id; removing takes its grants along."""
    first = await store.set(budget(10, webhook="finance"))
    second = await store.set(budget(20, budget_id=new_budget_id(), on_exhausted="downgrade"))
    assert (first.budget_id, second.budget_id) == ("b1", "b1")
    assert (await store.get("b1")).budget == budget(20, on_exhausted="downgrade")
    grants = GrantStore(engine)
    await grants.renew_grants("boot1", {"b1": GrantNeed(floor_nanousd=3)}, [], NOON_US)
    assert (await store.get("b1")).held_nanousd == 3
    assert (await store.remove("b1")).budget_id == "b1"
    await store.put(budget(10))
    assert (await store.get("b1")).held_nanousd == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"organisation_id": "other"},
        {"scope_id": "team_other"},
        {"period": "day"},
        {"kind": "soft"},
        {"budget_id": "b2"},
    ],
)
async def test_what_a_budget_is_for_never_changes(store: BudgetStore, changes: dict[str, Any]) -> None:
    """Money is held of it by its id; and there is one budget for each scope, period and kind."""
    assert await store.put(budget(10))
    with pytest.raises(BudgetConflict):
        await store.put(budget(10, **changes))
    assert not await store.put(budget(11))


async def test_unknown_and_another_organisations_look_the_same(store: BudgetStore) -> None:
    """Neither can be read or removed."""
    await store.put(budget(10))
    for budget_id, organisation_id in (("b1", "other"), ("b2", "default"), ("b2", None)):
        with pytest.raises(UnknownBudget, match=f"there is no budget '{budget_id}'"):
            await store.get(budget_id, organisation_id)
        with pytest.raises(UnknownBudget, match=f"there is no budget '{budget_id}'"):
            await store.remove(budget_id, organisation_id)
    with pytest.raises(BadBudget):
        await store.put(budget(-1))
    # PostgreSQL would refuse to look for these.
    for budget_id in ("b\0", "", "../b1"):
        with pytest.raises(UnknownBudget):
            await store.remove(budget_id, "default")


async def test_who_sees_which(store: BudgetStore, engine: AsyncEngine) -> None:
    """A member its team's, its key's and its team's tags'; finance its organisation's; operators all."""
    for name, changes in {
        "org": {"scope": "organisation", "scope_id": "default"},
        "mine": {},
        "key": {"scope": "key", "scope_id": "key_abc"},
        "tag": {"scope": "tag", "scope_id": "default/search"},
        "their_key": {"scope": "key", "scope_id": "key_other"},
        "their_tag": {"scope": "tag", "scope_id": "default/unused"},
        "theirs": {"scope_id": "team_other"},
        "foreign": {"organisation_id": "other", "scope_id": "team_foreign"},
    }.items():
        await store.put(budget(10, budget_id=name, **changes))
    await LedgerStore(engine).insert([settle("r", tag="search", cost_nanousd=4)])
    seen = await store.of_member("default", "team_payments", "key_abc")
    assert {each.budget.budget_id: each.spent_nanousd for each in seen} == {"mine": 4, "key": 4, "tag": 4}
    assert len(await store.of_organisation("default")) == 7
    assert len(await store.all()) == 8


@pytest.mark.parametrize(("period", "spent"), [("day", 1), ("week", 11), ("month", 111)])
async def test_spent_is_of_the_period(store: BudgetStore, engine: AsyncEngine, period: str, spent: int) -> None:
    """A day, the week since Monday, the month since the first."""
    await store.put(budget(10, period=period))
    day_us = 86_400_000_000
    # The fifth of April is a Sunday; its week began in March.
    costs = {0: 1, 2: 10, 4: 100, 5: 0, 6: 1_000, -30: 10_000}
    if period == "week":
        costs = {0: 1, 6: 10, 7: 1_000, -30: 10_000}
    await LedgerStore(engine).insert(
        [settle(f"r{age}", at_us=NOON_US - age * day_us, cost_nanousd=cost) for age, cost in costs.items()]
    )
    assert (await store.get("b1")).spent_nanousd == spent


@pytest.mark.parametrize("period", PERIODS)
async def test_sql_bounds_every_period(store: BudgetStore, engine: AsyncEngine, period: Period) -> None:
    """Of one booking a day, the database sums up those of the period as the table bounds it."""
    await store.put(budget(10, period=period))
    days = [NOON_US - age * DAY_US for age in range(LONGEST_DAYS + 2)]
    await LedgerStore(engine).insert([settle(f"r{at_us}", at_us=at_us, cost_nanousd=1) for at_us in days])
    spent = sum(start_us(period, NOON_US) <= at_us < end_us(period, NOON_US) for at_us in days)
    assert (await store.get("b1")).spent_nanousd == spent


async def test_one_organisation_takes_no_room_of_others(store: BudgetStore, engine: AsyncEngine) -> None:
    """Beyond its share it is told to remove some; another organisation goes on."""
    blank = msgspec.structs.asdict(budget(1, scope="tag", scope_id="default/t"))
    rows = [
        {**blank, "budget_id": f"x{n}", "scope_id": f"default/{n}", "created_us": 1, "updated_us": 1}
        for n in range(MAX_OF_ORGANISATION)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(BudgetRow), rows)
    with pytest.raises(BudgetConflict, match="remove some first"):
        await store.put(budget(1))
    assert await store.put(budget(1, budget_id="b2", organisation_id="other"))
