"""What end users spent is forgotten when no running period reaches it, in portions, and no budget's sum changes by that."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.end_user_retention import EndUserRetention
from cost.budgets.periods import LONGEST_DAYS, PERIODS, Period, start_us
from cost.budgets.store import BudgetStore
from cost.calendar import UTC_CALENDAR
from cost.end_users import LEAST_KEPT_DAYS
from cost.ledger.rebuild import rebuild
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.times import DAY_US
from tests.cost.budgets.crowd import NOON_US, TEAM, budget
from tests.cost.entries import reserve, settle

pytestmark = pytest.mark.story

AGES_DAYS = (0, 40, LEAST_KEPT_DAYS - 1, LEAST_KEPT_DAYS + 1, 900)
USERS = ("ada", "bob", "a/b")


async def spent(engine: AsyncEngine) -> None:
    """A dollar of each of three end users on five days, and of others that name none."""
    entries = []
    for age in AGES_DAYS:
        for name in (*USERS, ""):
            whose = {"at_us": NOON_US - age * DAY_US, "team_id": TEAM, "end_user": name}
            entries.append(reserve(f"r{age}{name}", **whose))
            entries.append(settle(f"r{age}{name}", **whose, cost_nanousd=10**9, input_nanousd=10**9))
    await LedgerStore(engine).insert(entries)


async def rows(engine: AsyncEngine, table: str, where: str = "1 = 1") -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(text(f"SELECT count(*) FROM {table} WHERE {where}")) or 0)  # noqa: S608


def retention(engine: AsyncEngine, keep_days: int = LEAST_KEPT_DAYS) -> EndUserRetention:
    return EndUserRetention(engine, lambda: keep_days, lambda: NOON_US, portion=2, rest_s=0)


def test_what_is_kept_at_least_holds_every_period() -> None:
    """Of the longest, at its last moment and in any time zone."""
    assert LEAST_KEPT_DAYS >= LONGEST_DAYS + 2
    last = start_us("year", NOON_US, UTC_CALENDAR) - 1
    assert last - start_us("year", last, UTC_CALENDAR) < LEAST_KEPT_DAYS * DAY_US


async def test_old_rows_of_end_users_go_and_all_others_stay(engine: AsyncEngine) -> None:
    """Of days, quarters and months; a second round finds nothing; the books agree before and after, and a rebuild is forgotten again."""
    await spent(engine)
    others = await rows(engine, "spend_day", "scope <> 'end_user'")
    assert await retention(engine).forget() > 0
    for table, column in (("spend_day", "day_us"), ("spend_quarter", "start_us")):
        assert await rows(engine, table, "scope = 'end_user'") == 3 * len(USERS)
        assert await rows(engine, table, f"scope = 'end_user' AND {column} < {NOON_US - LEAST_KEPT_DAYS * DAY_US}") == 0
    assert await rows(engine, "end_user_month") == 3 * len(USERS)
    assert await rows(engine, "spend_day", "scope <> 'end_user'") == others
    assert await retention(engine).forget() == 0
    whole = (NOON_US - 1_000 * DAY_US, NOON_US + 1)
    found = await check(engine, *whole, now_us=NOON_US)
    assert found.told == ()
    await rebuild(engine, *whole)
    assert (await check(engine, *whole, now_us=NOON_US)).differences == 0
    assert await retention(engine).forget() > 0
    assert await retention(engine, 1_000).forget() == 0


@pytest.mark.parametrize(
    ("scope_id", "period"),
    [
        *((f"{TEAM}/ada", each) for each in PERIODS),
        *((scope_id, each) for scope_id in (f"{TEAM}/*", "*/default") for each in PERIODS if each != "prepaid"),
    ],
)
async def test_no_budgets_sum_changes(engine: AsyncEngine, scope_id: str, period: Period) -> None:
    """Of any period, one's own or for each, the standing before and after is the same; what an endless one counts is kept."""
    await spent(engine)
    store = BudgetStore(engine, lambda: NOON_US)
    await store.put(budget(10**12, scope="end_user", scope_id=scope_id, period=period))
    before = await store.of_end_user("default", TEAM, "ada")
    assert len(before.budgets) == 1
    await retention(engine).forget()
    after = await store.of_end_user("default", TEAM, "ada")
    assert after == before
    of_ada = await rows(engine, "spend_day", f"scope_id = '{TEAM}/ada'")
    assert of_ada == (3 if PERIODS[before.budgets[0].budget.period].renews else len(AGES_DAYS))
