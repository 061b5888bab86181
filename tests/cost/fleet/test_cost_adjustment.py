"""The nightly true-up: the rows of a pool's day add up to its bill, and go on doing so."""

import asyncio
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cost.dimensions import PostedGroup
from cost.fleet.cost_adjustment import Group, PoolDay, TrueUpRounds, TrueUpStore, entries, is_due, pending
from cost.fleet.fleet_errors import DayNotOver, UnknownPool
from cost.fleet.hours import HoursStore
from cost.fleet.pool_config import PoolSection
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, METERS, TOKEN_METERS, Meters
from cost.tables import LedgerEntry
from cost.times import DAY_US, HOUR_US
from tests.cost.fleet.pools import DAY, pool, work
from tests.cost.ledger.verified import verify

BILL = 141_600_000_000
TODAY = date(2026, 11, 20)
NIGHT = DAY + DAY_US + 16 * 60 * 1_000_000
SINCE = pool(up_since=TODAY)


class Fleet:
    """The rounds on a real database, with a clock and a configuration that a test sets."""

    def __init__(self, engine: AsyncEngine, *pools: PoolSection) -> None:
        self.engine = engine
        self.now_us = NIGHT
        self.pools = pools or (SINCE,)
        self.ledger = LedgerStore(engine)
        self.hours = HoursStore(engine)
        self.rounds = self.another_process()

    def another_process(self) -> TrueUpRounds:
        return TrueUpRounds(TrueUpStore(self.engine, self.ledger), lambda: self.pools, lambda: self.now_us)

    async def sums(self, **where: Any) -> int:
        """What the ledger, and the roll-ups, say of some rows of the day."""
        async with self.engine.connect() as connection:
            conditions = " AND ".join(f"{name} = :{name}" for name in where) or "1 = 1"
            ledger = await connection.scalar(
                text(
                    "SELECT sum(cost_nanousd) FROM ledger_entry WHERE entry <> 'reserve' "  # noqa: S608
                    f"AND at_us - at_us % {DAY_US} = {DAY} AND {conditions}"
                ),
                where,
            )
            rolled = await connection.scalar(
                text(f"SELECT sum(cost_nanousd) FROM rollup_day WHERE start_us = {DAY} AND {conditions}"),  # noqa: S608
                where,
            )
        assert int(ledger or 0) == int(rolled or 0)
        return int(ledger or 0)


@pytest.fixture
def fleet(engine: AsyncEngine) -> Fleet:
    return Fleet(engine)


async def test_the_rows_of_a_day_add_up_to_its_bill(fleet: Fleet) -> None:
    """Two teams, three meters, a failed attempt and a shadow call: with the idle row they are 141.60 $ exactly."""
    await fleet.ledger.insert(
        [
            work("a", input_tokens=3_000_000, cached_input_tokens=1_000_000, output_tokens=500_000),
            work("b", team_id="team_b", output_tokens=2_000_000, reasoning_tokens=700_000),
            work("c", served=False, status=502, baseline_nanousd=None),
            work("d", team_id="team_b", origin="shadow", served=False),
        ]
    )
    (posting,) = await fleet.rounds.run_due()
    assert (posting.posted, posting.revision, posting.bill_nanousd) == (True, 1, BILL)
    assert await fleet.sums(pool="h100") == BILL
    # 2,000 prompt tokens of 37.812 µs and 2,001,000 others of 200 µs: 400,275,624 µs at 5.90 $ an hour, 656,007,272.67.
    assert await fleet.sums(pool="h100", team_id="team_b") == 656_007_272
    assert await fleet.sums(origin="idle") == posting.idle_nanousd == await fleet.sums(tier="idle", team_id="")


async def test_every_posting_adds_up_by_meter(fleet: Fleet) -> None:
    """The seven meters of each row are its cost, and the tokens stay what they were."""
    await fleet.ledger.insert([work("a", cached_input_tokens=400), work("b", team_id="team_b")])
    await fleet.rounds.run_due()
    async with fleet.engine.connect() as connection:
        rows = (await connection.execute(select(LedgerEntry).where(text("entry = 'adjust'")))).mappings().all()
    assert {row["origin"] for row in rows} == {"true-up", "idle"}
    for row in rows:
        assert sum(row[name] for name in METER_COLUMNS) == row["cost_nanousd"]
        assert row["request_id"].startswith(f"{row['origin']}/h100/2026-11-20/1/")
        assert row["input_tokens"] == row["output_tokens"] == 0
        assert row["baseline_nanousd"] is None


async def test_the_check_of_the_books_finds_nothing(fleet: Fleet) -> None:
    """`ledger verify` holds postings to the same rules as requests: roll-ups follow, and meters are the cost."""
    await fleet.ledger.insert(
        [work("a"), work("a", entry="reserve"), work("b", cost_nanousd=7, output_nanousd=0, input_nanousd=7)]
    )
    await fleet.rounds.run_due()
    differences = await verify(fleet.engine, DAY, DAY + DAY_US)
    assert {each.key["request_id"] for each in differences} == {"b"}, "only the request that was never reserved"


async def test_nothing_is_posted_twice(fleet: Fleet) -> None:
    """A second round, and a second process, find the day settled."""
    await fleet.ledger.insert([work("a")])
    assert len(await fleet.rounds.run_due()) == 1
    fleet.now_us += 600_000_000
    assert await fleet.rounds.run_due() == []
    assert await fleet.another_process().run_due() == []
    again = await fleet.rounds.true_up("h100", TODAY)
    assert (again.posted, again.revision, again.changed_nanousd) == (False, 1, 0)
    assert await fleet.sums(pool="h100") == BILL


async def test_processes_that_post_at_once_post_once(fleet: Fleet) -> None:
    """All see the same day due; one revision is written and the others wrote nothing."""
    await fleet.ledger.insert([work("a"), work("b", team_id="team_b")])
    found = await asyncio.gather(*(fleet.another_process().true_up("h100", TODAY) for _ in range(4)))
    assert sum(each.posted for each in found) == 1
    assert await fleet.sums(pool="h100") == BILL
    async with fleet.engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM true_up")) == 1


async def test_late_rows_are_the_next_revision(fleet: Fleet) -> None:
    """Only the difference is posted, on the next night, and the sum is the bill again."""
    await fleet.ledger.insert([work("a")])
    await fleet.rounds.run_due()
    await fleet.ledger.insert([work("late", team_id="team_b", output_tokens=9_000_000)])
    assert await fleet.sums(pool="h100") == BILL + 3_000_000
    fleet.now_us += DAY_US
    postings = {posting.day: posting for posting in await fleet.rounds.run_due()}
    assert postings[TODAY].revision == 2
    assert postings[TODAY].changed_nanousd == -3_000_000
    assert await fleet.sums(pool="h100") == BILL


async def test_corrected_hours_change_the_idle_row_alone(fleet: Fleet) -> None:
    """Another replica that was up and idle is nobody's."""
    await fleet.ledger.insert([work("a")])
    await fleet.rounds.run_due()
    mine, idle = await fleet.sums(team_id="team_payments"), await fleet.sums(origin="idle")
    await fleet.hours.enter("h100", DAY, DAY + DAY_US, 2)
    posting = await fleet.rounds.true_up("h100", TODAY)
    assert (posting.revision, posting.bill_nanousd) == (2, 2 * BILL)
    assert await fleet.sums(pool="h100") == 2 * BILL
    assert await fleet.sums(team_id="team_payments") == mine
    assert await fleet.sums(origin="idle") == idle + BILL


async def test_a_new_configuration_does_not_rewrite_the_past(fleet: Fleet) -> None:
    """More replicas and a higher price are for days to come, unless somebody asks for a day by name to be billed anew."""
    await fleet.ledger.insert([work("a")])
    await fleet.rounds.run_due()
    fleet.pools = (pool(up_since=TODAY, replicas=5, usd_per_gpu_hour=Decimal(4)),)
    fleet.now_us += 1_000_000
    assert await fleet.another_process().run_due() == []
    assert not (await fleet.rounds.true_up("h100", TODAY)).posted
    await fleet.ledger.insert([work("late")])
    assert (await fleet.rounds.true_up("h100", TODAY)).bill_nanousd == BILL
    rebilled = await fleet.rounds.true_up("h100", TODAY, rebill=True)
    assert rebilled.bill_nanousd == 24 * 2 * 4 * 1_000_000_000
    assert await fleet.sums(pool="h100") == rebilled.bill_nanousd


async def test_hours_are_kept_as_they_pass(fleet: Fleet) -> None:
    """A configuration that changes at noon says nothing of the morning."""
    fleet.now_us = DAY + 12 * HOUR_US
    assert await fleet.rounds.run_due() == []
    fleet.pools = (pool(up_since=TODAY, replicas=3),)
    fleet.now_us = NIGHT
    (posting,) = await fleet.rounds.run_due()
    assert posting.up_us == (12 + 12 * 3) * HOUR_US


async def test_days_that_were_missed_are_posted_later(fleet: Fleet) -> None:
    """A gateway that was stopped for some days makes up for them; none before the pool's first hour."""
    await fleet.ledger.insert([work("a")])
    fleet.now_us = NIGHT + 3 * DAY_US
    days = [posting.day.day for posting in await fleet.rounds.run_due()]
    assert days == [20, 21, 22, 23]
    assert await fleet.sums(pool="h100") == BILL


async def test_a_day_is_not_posted_before_it_is_over(fleet: Fleet) -> None:
    """Nor in the first quarter of an hour after it, by itself."""
    await fleet.ledger.insert([work("a")])
    fleet.now_us = DAY + DAY_US + 60_000_000
    assert await fleet.rounds.run_due() == []
    assert (await fleet.rounds.true_up("h100", TODAY)).posted
    fleet.now_us = DAY + DAY_US - 1
    with pytest.raises(DayNotOver):
        await fleet.rounds.true_up("h100", TODAY)
    with pytest.raises(UnknownPool):
        await fleet.rounds.true_up("l4", TODAY)


async def test_an_unpriced_pool_is_priced_by_its_bill(fleet: Fleet) -> None:
    """Rows without a planned rate get their share all the same."""
    await fleet.ledger.insert(
        [work("a", cost_nanousd=None, input_nanousd=0, output_nanousd=0, output_tokens=1_000_000, input_tokens=0)]
    )
    await fleet.rounds.run_due()
    assert await fleet.sums(team_id="team_payments") == 327_777_778
    assert await fleet.sums(pool="h100") == BILL


def test_a_day_without_change_is_not_due() -> None:
    """Deciding is pure: the same day gives the same postings."""
    day = PoolDay(pool=SINCE, day_us=DAY, up_us=DAY_US)
    assert is_due(day)
    found = pending(day)
    assert found.idle_nanousd == BILL
    assert entries(day, found, 1) == entries(day, pending(day), 1)


async def test_without_pools_nothing_is_read(engine: AsyncEngine) -> None:
    """A gateway that has no GPUs does not ask about them."""
    fleet = Fleet(engine)
    fleet.pools = ()
    assert await fleet.rounds.run_due() == []


class TornLedger(LedgerStore):
    """Writes a posting's entries and dies before the end."""

    async def insert_within(self, connection: AsyncConnection, entries: Sequence[Entry]) -> int:
        await super().insert_within(connection, entries)
        raise ConnectionResetError


async def test_a_posting_is_whole_or_not_at_all(fleet: Fleet) -> None:
    """A process that dies in the middle leaves nothing behind; the next one posts it all."""
    await fleet.ledger.insert([work("a")])
    dying = TrueUpRounds(TrueUpStore(fleet.engine, TornLedger(fleet.engine)), lambda: fleet.pools, lambda: fleet.now_us)
    with pytest.raises(ConnectionResetError):
        await dying.run_due()
    assert await fleet.sums(pool="h100") == 3_000_000
    (posting,) = await fleet.rounds.run_due()
    assert posting.revision == 1
    assert await fleet.sums(pool="h100") == BILL


amounts = st.tuples(*[st.integers(0, 10**12)] * len(METERS))
tokens = st.tuples(*[st.integers(0, 10**8)] * len(TOKEN_METERS), st.just(1))


@given(st.lists(st.tuples(tokens, amounts), max_size=5), st.integers(0, 10**12), st.integers(0, 3 * DAY_US))
def test_whatever_is_booked_a_posting_makes_it_the_bill(
    rows: list[tuple[Meters, Meters]], idle: int, up_us: int
) -> None:
    """Booked and posted amounts add up to the bill to the nano-dollar, and then nothing is left to post."""
    groups = tuple(
        Group(
            key=PostedGroup("default", f"team_{number}", "key", "llama", "self-hosted", "interactive", "", "1"),
            used=used,
            booked=booked,
            booked_nanousd=sum(booked),
        )
        for number, (used, booked) in enumerate(rows)
    )
    day = PoolDay(pool=SINCE, day_us=DAY, up_us=up_us, groups=groups, idle_booked_nanousd=idle)
    found = pending(day)
    posted = entries(day, found, 1)
    assert len({entry.request_id for entry in posted}) == len(posted)
    assert day.booked_nanousd + sum(entry.cost_nanousd or 0 for entry in posted) == found.bill.nanousd
    shared = zip(groups, found.allocation.shares, strict=True)
    after = tuple(msgspec.structs.replace(group, booked=share, booked_nanousd=sum(share)) for group, share in shared)
    idle_after = found.allocation.idle_nanousd
    assert pending(msgspec.structs.replace(day, groups=after, idle_booked_nanousd=idle_after)).is_nothing
