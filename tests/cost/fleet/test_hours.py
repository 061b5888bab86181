"""Hours that replicas were up: entered before recorded before configured, and none in the future."""

from datetime import date

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.fleet_errors import HoursRefused
from cost.fleet.hours import HoursStore, PoolRecord, RecordedHour, configured_hours, up_us
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US, day_of, start_of
from tests.cost.fleet.pools import DAY, pool, work

LATER = DAY + 10 * DAY_US


def test_days_and_microseconds() -> None:
    """A UTC day starts where it starts."""
    assert start_of(date(1970, 1, 2)) == DAY_US
    assert day_of(DAY + DAY_US - 1) == date(2026, 11, 20)


def test_the_configuration_counts_where_nothing_is_recorded() -> None:
    """Two replicas from 20:00 on, but one hour of which the record says something else."""
    two = pool(replicas=2)
    record = PoolRecord(since_us=DAY + 20 * HOUR_US, hours={DAY + 22 * HOUR_US: RecordedHour(7, "fleet")})
    assert up_us(two, record, DAY, DAY + DAY_US, LATER) == 3 * 2 * HOUR_US + 7


def test_no_replica_is_up_in_the_future() -> None:
    """Of the hour that it is now the part that is over counts, and nothing after it, whoever says so."""
    record = PoolRecord(since_us=DAY, hours={DAY + 2 * HOUR_US: RecordedHour(2 * HOUR_US, "entered")})
    at_half_past_one = DAY + HOUR_US + HOUR_US // 2
    assert up_us(pool(), record, DAY, DAY + DAY_US, at_half_past_one) == HOUR_US + HOUR_US // 2
    assert up_us(pool(), record, DAY, DAY + DAY_US, DAY + 2 * HOUR_US + 900) == 2 * HOUR_US + 2 * 900
    assert up_us(pool(), record, DAY, DAY + DAY_US, DAY - 5) == 0


def test_a_pool_that_nothing_was_ever_heard_of_is_not_up() -> None:
    """The configuration alone does not say since when."""
    assert up_us(pool(), PoolRecord(), DAY, DAY + DAY_US, LATER) == 0


async def test_what_is_entered_replaces_what_was_entered_before(engine: AsyncEngine) -> None:
    """The last word counts for each hour, also a zero."""
    hours, half = HoursStore(engine), DAY + 12 * HOUR_US
    assert await hours.enter("h100", DAY, DAY + DAY_US, 3) == 24
    assert await hours.enter("h100", half, DAY + DAY_US, 0) == 12
    assert await hours.enter("h100", DAY, DAY + HOUR_US, 1) == 1
    record = (await hours.read([pool()], DAY, DAY + DAY_US))["h100"]
    assert up_us(pool(), record, DAY, DAY + DAY_US, LATER) == (1 + 11 * 3) * HOUR_US


async def test_a_persons_word_counts_before_the_fleets_and_that_before_the_configurations(engine: AsyncEngine) -> None:
    """For each hour by itself."""
    hours = HoursStore(engine)
    await hours.keep("h100", {DAY: HOUR_US, DAY + HOUR_US: HOUR_US, DAY + 2 * HOUR_US: HOUR_US})
    await hours.keep("h100", {DAY: 5})
    for hour in (DAY, DAY + HOUR_US):
        for replica, up in (("one", 10), ("one", 20), ("two", 300)):
            await hours.record("h100", hour, replica, up)
    await hours.enter("h100", DAY, DAY + HOUR_US, 2)
    record = (await hours.read([pool()], DAY, DAY + DAY_US))["h100"]
    assert record.hours == {
        DAY: RecordedHour(2 * HOUR_US, "entered"),
        DAY + HOUR_US: RecordedHour(320, "fleet"),
        DAY + 2 * HOUR_US: RecordedHour(HOUR_US, "configured"),
    }


async def test_what_the_fleet_saw_is_added_up_to_an_hour(engine: AsyncEngine) -> None:
    """Replica by replica, in the caller's transaction; a name that stands for something else is not touched by it."""
    hours = HoursStore(engine)
    await hours.keep("h100", {DAY: 5})
    for up in (
        {"one": {DAY: 10, DAY + HOUR_US: HOUR_US}, "configured": {DAY: 0}},
        {"one": {DAY: 20, DAY + HOUR_US: 1}},
        {},
    ):
        async with engine.begin() as connection:
            await hours.add(connection, "h100", up)
    async with engine.connect() as connection:
        # Never committed.
        await hours.add(connection, "h100", {"one": {DAY: 40}})
    record = (await hours.read([pool()], DAY, DAY + DAY_US))["h100"]
    assert record.hours == {DAY: RecordedHour(30, "fleet"), DAY + HOUR_US: RecordedHour(HOUR_US, "fleet")}
    for span in ({DAY + 1: 5}, {DAY: -1}, {DAY: HOUR_US + 1}):
        async with engine.begin() as connection:
            with pytest.raises(HoursRefused):
                await hours.add(connection, "h100", {"one": span})


async def test_a_pool_is_up_since_its_first_use(engine: AsyncEngine) -> None:
    """Without a date in the configuration: from the hour of its first request or its first recorded hour."""
    hours, ledger = HoursStore(engine), LedgerStore(engine)
    assert (await hours.read([pool()], DAY, DAY + DAY_US))["h100"].since_us is None
    await ledger.insert([work("b", at_us=DAY + 5 * HOUR_US + 9), work("a", at_us=DAY + DAY_US), work("x", pool="l4")])
    assert (await hours.read([pool()], DAY, DAY + DAY_US))["h100"].since_us == DAY + 5 * HOUR_US
    await hours.keep("h100", {DAY: HOUR_US})
    await hours.enter("h100", DAY + 3 * HOUR_US, DAY + 4 * HOUR_US, 1)
    assert (await hours.read([pool()], LATER, LATER + DAY_US))["h100"].since_us == DAY + 3 * HOUR_US
    dated = pool(up_since=date(2026, 11, 18))
    assert (await hours.read([dated], DAY, DAY + DAY_US))["h100"].since_us == DAY - 2 * DAY_US


def test_hours_without_a_record_are_what_would_be_kept() -> None:
    """Also the zeros before a pool's first hour, so that a day that was billed stays as it was."""
    record = PoolRecord(since_us=DAY + HOUR_US, hours={DAY + 2 * HOUR_US: RecordedHour(7, "fleet")})
    assert configured_hours(pool(), record, DAY, DAY + 4 * HOUR_US) == {
        DAY: 0,
        DAY + HOUR_US: HOUR_US,
        DAY + 3 * HOUR_US: HOUR_US,
    }


async def test_unlikely_hours_are_refused(engine: AsyncEngine) -> None:
    """Whole hours, in order, and not without bounds; nothing is written."""
    for start, end, replicas in (
        (DAY + 1, DAY + HOUR_US, 1),
        (DAY, DAY + HOUR_US + 1, 1),
        (DAY, DAY, 1),
        (DAY + HOUR_US, DAY, 1),
        (DAY, DAY + HOUR_US, -1),
        (DAY, DAY + 400 * DAY_US, 100),
    ):
        with pytest.raises(HoursRefused):
            await HoursStore(engine).enter("h100", start, end, replicas)
    for hour, up in ((DAY + 1, 5), (DAY, HOUR_US + 1), (DAY, -1)):
        with pytest.raises(HoursRefused):
            await HoursStore(engine).record("h100", hour, "one", up)
    assert not (await HoursStore(engine).read([pool()], DAY, DAY + DAY_US))["h100"].hours
