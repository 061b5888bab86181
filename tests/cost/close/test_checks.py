"""Months held against the ledger: asked for once, made by one process, and told to all."""

from datetime import date

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.close.checks import SETTLED_US, MonthChecks
from cost.close.month import Month
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US, start_of
from tests.cost.entries import reserve, settle

APRIL = Month(2026, 4)
LATER = start_of(date(2026, 6, 20))


class Clock:
    """Time that a test sets."""

    def __init__(self, now_us: int = LATER) -> None:
        self.now_us = now_us
        self.rested = 0

    def __call__(self) -> int:
        return self.now_us

    async def rest(self, _seconds: float) -> None:
        self.rested += 1


def checks(engine: AsyncEngine, clock: Clock) -> MonthChecks:
    return MonthChecks(engine, clock, clock.rest)


async def book(engine: AsyncEngine) -> None:
    await LedgerStore(engine).insert([reserve(), settle(output_nanousd=1_000_000)])


async def test_a_month_that_is_asked_for_is_checked(engine: AsyncEngine) -> None:
    """It waits until a process looks, and is done then; asked again, it is looked at again."""
    await book(engine)
    clock = Clock()
    made = checks(engine, clock)
    assert (await made.known(APRIL)).state == "never"
    assert await made.ask(APRIL)
    assert (await made.known(APRIL)).state == "waiting"
    assert not await made.ask(APRIL)
    assert await made.check() == APRIL
    found = await made.known(APRIL)
    assert (found.state, found.differences, clock.rested) == ("done", 0, 30)
    assert await made.check() is None
    assert await made.ask(APRIL)
    assert await made.check() == APRIL


async def test_what_does_not_add_up_is_told(engine: AsyncEngine) -> None:
    """A roll-up that was changed by hand is counted."""
    await book(engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE rollup_day SET cost_nanousd = cost_nanousd + 1"))
    made = checks(engine, Clock())
    await made.ask(APRIL)
    await made.check()
    assert (await made.known(APRIL)).differences == 1


async def test_one_of_two_looks(engine: AsyncEngine) -> None:
    """What one process has claimed the other leaves alone, until it must be taken for dead."""
    clock = Clock()
    made = checks(engine, clock)
    await made.ask(APRIL)
    async with engine.begin() as connection:
        await connection.execute(text(f"UPDATE ledger_check SET begun_us = {clock.now_us}"))  # noqa: S608
    assert (await made.known(APRIL)).state == "running"
    assert not await made.ask(APRIL)
    assert await made.check() is None
    clock.now_us += HOUR_US
    assert await made.check() == APRIL
    assert (await made.known(APRIL)).state == "done"


async def test_whoever_was_taken_for_dead_stops(engine: AsyncEngine) -> None:
    """Its result is not written over that of the process that took it on."""
    clock = Clock()
    made = checks(engine, clock)

    async def taken(_seconds: float) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE ledger_check SET begun_us = 5, done_us = 6, differences = 9"))

    slow = MonthChecks(engine, clock, taken)
    await made.ask(APRIL)
    assert await slow.check() is None
    assert (await made.known(APRIL)).differences == 9


async def test_a_month_is_checked_after_its_end(engine: AsyncEngine) -> None:
    """Two hours later without being asked for; one that is over for weeks is not, unless somebody asks."""
    clock = Clock(APRIL.end_us + SETTLED_US - 1)
    made = checks(engine, clock)
    assert await made.check() is None
    clock.now_us += 1
    assert await made.check() == APRIL
    assert await made.check() is None
    clock.now_us = APRIL.next.end_us + 9 * DAY_US
    assert await made.check() is None


async def test_a_month_to_come_is_not_asked_for(engine: AsyncEngine) -> None:
    """There is nothing to check, and rows are not made for years ahead."""
    made = checks(engine, Clock())
    assert not await made.ask(Month(2026, 7))
    assert (await made.known(Month(2026, 7))).state == "never"
    assert await made.ask(Month(2026, 6))
