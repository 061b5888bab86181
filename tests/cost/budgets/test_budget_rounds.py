"""The watch over budgets: what it tells, and whose grants it sweeps."""

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import BudgetStatus
from cost.budgets.budget_rounds import BudgetWatch
from cost.budgets.grants import GrantNeed
from cost.budgets.memory import MemoryGrants
from cost.tables import Boot
from tests.cost.budgets.crowd import NOON_US, budget
from tests.cost.budgets.test_budget_reservations import HOUR_US, Real, watching
from tests.cost.entries import reserve, until


@pytest.fixture
def real(engine: AsyncEngine) -> Real:
    return Real(engine)


async def test_grants_of_the_dead_are_swept(real: Real, engine: AsyncEngine) -> None:
    """Not seen for an hour, or unknown, and nothing open for ten minutes more: the grant goes. The living keep theirs."""
    await real.set(1_000)
    for name, age_us in {"dead": 2 * HOUR_US, "open": 2 * HOUR_US, "living": 0, "me": 0}.items():
        async with engine.begin() as connection:
            await connection.execute(
                insert(Boot).values(boot_id=name, host="h", started_us=0, seen_us=NOON_US - age_us)
            )
    ask = {"b1": GrantNeed(floor_nanousd=10)}
    for name in ("dead", "open", "living", "me", "unknown"):
        await real.grants.renew_grants(name, ask, [], NOON_US)
    await real.store.insert([reserve("r", boot_id="open")])
    watch = watching(real, "me")

    async def held() -> int:
        return (await real.standing()).held_nanousd

    await watch.forget_dead()
    assert await held() == 50
    real.clock.at_us += HOUR_US // 6 + 1
    await watch.forget_dead()
    assert await held() == 30
    stranger = watching(real, "stranger")
    await real.grants.renew_grants("stranger", ask, [], NOON_US)
    await real.grants.renew_grants("unknown", ask, [], NOON_US)
    for _ in range(2):
        # Nobody tells it who lives: then unknown processes may be alive.
        await stranger.forget_dead()
        real.clock.at_us += HOUR_US // 6 + 1
    assert await held() == 50


async def test_it_tells_every_budget_again_and_again(real: Real) -> None:
    """A budget that is set while it runs is told soon."""
    told: list[Sequence[BudgetStatus]] = []

    async def tell(standings: Sequence[BudgetStatus]) -> None:
        told.append(standings)

    running = asyncio.create_task(BudgetWatch(real.grants, tuple, tell, poll_s=0.05, now_us=real.clock).run())
    await until(lambda: told)
    await real.set(10)
    await until(lambda: told[-1])
    running.cancel()
    assert [each.budget.limit_nanousd for each in told[-1]] == [10]


async def test_who_is_told_may_hang() -> None:
    """Whoever is told may hang for ever, and the database may fail: it is told the next time all the same."""
    grants, asked = MemoryGrants(budget(100)), 0

    async def tell(_standings: Sequence[BudgetStatus]) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    watch = BudgetWatch(grants, tuple, tell, poll_s=0.01, patience_s=0.02)
    running = asyncio.create_task(watch.run())
    await until(lambda: asked > 1)
    grants.down = True
    failures = watch.failures
    await until(lambda: watch.failures > failures + 1)
    grants.down = False
    told = asked
    await until(lambda: asked > told)
    running.cancel()
