"""What is read of the ledger itself, on SQLite and on PostgreSQL."""

from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.dimensions import UsageFilters
from cost.reports.attempts import MAX_LOG_DAYS, MINUTE_US, AttemptReader, LoggedAttempt, LogQuery
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader
from cost.times import DAY_US, HOUR_US
from tests.cost.reports.two_organisations import DAY, TEAM_A, WHOLE, booked, keep, many, two_days

ANYTHING = UsageFilters()


@pytest.fixture
def reader(engine: AsyncEngine) -> AttemptReader:
    return AttemptReader(engine)


def asked(scope: ReadScope = WHOLE, days: int = 5, **fields: Any) -> LogQuery:
    return LogQuery(scope=scope, start_us=DAY, end_us=DAY + days * DAY_US, **fields)


async def every_page(reader: AttemptReader, query: LogQuery) -> list[LoggedAttempt]:
    """All rows, page after page."""
    rows: list[LoggedAttempt] = []
    while True:
        page = await reader.page(query)
        rows += page.rows
        if page.next_cursor is None:
            return rows
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


async def test_every_attempt_is_listed_once_and_adds_up(reader: AttemptReader, engine: AsyncEngine) -> None:
    """Newest first, whatever the length of a page; together they cost what the roll-ups say."""
    entries = [each for each in many(80) if each.organisation_id == "acme"]
    # Several of one microsecond: the page's border may fall between them.
    await keep(engine, [*many(80), *(booked(f"same_{number}") for number in range(9))])
    rows = await every_page(reader, asked(limit=4))
    assert len({(row.request_id, row.attempt, row.entry) for row in rows}) == len(rows) == len(entries) + 9
    assert [row.at_us for row in rows] == sorted((row.at_us for row in rows), reverse=True)
    query = UsageQuery(scope=WHOLE, start_us=DAY, end_us=DAY + 5 * DAY_US)
    totals = (await UsageReader(engine).page(query)).totals
    assert totals is not None
    assert sum(row.cost_nanousd or 0 for row in rows) == totals.cost_nanousd


async def test_the_log_has_its_scope_and_its_filters(reader: AttemptReader, engine: AsyncEngine) -> None:
    """Reserves are not listed; a request is found by its id within the scope only; a key's rows by the key's id."""
    await keep(engine, two_days())
    assert {row.request_id for row in (await reader.page(asked(TEAM_A))).rows} == {"a1", "a2", "a3", "a4"}
    (found,) = (await reader.page(asked(TEAM_A, request_id="a1"))).rows
    assert (found.entry, found.cost_nanousd) == ("settle", 1_000_001)
    for hidden in ("b1", "r2", "idle/h100/2026-04-05/1/1"):
        assert (await reader.page(asked(TEAM_A, request_id=hidden))).rows == ()
    assert [row.request_id for row in (await reader.page(asked(key_id="key_a2"))).rows] == ["a3"]
    assert (await reader.page(asked(key_id="key_r2"))).rows == ()
    (unpriced,) = (await reader.page(asked(request_id="a4"))).rows
    assert unpriced.cost_nanousd is None


async def test_minutes_add_up_to_the_hours(reader: AttemptReader, engine: AsyncEngine) -> None:
    """A day by the minute, from the ledger, is the day of the roll-ups, group by group; and the limit holds."""
    await keep(engine, many(80))
    rows = await reader.by_minute(WHOLE, DAY, DAY + DAY_US, group_by=("team", "model"), filters=ANYTHING, limit=1_000)
    assert all(isinstance(row.group[0], int) and row.group[0] % MINUTE_US == 0 for row in rows)
    query = UsageQuery(scope=WHOLE, start_us=DAY, end_us=DAY + DAY_US, group_by=("hour", "team", "model"), limit=1_000)
    hours = {row.group: row.sums for row in (await UsageReader(engine).page(query)).rows}
    for group, sums in hours.items():
        parts = [row.sums for row in rows if (int(row.group[0]) // HOUR_US * HOUR_US, *row.group[1:]) == group]
        for name in sums.__struct_fields__:
            assert sum(getattr(part, name) for part in parts) == getattr(sums, name)
    few = await reader.by_minute(WHOLE, DAY, DAY + DAY_US, group_by=("team", "model"), filters=ANYTHING, limit=3)
    assert few == rows[:3]


async def test_minutes_have_their_scope_and_filters(reader: AttemptReader, engine: AsyncEngine) -> None:
    """Another team's minutes are not there, nor what was filtered out."""
    await keep(engine, two_days())
    rows = await reader.by_minute(TEAM_A, DAY, DAY + DAY_US, group_by=("team",), filters=ANYTHING, limit=10)
    assert [(row.group[1], row.sums.attempts) for row in rows] == [("team_a", 1), ("team_a", 1), ("team_a", 1)]
    only = UsageFilters(model=("large",))
    (row,) = await reader.by_minute(TEAM_A, DAY, DAY + DAY_US, group_by=(), filters=only, limit=10)
    assert row.group == (DAY + DAY_US - MINUTE_US,)


@pytest.mark.parametrize(
    "fields",
    [
        {"end_us": DAY},
        {"start_us": -1},
        {"end_us": DAY + (MAX_LOG_DAYS + 1) * DAY_US},
        {"limit": 0},
        {"limit": 20_000},
        {"request_id": "a\x00"},
        {"key_id": "k" * 300},
    ],
)
def test_what_is_not_sound_is_refused(fields: dict[str, Any]) -> None:
    """A query of the log has its bounds."""
    with pytest.raises(BadQuery):
        LogQuery(**{"scope": WHOLE, "start_us": DAY, "end_us": DAY + DAY_US, **fields})


async def test_at_most_a_day_goes_by_the_minute(reader: AttemptReader) -> None:
    """And that is told before the database is asked."""
    with pytest.raises(BadQuery):
        await reader.by_minute(WHOLE, DAY, DAY + 2 * DAY_US, group_by=(), filters=ANYTHING, limit=1)


async def test_a_cursor_of_another_log_is_refused(reader: AttemptReader, engine: AsyncEngine) -> None:
    """One of a team is none of the organisation's."""
    await keep(engine, two_days())
    cursor = (await reader.page(asked(TEAM_A, limit=1))).next_cursor
    with pytest.raises(BadQuery):
        await reader.page(asked(limit=1, cursor=cursor))
