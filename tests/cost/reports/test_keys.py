"""What a team's keys were used for lately, on SQLite and on PostgreSQL."""

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.reports.keys import SPENT_DAYS, USED_DAYS, KeyUse, read_key_use
from cost.times import DAY_US, HOUR_US
from tests.cost.reports.two_organisations import DAY, booked

NOW = DAY + 12 * HOUR_US
COST = 1_000_001


async def test_each_key_has_its_last_day_and_its_sums(engine: AsyncEngine) -> None:
    """The last day is of 90, the sums are of 30, today among them; a correction is money but no use."""
    month_ago, long_ago = NOW - SPENT_DAYS * DAY_US, NOW - USED_DAYS * DAY_US
    correction = {"entry": "adjust", "origin": "correction", "served": False, "status": 0}
    await LedgerStore(engine).insert(
        [
            booked("r1", key_id="daily", at_us=NOW - DAY_US),
            booked("r2", key_id="daily", at_us=NOW - 2 * DAY_US),
            booked("r3", key_id="daily", at_us=month_ago),
            booked("r4", key_id="daily", at_us=NOW, **correction),
            booked("r5", key_id="monthly", at_us=month_ago),
            booked("r6", key_id="forgotten", at_us=long_ago),
        ]
    )
    assert await read_key_use(engine, "acme", "team_a", NOW) == {
        "daily": KeyUse(key_id="daily", last_day_us=DAY - DAY_US, requests=2, cost_nanousd=3 * COST),
        "monthly": KeyUse(key_id="monthly", last_day_us=DAY - SPENT_DAYS * DAY_US, requests=0, cost_nanousd=0),
    }


async def test_only_the_teams_own_keys_are_read(engine: AsyncEngine) -> None:
    """Neither another team's nor, for a team's name of another organisation, anything."""
    await LedgerStore(engine).insert(
        [
            booked("r1", key_id="mine", at_us=NOW),
            booked("r2", key_id="theirs", team_id="team_b", at_us=NOW),
            booked("r3", key_id="others", organisation_id="rival", at_us=NOW),
        ]
    )
    assert set(await read_key_use(engine, "acme", "team_a", NOW)) == {"mine"}
    assert set(await read_key_use(engine, "rival", "team_a", NOW)) == {"others"}
    assert await read_key_use(engine, "rival", "team_b", NOW) == {}
