"""Spending of a time beside that of the time before, by any dimensions, in one statement: what changed, and why.

A change is divided exactly. What was asked costs requests x tokens a request x price a token, so each has a factor, and their product is
the factor of the cost. In dollars each has its mean effect over all orders in which the three could have changed (Shapley's value):

    requests: dR x ( (T0 x P0 + T1 x P1) / 3 + (T0 x P1 + T1 x P0) / 6 ),   and so on

These add up to the change, to the nano-dollar: what rounding leaves is the price's. Where nothing has tokens (images, seconds), it is
requests x price a request. What was posted since (corrections, adjustments of own GPUs) is a part of its own.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Select, Subquery, and_, case, false, func, not_, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.dimensions import BY_NAME, COLUMNS, GROUPINGS, Dimension, UsageFilters
from cost.ledger.rollups import first_ids
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import (
    LONGER_US,
    MAX_DAYS,
    MAX_DAYS_BY_HOUR,
    Source,
    UsageQuery,
    expression_of,
    known_cost,
    source_of,
)
from cost.times import DAY_US, HOUR_US

Against = Literal["previous", "week"]
AGAINST: Final[tuple[Against, ...]] = ("previous", "week")
"""What a time is compared with: the same length right before it, or the same weekdays whole weeks before."""
MOST_ROWS: Final = 200
ASKED: Final = ("caller", "shadow")
"""Origins of what a model was asked; all others are posted afterwards."""
_WEEK_DAYS: Final = 7
_ONE_DAY: Final = timedelta(days=1)
_BY_HOUR_US: Final = 7 * DAY_US + HOUR_US
"""Longest time that is cut at the last full hour rather than at the last full day: a week, with a day of 25 hours."""
_OFTEN_MANY: Final = frozenset({"team", "key", "tag"})
"""Dimensions with thousands of values."""
_COUNTS: Final = ("attempts", "requests", "served", "input_tokens", "output_tokens", "unpriced_attempts")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A time and the one that it is compared with: as many days of a calendar, or the same length."""

    start_us: int
    end_us: int
    previous_start_us: int
    """Start of the time before."""
    previous_end_us: int
    """Its end, excluded; its start for a time that is compared with nothing."""
    calendar: Calendar = UTC_CALENDAR
    """By which days are cut, and in which times are told."""

    @property
    def is_compared(self) -> bool:
        """False for a time that is compared with nothing."""
        return self.previous_start_us < self.previous_end_us

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Both times."""
        now = (self.start_us, self.end_us)
        return ((self.previous_start_us, self.previous_end_us), now) if self.is_compared else (now,)


def window_of(
    start_us: int,
    end_us: int,
    now_us: int,
    against: Against = "previous",
    calendar: Calendar = UTC_CALENDAR,
    *,
    longest_us: int,
) -> Window:
    """Return what a time is compared with. One that is not over is compared as far as its last full hour, or day where it is longer than
    a week. Where nothing of it is over, or both together are longer than `longest_us`, it is compared with nothing.
    """
    length_us, last_us = end_us - start_us, end_us
    if end_us > now_us:
        by_hour = length_us <= _BY_HOUR_US
        last_us = now_us - now_us % HOUR_US if by_hour else calendar.start(calendar.day(now_us))
    alone = Window(
        start_us=start_us, end_us=end_us, previous_start_us=start_us, previous_end_us=start_us, calendar=calendar
    )
    if not 0 <= start_us < last_us:
        return alone
    days = (calendar.day(end_us - 1) - calendar.day(start_us)).days + 1
    if against == "week":
        days = -(-length_us // DAY_US) if not _whole(calendar, start_us, end_us) else days
        days = -(-days // _WEEK_DAYS) * _WEEK_DAYS
    if against == "previous" and not _whole(calendar, start_us, end_us):
        before = (start_us - length_us, last_us - length_us)
    else:
        before = (_earlier(calendar, start_us, days), _earlier(calendar, last_us, days))
    slack_us = LONGER_US if calendar.offsets(max(0, before[0]), last_us) else 0
    if before[0] < 0 or last_us - before[0] > longest_us + slack_us:
        return alone
    return Window(
        start_us=start_us, end_us=last_us, previous_start_us=before[0], previous_end_us=before[1], calendar=calendar
    )


def _whole(calendar: Calendar, *moments: int) -> bool:
    """Return True if these are where days begin."""
    return all(calendar.start(calendar.day(each)) == each for each in moments)


def _earlier(calendar: Calendar, at_us: int, days: int) -> int:
    """Return the moment of an earlier day that is as long after its midnight, and not after its end."""
    day = calendar.day(at_us)
    start_us, end_us = calendar.days(day - days * _ONE_DAY, day - days * _ONE_DAY)
    return min(start_us + at_us - calendar.start(day), end_us)


def longest_us(filters: UsageFilters, group_by: Sequence[Dimension], start_us: int, end_us: int) -> int:
    """Return the longest time that both periods may take together."""
    in_ledger = any(not BY_NAME[each].rolled_up for each in group_by) or bool(filters.end_user)
    is_short = in_ledger or end_us - start_us <= _BY_HOUR_US
    return (MAX_DAYS_BY_HOUR if is_short else MAX_DAYS) * DAY_US


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one of the two times. Nano-dollars."""

    asked_nanousd: int = 0
    """Cost of what models were asked."""
    posted_nanousd: int = 0
    """What was posted afterwards."""
    attempts: int = 0
    """Calls of a model, with those that failed and were tried again elsewhere."""
    requests: int = 0
    served: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unpriced_attempts: int = 0

    @property
    def cost_nanousd(self) -> int:
        """Everything that is booked."""
        return self.asked_nanousd + self.posted_nanousd

    @property
    def known_cost_nanousd(self) -> int | None:
        """Cost, or None if there are unpriced attempts and no cost: unknown is not 0."""
        return known_cost(self.unpriced_attempts, self.cost_nanousd)

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Measured") -> "Measured":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Measured(**dict(zip(self.__struct_fields__, (one + two for one, two in pairs), strict=True)))


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A change by what caused it, in nano-dollars that add up to it; and the three factors, whose product is that of the cost."""

    requests_nanousd: int
    tokens_nanousd: int
    """0 where it is not known apart: nothing has tokens, or one of the two times has no calls."""
    price_nanousd: int
    posted_nanousd: int
    requests: Fraction | None
    """Calls, as a multiple of those before; None without any before."""
    tokens: Fraction | None
    """Tokens a call, as a multiple; None where one of the two times has none."""
    price: Fraction | None
    """Cost a token, or a call where there are no tokens, as a multiple; None where one of the two times has none."""


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group, now and before. `group` has a value for each of the query's `group_by`."""

    group: tuple[str, ...]
    now: Measured
    before: Measured

    @property
    def change_nanousd(self) -> int:
        """Cost less the cost before."""
        return self.now.cost_nanousd - self.before.cost_nanousd

    @property
    def change_share(self) -> Fraction | None:
        """The change as a share of the cost before; None where there was none."""
        before = self.before.cost_nanousd
        return Fraction(self.change_nanousd, before) if before > 0 else None

    @property
    def parts(self) -> Parts:
        """The change by its causes."""
        return parts_of(self.before, self.now)


class ComparedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of a time beside the one before. Construction raises BadQuery."""

    scope: ReadScope
    window: Window
    group_by: tuple[Dimension, ...] = ()
    filters: UsageFilters = UsageFilters()
    order: Literal["change", "cost"] = "change"
    """The largest changes first, up or down, or the dearest groups."""
    limit: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MOST_ROWS:
            raise BadQuery(f"it must be from 1 to {MOST_ROWS}", param="limit")
        if not set(self.group_by) <= set(GROUPABLE):
            raise BadQuery(f"use each of {', '.join(GROUPABLE)} at most once", param="group_by")
        self.usage  # noqa: B018 - it raises for ranges and values that cannot be

    @property
    def usage(self) -> UsageQuery:
        """The query of usage from the beginning of the earlier time to the end of the later one."""
        return self.usage_of(self.window.previous_start_us, self.window.end_us)

    def usage_of(self, start_us: int, end_us: int, *times: Dimension) -> UsageQuery:
        """Return the query of usage of a time, by the groups and these times."""
        # A range that cannot be has no days.
        is_range = 0 <= start_us < end_us <= start_us + (MAX_DAYS + 1) * DAY_US
        return UsageQuery(
            scope=self.scope,
            start_us=start_us,
            end_us=end_us,
            group_by=(*self.group_by, "origin", *times),
            filters=self.filters,
            offsets=self.window.calendar.offsets(start_us, end_us) if is_range else (),
        )


GROUPABLE: Final[tuple[Dimension, ...]] = tuple(
    each for each in GROUPINGS if each in COLUMNS and each not in {"origin", "unit"}
)
"""Dimensions that a change is divided by."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that were asked for, and the whole, of which they may be a part."""

    rows: tuple[ComparedRow, ...]
    whole: ComparedRow

    @property
    def others(self) -> ComparedRow:
        """What is in the whole and in none of the rows."""
        now, before = self.whole.now, self.whole.before
        for row in self.rows:
            now, before = _less(now, row.now), _less(before, row.before)
        return ComparedRow(group=(), now=now, before=before)


def _less(whole: Measured, part: Measured) -> Measured:
    pairs = zip(msgspec.structs.astuple(whole), msgspec.structs.astuple(part), strict=True)
    return Measured(**dict(zip(whole.__struct_fields__, (one - two for one, two in pairs), strict=True)))


class Span(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Hours, or days of a calendar, one after the other."""

    start_us: int
    end_us: int
    step_us: int
    """An hour or a day."""
    calendar: Calendar = UTC_CALENDAR

    @cached_property
    def starts(self) -> Sequence[int]:
        """Where each of them begins."""
        if self.step_us == HOUR_US:
            return range(self.start_us - self.start_us % HOUR_US, self.end_us, HOUR_US)
        return [self.calendar.start(self._first + place * _ONE_DAY) for place in range(len(self._days))]

    @property
    def _first(self) -> date:
        return self.calendar.day(self.start_us)

    @property
    def _days(self) -> Days:
        return Days(self._first, self.calendar.day(self.end_us - 1), self.calendar)

    def place(self, start_us: int) -> int:
        """Return which of them a row is of, by its hour or by the mark of its day (`Days.marks`)."""
        first_us = self.starts[0] if self.step_us == HOUR_US else self._days.marks.start
        return (start_us - first_us) // self.step_us


class ComparedReader:
    """A reader of two times at once, from the roll-ups, or for end users from the ledger. The scope is in every statement."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def read(self, query: ComparedQuery) -> Compared:
        """Return the groups and the whole."""
        source = _both(self._engine, query)
        async with self._engine.connect() as connection:
            largest = _largest(_both(self._engine, query), query) if _has_many_groups(query) else None
            rows = await _read(connection, source, query, largest) if query.group_by else []
            if 0 < len(rows) < query.limit:
                # Added up here, so that a booking in between cannot make the two differ.
                now = sum((row.now for row in rows), Measured())
                whole = ComparedRow(group=(), now=now, before=sum((row.before for row in rows), Measured()))
            else:
                (whole,) = await _read(connection, source, msgspec.structs.replace(query, group_by=()))
        return Compared(rows=tuple(rows), whole=whole)

    async def series(self, query: ComparedQuery, groups: Sequence[tuple[str, ...]], span: Span) -> list[list[int]]:
        """Return the cost of what models were asked, of each of these groups in every hour or day of the span. Nano-dollars."""
        time: Dimension = "hour" if span.step_us == HOUR_US else "day"
        asked = query.usage_of(span.start_us, span.end_us, time)
        source = source_of(self._engine, asked)
        columns, at = group_columns(source, query.group_by), expression_of(source, time, asked.offsets)
        wanted = [and_(*(column == value for column, value in zip(columns, each, strict=True))) for each in groups]
        statement = (
            select(*columns, at, func.sum(source.amounts["cost_nanousd"]))
            .where(*source.conditions, source.columns["origin"].in_(ASKED), or_(false(), *wanted))
            .group_by(*columns, at)
        )
        found = {each: [0] * len(span.starts) for each in groups}
        async with self._engine.connect() as connection:
            for *group, start_us, cost in await connection.execute(statement):
                found[tuple(group)][span.place(int(start_us))] = int(cost or 0)
        return [found[each] for each in groups]


def _both(engine: AsyncEngine, query: ComparedQuery) -> Source:
    """Return the rows of both times, each of one of them alone."""
    names, parts = [COLUMNS[each] for each in (*query.group_by, "origin")], []
    for start_us, end_us in query.window.spans:
        found = source_of(engine, query.usage_of(start_us, end_us))
        amounts = [found.amounts[name].label(name) for name in (*_COUNTS, "cost_nanousd")]
        columns = [found.columns[name].label(name) for name in names]
        parts.append(select(found.at.label("start_us"), *columns, *amounts).where(*found.conditions))
    rows = union_all(*parts).subquery("compared").c
    return Source({name: rows[name] for name in names}, rows.start_us, dict(rows), [])


def group_columns(source: Source, group_by: Sequence[Dimension]) -> list[ColumnElement[Any]]:
    """Return the columns that a change is divided by; a key that replaced another goes on with its figures."""
    columns = ((BY_NAME[each], source.columns[COLUMNS[each]]) for each in group_by)
    return [first_ids(column) if row.rotates else column for row, column in columns]


async def _read(
    connection: AsyncConnection, source: Source, query: ComparedQuery, largest: Subquery | None = None
) -> list[ComparedRow]:
    found = (await connection.execute(_statement(source, query, largest))).mappings().all()
    return [
        ComparedRow(
            group=tuple(str(row[name]) for name in query.group_by),
            now=_measured(row, "now"),
            before=_measured(row, "before"),
        )
        for row in found
    ]


def _has_many_groups(query: ComparedQuery) -> bool:
    """Return True where the roll-ups may have thousands of groups, of which a few are shown. The ledger is read once only."""
    if _OFTEN_MANY.isdisjoint(query.group_by):
        return False
    return not query.usage_of(query.window.start_us, query.window.end_us).in_ledger


def _largest(source: Source, query: ComparedQuery) -> Subquery:
    """Return the groups that come first, by their cost alone: sums of all that is told of each of thousands do not fit in the memory
    that a database gives to one statement.
    """
    columns = dict(zip(query.group_by, group_columns(source, query.group_by), strict=True))
    cost, is_now = source.amounts["cost_nanousd"], source.at >= query.window.start_us
    now, before = (func.sum(case((each, cost), else_=0)) for each in (is_now, not_(is_now)))
    return (
        select(*(column.label(name) for name, column in columns.items()))
        .group_by(*columns.values())
        .order_by(_order(query, now, before), *columns.values())
        .limit(query.limit)
        .subquery("largest")
    )


def _order(query: ComparedQuery, now: ColumnElement[Any], before: ColumnElement[Any]) -> ColumnElement[Any]:
    return (func.abs(now - before) if query.order == "change" else now).desc()


def _statement(source: Source, query: ComparedQuery, largest: Subquery | None = None) -> Select[Any]:
    window = query.window
    periods = {
        "now": source.at >= window.start_us,
        "before": source.at < window.start_us,
    }
    asked = source.columns["origin"].in_(ASKED)
    sums: dict[str, ColumnElement[Any]] = {}
    for period, within in periods.items():
        cost = source.amounts["cost_nanousd"]
        sums[f"{period}_asked_nanousd"] = func.sum(case((and_(within, asked), cost), else_=0))
        sums[f"{period}_posted_nanousd"] = func.sum(case((and_(within, not_(asked)), cost), else_=0))
        for name in _COUNTS:
            sums[f"{period}_{name}"] = func.sum(case((within, source.amounts[name]), else_=0))
    columns = dict(zip(query.group_by, group_columns(source, query.group_by), strict=True))
    named = [column.label(name) for name, column in columns.items()]
    statement = select(*named, *(each.label(name) for name, each in sums.items()))
    if not columns:
        return statement
    now = sums["now_asked_nanousd"] + sums["now_posted_nanousd"]
    before = sums["before_asked_nanousd"] + sums["before_posted_nanousd"]
    if largest is not None:
        statement = statement.where(*(column == largest.c[name] for name, column in columns.items()))
    return (
        statement.group_by(*columns.values()).order_by(_order(query, now, before), *columns.values()).limit(query.limit)
    )


def _measured(row: Mapping[Any, Any], period: str) -> Measured:
    # PostgreSQL sums integers to Decimals, and an empty sum is null.
    return Measured(**{name: int(row[f"{period}_{name}"] or 0) for name in Measured.__struct_fields__})


_Factors = tuple[Fraction, Fraction, Fraction]


def parts_of(before: Measured, now: Measured) -> Parts:
    """Return a change by its causes."""
    posted = now.posted_nanousd - before.posted_nanousd
    change = now.asked_nanousd - before.asked_nanousd
    if not before.attempts or not now.attempts:
        # What is new, or gone, has nothing to be compared with: all of it is calls.
        requests = Fraction(now.attempts, before.attempts) if before.attempts else None
        return Parts(
            requests_nanousd=change, tokens_nanousd=0, price_nanousd=0, posted_nanousd=posted,
            requests=requests, tokens=None, price=None,
        )  # fmt: skip
    has_tokens = bool(before.tokens and now.tokens)
    each: list[_Factors] = [
        (
            Fraction(found.attempts),
            Fraction(found.tokens, found.attempts) if has_tokens else Fraction(1),
            Fraction(found.asked_nanousd, found.tokens if has_tokens else found.attempts),
        )
        for found in (before, now)
    ]
    by_requests, by_tokens, _ = _effects(*each)
    return Parts(
        requests_nanousd=by_requests,
        tokens_nanousd=by_tokens,
        price_nanousd=change - by_requests - by_tokens,
        posted_nanousd=posted,
        requests=each[1][0] / each[0][0],
        tokens=each[1][1] / each[0][1] if has_tokens else None,
        price=each[1][2] / each[0][2] if each[0][2] else None,
    )


def _effects(before: _Factors, now: _Factors) -> tuple[int, ...]:
    """Return what each of three factors changed of their product, on average over the orders in which they could have changed."""
    found = []
    for place in range(3):
        (a0, a1), (b0, b1) = ((before[other], now[other]) for other in range(3) if other != place)
        weight = (a0 * b0 + a1 * b1) / 3 + (a0 * b1 + a1 * b0) / 6
        found.append(round((now[place] - before[place]) * weight))
    return tuple(found)
