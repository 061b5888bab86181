"""What comes after a month was signed off stands in the next open one, visibly, and the month stays as it was signed."""

from datetime import date

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendar import Days
from cost.fleet.cost_adjustment import TrueUpRounds, TrueUpStore
from cost.fleet.hours import HoursStore
from cost.ledger.late_entries import LATE, late_between
from cost.ledger.store import LedgerStore
from cost.tables import ClosedMonth
from cost.times import DAY_US, HOUR_US, day_of, start_of
from tests.cost.entries import reserve, settle
from tests.cost.fleet.pools import pool, work
from tests.cost.ledger.verified import verify

APRIL = start_of(date(2026, 4, 1))
MAY = start_of(date(2026, 5, 1))
JUNE = start_of(date(2026, 6, 1))
TWENTIETH = date(2026, 4, 20)
DAY = start_of(TWENTIETH)
LONG_AFTER = start_of(date(2026, 7, 1))


def days(start_us: int, end_us: int) -> Days:
    return Days(day_of(start_us), day_of(end_us - 1))


async def close(engine: AsyncEngine, start_us: int, end_us: int, organisation_id: str = "default") -> None:
    row = {
        "organisation_id": organisation_id,
        "start_us": start_us,
        "end_us": end_us,
        "closed_us": end_us + DAY_US,
        "closed_by": "Finn",
        "comment": "",
        "figures": "{}",
        "statement": "",
    }
    async with engine.begin() as connection:
        await connection.execute(insert(ClosedMonth).values(row))


async def spent(engine: AsyncEngine, start_us: int, end_us: int, organisation_id: str = "default") -> int:
    query = "SELECT sum(cost_nanousd) FROM rollup_day WHERE start_us >= :a AND start_us < :b AND organisation_id = :o"
    async with engine.connect() as connection:
        return int(await connection.scalar(text(query), {"a": start_us, "b": end_us, "o": organisation_id}) or 0)


async def test_a_late_entry_stands_in_the_next_open_month(engine: AsyncEngine) -> None:
    """April and May are signed, so June has it; written twice it is there once, and the list says where it belongs."""
    store = LedgerStore(engine)
    early = settle("early", at_us=APRIL + 5, cost_nanousd=100, input_nanousd=100)
    await store.insert([reserve("early", at_us=APRIL), early])
    await close(engine, APRIL, MAY)
    await close(engine, MAY, JUNE)
    late = settle("late", at_us=MAY - 1, cost_nanousd=30, input_nanousd=30)
    other = settle("other", at_us=MAY - 1, organisation_id="acme", cost_nanousd=7, input_nanousd=7)
    begun = [reserve("late", at_us=MAY - 2), reserve("other", at_us=MAY - 2, organisation_id="acme")]
    assert await store.insert([*begun, late, other, early]) == 4
    assert await store.insert([late, early]) == 0
    assert await spent(engine, APRIL, MAY) == 100
    assert await spent(engine, JUNE, JUNE + DAY_US) == 30
    assert await spent(engine, APRIL, MAY, "acme") == 7
    (found,) = [each for each in await store.entries("late") if each.entry == "settle"]
    assert (found.at_us, found.flags) == (JUNE, (*late.flags, LATE))
    (told,) = await late_between(engine, "default", days(APRIL, MAY))
    assert (told.day_us, told.posted_us, told.entries, told.cost_nanousd) == (MAY - DAY_US, JUNE, 1, 30)
    assert await late_between(engine, "default", days(JUNE, JUNE + DAY_US), posted=True) == (told,)
    assert await late_between(engine, "acme", days(APRIL, MAY)) == ()
    assert not await verify(engine, APRIL, LONG_AFTER)


async def test_corrected_hours_of_a_signed_month_are_posted_once_into_the_next(engine: AsyncEngine) -> None:
    """Each correction posts what the one before did not; the signed day keeps its bill, and the new day's own is untouched."""
    month, following = APRIL, MAY
    ledger, hours = LedgerStore(engine), HoursStore(engine)
    pools = (pool(up_since=TWENTIETH),)
    now_us = [DAY + DAY_US + HOUR_US]
    rounds = TrueUpRounds(TrueUpStore(engine, ledger), lambda: pools, lambda: now_us[0])
    await ledger.insert([reserve("a", at_us=DAY), work("a", at_us=DAY + HOUR_US, output_tokens=2_000_000)])
    first = await rounds.true_up("h100", TWENTIETH)
    signed = await spent(engine, month, following)
    assert signed == first.bill_nanousd
    await close(engine, month, following)
    now_us[0] = following + 3 * DAY_US
    for from_us in (DAY + 12 * HOUR_US, DAY + 6 * HOUR_US):
        await hours.enter("h100", from_us, DAY + DAY_US, 0)
        for _ in range(2):
            found = await rounds.true_up("h100", TWENTIETH)
        assert await spent(engine, month, following) == signed
        assert await spent(engine, following, following + DAY_US) == found.bill_nanousd - signed
        assert not found.posted
    assert {each.pool for each in await late_between(engine, "default", days(month, following))} == {"h100"}
    assert not await verify(engine, month, following + DAY_US)
