"""The rows of the roll-ups that a time is made of, wherever its days begin.

Whole UTC days are read by days, from the smallest roll-up that has what is asked for, whole hours by hours. An hour within which a day begins, as in India, is summed up
from the ledger: the two at the ends of a range, or one of each day where days are told apart, and nothing else.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    cast,
    column,
    func,
    literal_column,
    or_,
    select,
    true,
    union_all,
    values,
)
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.visitors import iterate
from sqlmodel import col

from cost.calendars import Offsets
from cost.ledger.rollups import counted, ledger_sums
from cost.tables import (
    ROLLUP_DIMENSIONS,
    ROLLUP_SUMS,
    LedgerEntry,
    rollup_day,
    rollup_hour,
    rollup_model_day,
    rollup_team_day,
    rollup_team_model_day,
)
from cost.times import DAY_US, HOUR_US, QUARTER_US

Columns = Mapping[str, ColumnElement[Any]]
_Span = tuple[int, int]
_Where = Callable[[Columns], list[ColumnElement[bool]]]

_LEDGER: Final[Columns] = {name: getattr(LedgerEntry, name) for name in LedgerEntry.model_fields}
_UNINDEXED: Final[Columns] = {
    name: _LEDGER[name] if name == "team_id" else _LEDGER[name].concat("")
    for name in ROLLUP_DIMENSIONS
    if name != "start_us"
}
"""The same for conditions that SQLite is to make no index of its own for: that takes all of the ledger."""

_DAYS: Final = (rollup_model_day, rollup_team_day, rollup_team_model_day, rollup_day)
"""Roll-ups by days, the smallest first."""


def rolled_up(
    engine: AsyncEngine,
    start_us: int,
    end_us: int,
    names: Sequence[str],
    where: _Where,
    *,
    sums: Sequence[str] = ROLLUP_SUMS,
    by_day: bool = False,
    by_hour: bool = False,
    offsets: Offsets = (),
) -> FromClause:
    """Return rows of `start_us`, the dimensions `names`, and `sums`, which together are a time, to the nano-dollar.

    With `by_day` each is within one day by the offsets (`day_of_row`), with `by_hour` within one hour. `where` returns the
    conditions on the columns of any of the tables.
    """
    first, last = -(-start_us // HOUR_US) * HOUR_US, end_us - end_us % HOUR_US
    cut = {each - each % HOUR_US for each in _midnights(end_us, offsets) if each % HOUR_US} if by_day else set()
    spans = [(start_us, min(first, end_us)), (max(last, first), end_us) if last >= first else (end_us, end_us)]
    spans += [(hour, hour + HOUR_US) for hour in cut if first <= hour < last]
    spans = [(since, until) for since, until in sorted(spans) if since < until]
    first_day, last_day = -(-first // DAY_US) * DAY_US, last - last % DAY_US
    has_days = first_day < last_day and not by_hour and not (by_day and offsets)
    hours = [(first, first_day), (last_day, last)] if has_days else [(first, last)]
    parts = (
        [_rows_of(days_with([*names, *_asked_for(where)]), [(first_day, last_day)], names, sums, where)]
        if has_days
        else []
    )
    if hours := [(since, until) for since, until in hours if since < until]:
        found = _rows_of(rollup_hour, hours, names, sums, where)
        parts.append(found.where(rollup_hour.c.start_us.not_in(sorted(cut))) if cut else found)
    if spans:
        parts.append(_rows_of_ledger(engine, spans, names, sums, where))
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery("rolled_up")


def whole_sum(amount: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the sum of whole numbers as one: PostgreSQL's own is a Decimal, which takes ten times as long to read. What 64 bits
    do not hold, nine billions of dollars, is an error in either database.
    """
    return cast(func.sum(amount), BigInteger)


def days_with(names: Iterable[str]) -> Table:
    """Return the smallest roll-up by UTC days that has these dimensions."""
    asked = {*names}
    return next(table for table in _DAYS if asked <= {*table.c.keys()})


def _asked_for(where: _Where) -> Iterable[str]:
    """Return the dimensions that conditions are on."""
    parts = itertools.chain.from_iterable(map(iterate, where(dict(rollup_day.c))))
    return (part.name for part in parts if isinstance(part, Column))


def _midnights(end_us: int, offsets: Offsets) -> Iterable[int]:
    """Return where days begin in a time, and where another offset does."""
    for (since_us, offset_us), (until_us, _) in itertools.pairwise((*offsets, (end_us, 0))):
        yield since_us
        yield from range(since_us + -(since_us + offset_us) % DAY_US, until_us, DAY_US)


def _rows_of(
    table: Table, spans: Sequence[_Span], names: Sequence[str], sums: Sequence[str], where: _Where
) -> Select[Any]:
    start = table.c.start_us
    within = or_(*(and_(start >= since, start < until) for since, until in spans))
    return select(start, *(table.c[name] for name in (*names, *sums))).where(within, *where(dict(table.c)))


def _rows_of_ledger(
    engine: AsyncEngine, spans: Sequence[_Span], names: Sequence[str], sums: Sequence[str], where: _Where
) -> Select[Any]:
    at = col(LedgerEntry.at_us)
    start = (at - at % literal_column(str(QUARTER_US))).label("start_us")
    groups = [_LEDGER[name] for name in names]
    summed = {each.name: each for each in ledger_sums()}
    # In the order of the other parts: a union goes by it, and not by names.
    columns: list[Any] = [start, *groups, *(summed[name] for name in sums)]
    rows = select(*columns).where(counted(spans[0][0], spans[-1][1])).group_by(start, *groups)
    if engine.dialect.name != "sqlite":
        return rows.where(or_(*(and_(at >= since, at < until) for since, until in spans)), *where(_LEDGER))
    # SQLite would read all entries in between, and look at each whether it is within one.
    found = values(column("since", BigInteger), column("until", BigInteger), name="spans").data([*spans]).cte()
    within = (at >= found.c.since, at < found.c.until)
    return rows.select_from(found).join(LedgerEntry, true()).where(*within, *where(_UNINDEXED))
