"""What a pool's hours earned."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.earnings import EarningsReader, PoolHourWork, earnings
from cost.fleet.pool_config import PoolSection, SecondsPerMillion
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US
from tests.cost.fleet.pools import DAY, pool, work

DOLLAR = 1_000_000_000
POOL = PoolSection(
    name="own",
    targets=("llama",),
    usd_per_gpu_hour=Decimal(3),
    seconds_per_million=SecondsPerMillion(input=Decimal(70), output=Decimal(160)),
)


def hour(up: float, busy: float, avoided_usd: int) -> PoolHourWork:
    return PoolHourWork(up_us=int(up * HOUR_US), busy_us=int(busy * HOUR_US), avoided_nanousd=avoided_usd * DOLLAR)


def test_hours_are_set_beside_what_they_avoided() -> None:
    """Three replica-hours at three dollars, and eleven dollars of spending elsewhere."""
    found = earnings(POOL, [hour(2, 1.5, 10), hour(1, 0.1, 1)])
    assert (found.paid_nanousd, found.avoided_nanousd, found.net_nanousd) == (9 * DOLLAR, 11 * DOLLAR, 2 * DOLLAR)


def test_the_best_fixed_fleet_carries_what_pays() -> None:
    """One replica would have carried two thirds of the busy hour; a second one earns 3.33 in it, and 0 in the other."""
    found = earnings(POOL, [hour(2, 1.5, 10), hour(2, 0.5, 4)])
    assert found.best_fixed == 1
    assert found.best_fixed_nanousd == 6 * DOLLAR + 10 * DOLLAR // 3


def test_hours_that_were_never_worth_it_say_so() -> None:
    """The best fleet of an idle pool is none."""
    found = earnings(POOL, [hour(4, 0.01, 0)] * 24)
    assert (found.best_fixed, found.best_fixed_nanousd) == (0, 0)
    assert found.net_nanousd < 0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=24))
def test_the_best_fixed_fleet_is_no_dearer_than_none(hours: list[tuple[float, int]]) -> None:
    """None at all is one of the fleets."""
    found = earnings(POOL, [hour(1, busy, avoided) for busy, avoided in hours])
    assert found.best_fixed_nanousd <= found.avoided_nanousd


async def test_the_books_tell_hours_and_what_they_avoided(engine: AsyncEngine) -> None:
    """Nine requests of a million tokens each way in one hour of a pool that stood for a day, at their price elsewhere."""
    it = pool(up_since=date(2026, 11, 20))
    entries = [
        work(f"r{each}", input_tokens=1_000_000, output_tokens=1_000_000, cheapest_nanousd=DOLLAR) for each in range(9)
    ]
    await LedgerStore(engine).insert([*entries, work("elsewhere", pool="", cheapest_nanousd=DOLLAR)])
    reader = EarningsReader(engine)
    found = (await reader.read([it], DAY, DAY + DAY_US, DAY + DAY_US))[0]
    assert (found.hours, found.earnings.avoided_nanousd) == (Decimal("24.00"), 9 * DOLLAR)
    assert found.earnings.paid_nanousd == 24 * 5_900_000_000
    assert found.earnings.best_fixed == 0
    usd_per_s = await reader.usd_per_busy_s(it, DAY, DAY + DAY_US)
    assert usd_per_s == pytest.approx(1 / 237.812)
    assert await reader.usd_per_busy_s(it, DAY + DAY_US, DAY + 2 * DAY_US) is None
