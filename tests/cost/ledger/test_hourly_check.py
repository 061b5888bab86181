"""The hourly check: by one of all processes, once an hour, and known to all."""

import asyncio
import logging

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.hourly_check import LedgerWatch
from cost.ledger.shared_turn import Checked, due
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US
from gateway.database import make_engine
from tests.cost.entries import reserve, settle

NOON_US = reserve().at_us


@pytest.mark.parametrize(
    ("begun_us", "done_us", "now_us", "expected"),
    [
        (0, 0, NOON_US, True),
        (NOON_US, NOON_US + 9, NOON_US + HOUR_US - 1, False),
        (NOON_US, NOON_US + 9, NOON_US + HOUR_US, True),
        (NOON_US, NOON_US - HOUR_US, NOON_US + HOUR_US // 2 - 1, False),
        (NOON_US, NOON_US - HOUR_US, NOON_US + HOUR_US // 2, True),
        (NOON_US + DAY_US, NOON_US + DAY_US, NOON_US, True),
    ],
)
def test_when_it_is_due(begun_us: int, done_us: int, now_us: int, *, expected: bool) -> None:
    """An hour after it was begun, or half of one when whoever began it never finished."""
    assert due(Checked(begun_us=begun_us, done_us=done_us), now_us) is expected


async def test_all_learn_what_one_found(
    engine: AsyncEngine, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several processes one checks, in an hour once; differences are logged, and known to all at the next look."""
    await LedgerStore(engine).insert([reserve(), settle(request_nanousd=1_000_000)])
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE rollup_day SET cost_nanousd = 5, served = 3"))
    told: list[Checked] = []
    now = [NOON_US / 1_000_000 + 60]
    engines = [make_engine(database_url) for _ in range(3)]
    watches = [LedgerWatch(each, told.append, clock=lambda: now[0]) for each in engines]
    with caplog.at_level(logging.ERROR):
        await asyncio.gather(*(watch.check_due() for watch in watches))
    assert len(caplog.records) == 1
    assert "2 figures differ, the first is served of rollup_day: 3 instead of 0" in caplog.text
    now[0] += 1800
    for watch in watches:
        await watch.check_due()
    done_us = NOON_US + 60_000_000
    assert told[-3:] == [Checked(begun_us=done_us, done_us=done_us, differences=2)] * 3
    assert len(caplog.records) == 1
    for each in engines:
        await each.dispose()


async def test_it_is_done_again_after_an_hour(engine: AsyncEngine) -> None:
    """What was mended is no longer told, and days before yesterday are not looked at."""
    await LedgerStore(engine).insert([reserve(), settle(request_nanousd=1_000_000)])
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE rollup_day SET cost_nanousd = 5"))
    told: list[Checked] = []
    now = [NOON_US / 1_000_000]
    watch = LedgerWatch(engine, told.append, clock=lambda: now[0])
    for after_us in (1, HOUR_US, DAY_US, 2 * DAY_US):
        now[0] = (NOON_US + after_us) / 1_000_000
        await watch.check_due()
    assert [checked.differences for checked in told] == [1, 1, 1, 0]
