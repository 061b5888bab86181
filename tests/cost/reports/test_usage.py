"""The reader of the roll-ups, on SQLite and on PostgreSQL."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.dimensions import GROUPINGS, TIMES, Dimension, UsageFilters
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_DAYS, MAX_DAYS_BY_HOUR, UsageQuery, UsageReader, UsageRow, UsageSums
from cost.tables import ROLLUP_SUMS
from cost.times import DAY_US, HOUR_US
from tests.cost.reports.two_organisations import DAY, OTHERS, TEAM_A, WHOLE, keep, many, two_days

ALL: tuple[Dimension, ...] = GROUPINGS


@pytest.fixture
def reader(engine: AsyncEngine) -> UsageReader:
    return UsageReader(engine)


@contextmanager
def statements(engine: AsyncEngine) -> Iterator[list[str]]:
    """The SELECTs that are executed meanwhile."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            seen.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)


def asked(scope: ReadScope = WHOLE, days: int = 2, **fields: Any) -> UsageQuery:
    return UsageQuery(scope=scope, start_us=DAY, end_us=DAY + days * DAY_US, **fields)


async def every_page(reader: UsageReader, query: UsageQuery) -> list[UsageRow]:
    """All rows, page after page, each of which is as long as allowed but for the last."""
    rows: list[UsageRow] = []
    while True:
        page = await reader.page(query)
        rows += page.rows
        if page.next_cursor is None:
            return rows
        assert len(page.rows) == query.limit
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


def test_the_figures_are_those_of_the_roll_ups() -> None:
    """Every sum that is kept can be read, and none is made up."""
    assert sorted(UsageSums.__struct_fields__) == sorted(ROLLUP_SUMS)


async def test_two_days_by_hand(reader: UsageReader, engine: AsyncEngine) -> None:
    """Groups, their sums and the totals are those that were computed by hand; the reserve counts for nothing."""
    await keep(engine, two_days())
    page = await reader.page(asked(group_by=("model",)))
    assert [(row.group, row.sums.requests, row.sums.cost_nanousd) for row in page.rows] == [
        (("h100",), 0, 70_000_000),
        (("large",), 1, 1_000_001),
        (("small",), 4, 3 * 1_000_001),
    ]
    totals = page.totals
    assert totals is not None
    assert (totals.requests, totals.attempts, totals.served) == (5, 5, 4)
    assert (totals.unpriced_attempts, totals.estimated_attempts) == (1, 1)
    assert totals.cost_nanousd == 4 * 1_000_001 + 70_000_000
    assert totals.savings_nanousd == 4 * 4_000_000 - totals.cost_nanousd
    assert (totals.baseline_rows, totals.input_tokens, totals.cached_input_tokens) == (4, 5 * 800, 5 * 300)


async def test_days_and_hours_begin_where_they_should(reader: UsageReader, engine: AsyncEngine) -> None:
    """The last microsecond of a day is of that day, and a range without its end."""
    await keep(engine, two_days())
    days = await reader.page(asked(TEAM_A, group_by=("day",)))
    assert [(row.group[0], row.sums.requests) for row in days.rows] == [(DAY, 3), (DAY + DAY_US, 1)]
    hours = await reader.page(asked(TEAM_A, group_by=("hour",)))
    noon, last = DAY + 12 * HOUR_US, DAY + 23 * HOUR_US
    assert [row.group[0] for row in hours.rows] == [DAY, noon, last, DAY + DAY_US]
    first = await reader.page(asked(TEAM_A, days=1))
    assert [row.sums.requests for row in first.rows] == [3]
    part = UsageQuery(scope=TEAM_A, start_us=noon, end_us=last, group_by=("day",))
    assert [(row.group[0], row.sums.requests) for row in (await reader.page(part)).rows] == [(DAY, 1)]


async def test_nobody_reads_what_is_outside_the_scope(reader: UsageReader, engine: AsyncEngine) -> None:
    """A team of the same name elsewhere, idle GPUs and other teams stay unseen, whatever is filtered for."""
    await keep(engine, two_days())
    everything: tuple[Dimension, ...] = ("team", "key", "model", "provider", "tier", "tag")
    own = await reader.page(asked(TEAM_A, group_by=everything))
    assert {row.group[1] for row in own.rows} == {"key_a", "key_a2"}
    assert own.totals is not None
    assert own.totals.requests == 4
    foreign = UsageFilters(team=("team_b", "team_r"), key=("key_b", "key_r", "key_r2"))
    nothing = await reader.page(asked(TEAM_A, group_by=everything, filters=foreign))
    assert (nothing.rows, nothing.totals) == ((), UsageSums())
    rivals = await reader.page(asked(OTHERS, group_by=("team",)))
    assert [row.group for row in rivals.rows] == [("team_a",), ("team_r",)]


@pytest.mark.parametrize("by_hour", [False, True])
async def test_every_grouping_adds_up_to_the_totals(reader: UsageReader, engine: AsyncEngine, *, by_hour: bool) -> None:
    """For each dimension alone and all together: every page's totals and the sum of all pages' rows are one figure."""
    entries = many(150)
    await keep(engine, entries)
    expected = sum(entry.cost_nanousd or 0 for entry in entries if entry.organisation_id == "acme")
    together = ALL if by_hour else tuple(each for each in ALL if each != "hour")
    for group_by in (*((each,) for each in together), together):
        query = asked(days=5, group_by=group_by, limit=7 if len(group_by) == 1 else 40)
        rows = await every_page(reader, query)
        totals = (await reader.page(query)).totals
        assert totals is not None
        added = {name: sum(getattr(row.sums, name) for row in rows) for name in ROLLUP_SUMS}
        assert added == msgspec.structs.asdict(totals)
        assert totals.cost_nanousd == expected
        assert max(Counter(row.group for row in rows).values()) == 1
        if "day" in group_by:
            days = [row.group[group_by.index("day")] for row in rows]
            assert days == sorted(days)


async def test_a_page_after_the_last_is_empty_and_still_has_the_totals(
    reader: UsageReader, engine: AsyncEngine
) -> None:
    """A cursor that points behind everything gives no rows and the same totals."""
    await keep(engine, two_days())
    query = asked(group_by=("model",), limit=2)
    first = await reader.page(query)
    last = await reader.page(msgspec.structs.replace(query, cursor=first.next_cursor))
    assert (len(first.rows), len(last.rows), last.next_cursor) == (2, 1, None)
    assert first.totals == last.totals


async def test_without_groups_there_is_one_row(reader: UsageReader, engine: AsyncEngine) -> None:
    """It is the totals, also where nothing was booked."""
    empty = await reader.page(asked())
    assert [row.sums for row in empty.rows] == [UsageSums()]
    await keep(engine, two_days())
    page = await reader.page(asked())
    assert [row.sums for row in page.rows] == [page.totals]


@pytest.mark.parametrize("name", [*(name for name in GROUPINGS if name not in TIMES), "not_team", "not_tier"])
async def test_filters_leave_only_what_they_name(reader: UsageReader, engine: AsyncEngine, name: str) -> None:
    """Each filter is about its own column, and text that looks like SQL is text."""
    await keep(engine, many(60))
    dimension = name.removeprefix("not_")
    groups: Any = (dimension,)
    known = [row.group[0] for row in (await reader.page(asked(days=5, group_by=groups))).rows]
    wanted = str(known[-1])
    filters = UsageFilters(**{name: (wanted, "' OR 1=1 --")})
    found = [row.group[0] for row in (await reader.page(asked(days=5, group_by=groups, filters=filters))).rows]
    assert found == (known[:-1] if name.startswith("not_") else [wanted])


async def test_the_ledger_gives_what_the_roll_ups_do(
    reader: UsageReader, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from the ledger has the same groups, sums, totals and pages, by any dimension, day and hour."""
    await keep(engine, many(60))
    queries = [asked(days=5, group_by=(name,)) for name in ALL]
    queries += [asked(days=5), asked(days=5, group_by=("model", "hour", "team"), filters=UsageFilters(tier=("batch",)))]
    rolled_up = [await reader.page(query) for query in queries]
    halves = await reader.page(asked(days=5, group_by=("hour", "key"), limit=7))
    monkeypatch.setattr(UsageQuery, "in_ledger", property(lambda _query: True))
    assert [await reader.page(query) for query in queries] == rolled_up
    found = await reader.page(asked(days=5, group_by=("hour", "key"), limit=7))
    assert found == halves
    rest = await reader.page(asked(days=5, group_by=("hour", "key"), limit=7, cursor=found.next_cursor))
    assert rest.rows
    assert not {each.group for each in rest.rows} & {each.group for each in found.rows}


async def test_a_page_is_at_most_two_statements(reader: UsageReader, engine: AsyncEngine) -> None:
    """One where all rows fit into the page, however many groups they are; each with the scope in its conditions."""
    await keep(engine, two_days())
    for query, with_totals, count in (
        (asked(group_by=("team", "model")), True, 1),
        (asked(group_by=("team", "model"), limit=2), True, 2),
        (asked(group_by=("team", "model"), limit=2), False, 1),
    ):
        with statements(engine) as seen:
            await reader.page(query, with_totals=with_totals)
        assert len(seen) == count
        assert all("organisation_id" in statement.partition("WHERE")[2] for statement in seen)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"start_us": DAY + 1}, "start"),
        ({"end_us": DAY}, "end"),
        ({"end_us": DAY - DAY_US}, "end"),
        ({"start_us": -DAY_US}, "end"),
        ({"end_us": DAY + (MAX_DAYS + 1) * DAY_US}, "end"),
        ({"end_us": DAY + (MAX_DAYS_BY_HOUR + 1) * DAY_US, "group_by": ("hour",)}, "end"),
        ({"start_us": DAY + HOUR_US, "end_us": DAY + (MAX_DAYS_BY_HOUR + 2) * DAY_US}, "end"),
        ({"group_by": ("team", "team")}, "group_by"),
        ({"group_by": ("prompt",)}, "group_by"),
        ({"limit": 0}, "limit"),
        ({"limit": 100_000}, "limit"),
        ({"filters": UsageFilters(team=("x" * 201,))}, "team"),
        ({"filters": UsageFilters(model=("a\x00b",))}, "model"),
        ({"filters": UsageFilters(key=tuple(map(str, range(101))))}, "key"),
        ({"filters": UsageFilters(not_model=tuple(map(str, range(1_001))))}, "not_model"),
    ],
)
def test_what_is_not_sound_is_refused(fields: dict[str, Any], param: str) -> None:
    """A query has its bounds from the moment it is made."""
    with pytest.raises(BadQuery) as refusal:
        UsageQuery(**{"scope": WHOLE, "start_us": DAY, "end_us": DAY + DAY_US, **fields})
    assert refusal.value.param == param


async def test_a_cursor_is_of_its_own_query_only(reader: UsageReader, engine: AsyncEngine) -> None:
    """With another scope, range, grouping or filter it is refused; another limit is fine."""
    await keep(engine, two_days())
    query = asked(group_by=("model",), limit=1)
    cursor = (await reader.page(query)).next_cursor
    assert cursor is not None
    replace = msgspec.structs.replace
    assert (await reader.page(replace(query, cursor=cursor, limit=5))).rows
    for other in (
        asked(OTHERS, group_by=("model",), cursor=cursor),
        asked(days=3, group_by=("model",), cursor=cursor),
        asked(group_by=("team",), cursor=cursor),
        asked(group_by=(), cursor=cursor),
        asked(group_by=("model",), filters=UsageFilters(tier=("batch",)), cursor=cursor),
        replace(query, cursor=cursor[:-2]),
        replace(query, cursor="' OR 1=1 --"),
        replace(query, cursor="é"),
        replace(query, cursor=""),
    ):
        with pytest.raises(BadQuery):
            await reader.page(other)
