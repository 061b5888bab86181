"""Usage and cost from the roll-ups, grouped and paged."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    literal,
    literal_column,
    select,
)
from sqlalchemy import tuple_ as sql_tuple
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.calendars import Offsets, day_of_row
from cost.dimensions import COLUMNS, DIMENSIONS, GROUPINGS, TIMES, Dimension, UsageFilters
from cost.ledger.rolled_up import rolled_up, whole_sum
from cost.ledger.rollups import counted, ledger_amounts
from cost.meters import MeterSums
from cost.reports.cursor import decode_cursor, encode_cursor
from cost.reports.report_errors import BadQuery, refuse_archived
from cost.reports.scope import ReadScope
from cost.tables import ROLLUP_SUMS, LedgerEntry
from cost.times import DAY_US, HOUR_US, QUARTER_US

MAX_DAYS: Final = 366
MAX_DAYS_BY_HOUR: Final = 31
MAX_ROWS: Final = 10_001
"""Largest page: one more than a reader shows, so that it sees whether there are more."""
MAX_FILTERS: Final = 100
MAX_MODELS: Final = 1_000
"""Most models in a filter: as many as a catalog has."""
_MAX_TEXT_CHARS: Final = 200
_MANY: Final = 1_000
LONGER_US: Final = 27 * HOUR_US
"""How much longer days may be than those of UTC in all: a zone's, or where an organisation takes one further west."""
_LEDGERS_OWN: Final = tuple(each.name for each in DIMENSIONS if not each.rolled_up)
_SHORT: Final = " or ".join(("hours", *(f"`{name}`" for name in _LEDGERS_OWN)))
"""Dimensions of which `MAX_DAYS_BY_HOUR` can be asked for at once, as told in error messages."""


class UsageSums(MeterSums, frozen=True, kw_only=True):
    """Sums of the roll-ups, by their column names. Unpriced attempts are counted and add nothing to the cost."""

    requests: int = 0
    attempts: int = 0
    served: int = 0
    quantity_milli: int = 0
    """Thousandths of the group's unit; of sums over several units it says nothing."""
    cost_nanousd: int = 0
    baseline_nanousd: int = 0
    baseline_rows: int = 0
    cheapest_nanousd: int = 0
    cheapest_rows: int = 0
    hosted_nanousd: int = 0
    hosted_rows: int = 0
    unpriced_attempts: int = 0
    estimated_attempts: int = 0
    batch_saved_nanousd: int = 0
    disputed_nanousd: int = 0
    """What upstreams told beyond the possible; in no cost."""
    cache_hits: int = 0
    """Requests that were given a kept answer; in no other figure, nor are their tokens and what they saved."""
    replayed_input_tokens: int = 0
    replayed_output_tokens: int = 0
    cache_saved_nanousd: int = 0

    @property
    def known_cost_nanousd(self) -> int | None:
        """Cost, or None if there are unpriced attempts and no cost: unknown is not 0."""
        return known_cost(self.unpriced_attempts, self.cost_nanousd)

    @property
    def savings_nanousd(self) -> int | None:
        """Baseline less the cost; None if that is unknown.

        Negative where failed attempts, which have no baseline, cost more than was saved.
        """
        return None if self.known_cost_nanousd is None else self.baseline_nanousd - self.known_cost_nanousd


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of usage from `start_us` up to `end_us`. Construction raises BadQuery."""

    scope: ReadScope
    start_us: int
    end_us: int
    group_by: tuple[Dimension, ...] = ()
    filters: UsageFilters = UsageFilters()
    limit: int = 1_000
    cursor: str | None = None
    offsets: Offsets = ()
    """By which days are cut, of another time zone than UTC (`Calendar.offsets`); a day is then given as the UTC day of its date."""

    def __post_init__(self) -> None:
        # A time zone's days are read by hours, which are many, but as many days as in UTC.
        is_short = self.in_ledger or (self.by_hour and not self.offsets)
        _check_range(self.start_us, self.end_us, is_short=is_short, offsets=self.offsets)
        if len(set(self.group_by)) != len(self.group_by) or not set(self.group_by) <= set(GROUPINGS):
            raise BadQuery(f"use each of {', '.join(GROUPINGS)} at most once", param="group_by")
        if not 1 <= self.limit <= MAX_ROWS:
            raise BadQuery(f"it must be from 1 to {MAX_ROWS}", param="limit")
        for name, values in msgspec.structs.asdict(self.filters).items():
            check_values(values, name)

    @property
    def by_hour(self) -> bool:
        """True if only the hourly roll-up can answer it."""
        return bool("hour" in self.group_by or self.offsets or self.start_us % DAY_US or self.end_us % DAY_US)

    @property
    def in_ledger(self) -> bool:
        """True if it asks for a dimension that the roll-ups lack."""
        filters = (name.removeprefix("not_") for name, values in msgspec.structs.asdict(self.filters).items() if values)
        return any(name in _LEDGERS_OWN for name in (*self.group_by, *filters))

    @property
    def of_entries(self) -> tuple[tuple[int, int], ...]:
        """The times of it that only entries can answer: all, or its ends where an hour is cut. Those that days begin within are never archived."""
        if self.in_ledger:
            return ((self.start_us, self.end_us),)
        ends = (self.start_us, self.end_us) if not self.offsets else ()
        return tuple((each - each % HOUR_US, each - each % HOUR_US + 1) for each in ends if each % HOUR_US)

    @property
    def order(self) -> tuple[Dimension, ...]:
        """Sort order: time first, then as grouped."""
        times: list[Dimension] = [each for each in self.group_by if each in TIMES]
        return (*sorted(times), *(each for each in self.group_by if each not in TIMES))


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group. `group` has a value for each of the query's `group_by`, in that order."""

    group: tuple[str | int, ...]
    sums: UsageSums


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of groups, and the sums of all of them. `totals` is None if not asked for."""

    rows: tuple[UsageRow, ...]
    next_cursor: str | None
    totals: UsageSums | None


class UsageReader:
    """A reader of the roll-ups, or of the ledger for what these lack, in one statement a page, and one for totals that span
    pages.

    Every statement has the scope in its WHERE clause.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def page(self, query: UsageQuery, *, with_totals: bool = True) -> UsagePage:
        """Return the groups after the query's cursor. Without `group_by` there is one row, the totals.

        Totals of a single page are added up here, so that a booking in between cannot make the two differ. Raises
        BadQuery for a foreign cursor.
        """
        source = source_of(self._engine, query)
        async with self._engine.connect() as connection:
            for span in query.of_entries:
                await refuse_archived(connection, *span)
            found = (await connection.execute(_page_statement(source, query))).all()
            # Thousands of groups are converted in a thread, not in the event loop.
            many = len(found) > _MANY
            names = tuple(source.amounts)
            rows = await asyncio.to_thread(_rows, found, query, names) if many else _rows(found, query, names)
            shown = tuple(rows[: query.limit])
            more = len(rows) > query.limit
            totals = None
            if with_totals and query.cursor is None and not more:
                totals = added(row.sums for row in shown)
            elif with_totals:
                whole = select(*source.sums).where(*source.conditions)
                totals = sums_of((await connection.execute(whole)).mappings().one())
        return UsagePage(rows=shown, next_cursor=_next_cursor(query, shown[-1]) if more else None, totals=totals)


def added(parts: Iterable[UsageSums]) -> UsageSums:
    """Add up sums."""
    columns = zip(*map(msgspec.structs.astuple, parts), strict=True)
    # Without parts there are no columns.
    return UsageSums(**dict(zip(UsageSums.__struct_fields__, map(sum, columns), strict=False)))


def check_values(values: Sequence[str], param: str) -> None:
    """Raise BadQuery for too many values, or values that no column can hold."""
    most = MAX_MODELS if param in {"model", "not_model"} else MAX_FILTERS
    if len(values) > most:
        raise BadQuery(f"at most {most} values can be asked for at once", param=param)
    if any(len(value) > _MAX_TEXT_CHARS or "\x00" in value for value in values):
        raise BadQuery(f"a value has at most {_MAX_TEXT_CHARS} characters, and no NUL", param=param)


def scoped(columns: Mapping[str, ColumnElement[Any]], scope: ReadScope) -> list[ColumnElement[bool]]:
    """Return the conditions of a scope on the columns of a roll-up or of the ledger."""
    conditions = [columns["organisation_id"] == scope.organisation_id]
    if scope.team_id is not None:
        conditions.append(columns["team_id"] == scope.team_id)
    return conditions


HAS_END_USER: Final[ColumnElement[bool]] = col(LedgerEntry.end_user) != literal_column("''")
"""The condition of the index of end users, to be said beside the one that is sought: only so is the index used everywhere."""


def filtered(columns: Mapping[str, ColumnElement[Any]], filters: UsageFilters) -> list[ColumnElement[bool]]:
    """Return the conditions of filters on the columns of a roll-up or of the ledger."""
    conditions: list[ColumnElement[bool]] = []
    for name, values in msgspec.structs.asdict(filters).items():
        if values:
            column = columns[COLUMNS[name.removeprefix("not_")]]
            conditions.append(column.not_in(values) if name.startswith("not_") else column.in_(values))
            if name == "end_user" and "" not in values:
                conditions.append(HAS_END_USER)
    return conditions


def _check_range(start_us: int, end_us: int, *, is_short: bool, offsets: Offsets) -> None:
    # Where a day of any zone begins.
    if start_us % QUARTER_US or end_us % QUARTER_US:
        raise BadQuery("a range begins and ends where days do, or on full hours (UTC)", param="start")
    if not 0 <= start_us < end_us < 2**62:
        raise BadQuery("it must be after `start`, and both between 1970 and the end of time", param="end")
    days = MAX_DAYS_BY_HOUR if is_short else MAX_DAYS
    # A month or year with a day of 25 hours is no longer.
    if end_us - start_us > days * DAY_US + (LONGER_US if offsets else HOUR_US):
        told = f"at most {MAX_DAYS} whole days, or {MAX_DAYS_BY_HOUR} days where {_SHORT} are asked for"
        raise BadQuery(f"the range is too long: {told}", param="end")


class Source(NamedTuple):
    """Rows that answer a query: those of the roll-ups, or the ledger's own."""

    columns: Mapping[str, ColumnElement[Any]]
    at: ColumnElement[Any]
    amounts: Mapping[str, ColumnElement[Any]]
    """What one row adds to each of `ROLLUP_SUMS`."""
    conditions: list[ColumnElement[bool]]

    @property
    def sums(self) -> tuple[ColumnElement[Any], ...]:
        """`ROLLUP_SUMS` as sums over the rows."""
        return tuple(whole_sum(amount).label(name) for name, amount in self.amounts.items())


def source_of(engine: AsyncEngine, query: UsageQuery) -> Source:
    """Return the rows that answer a query of days of any zone, with the dimensions that it groups by; the scope, the time and the
    filters are in their conditions.
    """
    if query.in_ledger:
        columns: Mapping[str, ColumnElement[Any]] = {
            name: getattr(LedgerEntry, name) for name in ("at_us", *COLUMNS.values())
        }
        within = counted(query.start_us, query.end_us)
        conditions = [*scoped(columns, query.scope), within, *filtered(columns, query.filters)]
        return Source(columns, columns["at_us"], ledger_amounts(), conditions)
    rows = rolled_up(
        engine,
        query.start_us,
        query.end_us,
        [COLUMNS[each] for each in query.group_by if each not in TIMES],
        lambda columns: scoped(columns, query.scope) + filtered(columns, query.filters),
        by_day="day" in query.group_by,
        by_hour="hour" in query.group_by,
        offsets=query.offsets,
    ).c
    return Source(dict(rows), rows.start_us, {name: rows[name] for name in ROLLUP_SUMS}, [])


def expression_of(source: Source, dimension: Dimension, offsets: Offsets = ()) -> ColumnElement[Any]:
    """Return a dimension's value of a row, as SQL."""
    if dimension == "day":
        return day_of_row(source.at, offsets)
    if dimension not in TIMES:
        return source.columns[COLUMNS[dimension]]
    # Inlined as a literal: two bound parameters would make GROUP BY and SELECT differ.
    start: ColumnElement[Any] = source.at - source.at % literal_column(str(TIMES[dimension]))
    return start


def _page_statement(source: Source, query: UsageQuery) -> Select[Any]:
    groups = {each: expression_of(source, each, query.offsets) for each in query.order}
    columns = [expression.label(name) for name, expression in groups.items()]
    statement = select(*columns, *source.sums).where(*source.conditions)
    if groups:
        statement = statement.group_by(*groups.values()).order_by(*groups.values()).limit(query.limit + 1)
    if query.cursor is None:
        return statement
    kinds = [int if each in TIMES else str for each in query.order]
    last = decode_cursor(query.cursor, _without_cursor(query), kinds)
    if not groups:
        raise BadQuery("what is not grouped has one page", param="page")
    return statement.where(_after(list(groups.values()), last))


def _after(expressions: Sequence[ColumnElement[Any]], last: Sequence[str | int]) -> ColumnElement[bool]:
    bound = [literal(value, BigInteger() if isinstance(value, int) else String()) for value in last]
    if len(bound) == 1:
        return expressions[0] > bound[0]
    return sql_tuple(*expressions) > sql_tuple(*bound)


def _rows(found: Sequence[Sequence[Any]], query: UsageQuery, names: Sequence[str]) -> list[UsageRow]:
    """Return the rows of a statement that begins with the groups in their order, and goes on with the sums of these names."""
    places, first = [query.order.index(each) for each in query.group_by], len(query.order)
    return [
        UsageRow(
            group=tuple(plain(row[place]) for place in places),
            sums=UsageSums(**dict(zip(names, (each or 0 for each in row[first:]), strict=True))),
        )
        for row in found
    ]


def plain(value: Any) -> str | int:
    """Return a group's value as text or int: PostgreSQL gives a computed time as a Decimal."""
    return value if isinstance(value, str) else int(value)


def known_cost(unpriced_attempts: int, cost_nanousd: int) -> int | None:
    """Return the cost, or None if there are unpriced attempts and no cost: unknown is not 0."""
    return None if unpriced_attempts and not cost_nanousd else cost_nanousd


def sums_of(found: Mapping[Any, Any]) -> UsageSums:
    """Return a row's sums as ints: PostgreSQL sums integers to Decimals, and an empty sum is null."""
    return UsageSums(**{name: int(found[name] or 0) for name in ROLLUP_SUMS})


def _next_cursor(query: UsageQuery, last: UsageRow) -> str:
    values = dict(zip(query.group_by, last.group, strict=True))
    return encode_cursor(_without_cursor(query), [values[each] for each in query.order])


def _without_cursor(query: UsageQuery) -> UsageQuery:
    """Return the query without cursor and limit, which is what a cursor belongs to."""
    return msgspec.structs.replace(query, cursor=None, limit=1)
