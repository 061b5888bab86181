"""Roll-ups: sums of entries by hour and by day, and the daily spend that budgets read.

They are kept in the transaction that writes the entries, and only for entries that are really new: so they are what the
ledger adds up to, however often and by whomever a batch is written. The counting rules are here twice, for entries in
memory and as SQL over the ledger; `cost.ledger.verify` compares the two.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Table, and_, case, func, literal, select
from sqlmodel import col

from cost.ledger.entries import BASELINE_COLUMNS, TERMINAL, Entry
from cost.meters import METER_COLUMNS, REPLAYED_COLUMNS, TOKEN_COLUMNS
from cost.scopes import SCOPES, ScopeRow
from cost.tables import (
    COARSER_DAYS,
    ROLLUP_DIMENSIONS,
    ROLLUP_SUMS,
    EndUserMonth,
    LedgerEntry,
    SpendDay,
    SpendQuarter,
    rollup_day,
    rollup_hour,
)
from cost.times import DAY_US, HOUR_US, QUARTER_US, month_of, next_month
from settings.key_ids import FIRST_CHARS, SEPARATOR

LOST_HOST: Final = "lost_host"
"""Flag of an expiry whose host was lost, and of the adjustment that reverses it when the host is found again."""
SPENT_ORIGINS: Final = ("caller", "shadow", "correction", "reconciliation")
"""Origins that budgets count: no true-up and no idle GPU, because a budget counts at the planned rate."""

ROLLUP_KEY: Final = (
    "team_id",
    "start_us",
    *(name for name in ROLLUP_DIMENSIONS if name not in {"team_id", "start_us"}),
)
"""Dimensions in the order of the primary key."""
SPEND_KEY: Final = ("scope", "scope_id", "day_us")
MONTH_KEY: Final = ("team_id", "month_us", "end_user")
QUARTER_KEY: Final = ("scope", "scope_id", "start_us")
COST: Final = ROLLUP_SUMS.index("cost_nanousd")
_START: Final = ROLLUP_KEY.index("start_us")
_REPLAYED: Final = len(REPLAYED_COLUMNS)
_COUNTED: Final = ROLLUP_SUMS[ROLLUP_SUMS.index(TOKEN_COLUMNS[0]) : COST]

RollupKey = tuple[Any, ...]
Sums = Sequence[int]
SpendSums = dict[tuple[str, str, int], int]
MonthSums = dict[tuple[str, int, str], int]

spend_day: Final[Table] = SpendDay.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
end_user_month: Final[Table] = EndUserMonth.__table__  # type: ignore[attr-defined]
_ledger: Final[Table] = LedgerEntry.__table__  # type: ignore[attr-defined]
spend_quarter: Final[Table] = SpendQuarter.__table__  # type: ignore[attr-defined]


class RollupDeltas(msgspec.Struct, frozen=True):
    """Amounts that a batch of entries adds to each of the tables, by key."""

    hours: dict[RollupKey, Sums]
    days: dict[RollupKey, Sums]
    coarser: tuple[dict[RollupKey, Sums], ...]
    """By the tables of `COARSER_DAYS`."""
    spend: SpendSums
    quarters: SpendSums
    months: MonthSums
    """By team, month and end user."""


_Spender: Final[Any] = msgspec.defstruct("_Spender", ROLLUP_KEY)
_DIMENSIONS: Final = tuple(name for name in ROLLUP_KEY if name != "start_us")
_ORIGIN: Final = _DIMENSIONS.index("origin")
_SPENT_ROLLED_UP: Final = tuple(each for each in SCOPES if each.rolled_up)
_SPENT_ALONE: Final = tuple(each for each in SCOPES if not each.rolled_up)
_kind: Final = attrgetter(*_DIMENSIONS, "entry", "attempt", "served", "usage_source", "flags")
_amounts: Final = attrgetter(
    "cost_nanousd",
    *BASELINE_COLUMNS,
    "priced_attempts",
    "batch_saved_nanousd",
    "disputed_nanousd",
    *REPLAYED_COLUMNS,
    *_COUNTED,
    *METER_COLUMNS,
)


def roll_up(entries: Iterable[Entry]) -> RollupDeltas:
    """Return the sums of entries that are new to the ledger."""
    alike: dict[tuple[int, tuple[Any, ...]], list[Entry]] = {}
    for entry in entries:
        if entry.entry != "reserve":
            alike.setdefault((entry.at_us // QUARTER_US, _kind(entry)), []).append(entry)
    quarters: dict[RollupKey, Sums] = {}
    alone: SpendSums = {}
    for (quarter, kind), group in alike.items():
        start_us = quarter * QUARTER_US
        add(quarters, (kind[0], start_us, *kind[1 : len(_DIMENSIONS)]), _sums_of(group))
        if kind[_ORIGIN] in SPENT_ORIGINS:
            _add_spend(alone, group, start_us)
    hours = _summed(quarters, HOUR_US)
    days = days_of(hours)
    alone_days = _spend_by_day(alone)
    coarser = tuple(coarser_of(days, table) for table in COARSER_DAYS)
    spend, quarter_spend = spend_of(days) | alone_days, spend_of(quarters) | alone
    return RollupDeltas(hours, days, coarser, spend, quarter_spend, months_of(alone_days))


def months_of(spend: SpendSums) -> MonthSums:
    """Return what each end user spent in a month, of the daily spend."""
    months: MonthSums = {}
    for (scope, scope_id, day_us), amount in spend.items():
        if scope == "end_user":
            team_id, _, end_user = scope_id.partition("/")
            place = (team_id, month_of(day_us), end_user)
            months[place] = months.get(place, 0) + amount
    return months


def _add_spend(spend: SpendSums, alike: Iterable[Entry], start_us: int) -> None:
    """Add the spend of what the roll-ups do not have; a hundred thousand end users have rows of their own here alone."""
    for entry in alike:
        for each in _SPENT_ALONE:
            if scope_id := each.id_of(entry):
                place = (each.name, scope_id, start_us)
                spend[place] = spend.get(place, 0) + (entry.cost_nanousd or 0)


def _spend_by_day(quarters: SpendSums) -> SpendSums:
    days: SpendSums = {}
    for (scope, scope_id, start_us), amount in quarters.items():
        place = (scope, scope_id, start_us - start_us % DAY_US)
        days[place] = days.get(place, 0) + amount
    return days


def add(sums: dict[RollupKey, Sums], key: RollupKey, more: Sums) -> None:
    """Add `more` to the sums of a key."""
    found = sums.get(key)
    sums[key] = more if found is None else tuple(map(operator.add, found, more))


def days_of(hours: Mapping[RollupKey, Sums]) -> dict[RollupKey, Sums]:
    """Return hourly sums added up to UTC days."""
    return _summed(hours, DAY_US)


def coarser_of(days: Mapping[RollupKey, Sums], table: Table) -> dict[RollupKey, Sums]:
    """Return daily sums added up to the key of a table with fewer dimensions."""
    place = itemgetter(*map(ROLLUP_KEY.index, key_of(table)))
    alike: dict[RollupKey, list[Sums]] = {}
    for key, sums in days.items():
        alike.setdefault(place(key), []).append(sums)
    # Most have one row, or very many.
    return {
        key: found[0] if len(found) == 1 else tuple(map(sum, zip(*found, strict=True))) for key, found in alike.items()
    }


def key_of(table: Table) -> tuple[str, ...]:
    """Return the names of a roll-up's primary key, in its order."""
    return tuple(table.primary_key.columns.keys())


def _summed(parts: Mapping[RollupKey, Sums], length_us: int) -> dict[RollupKey, Sums]:
    """Return sums added up to longer times."""
    found: dict[RollupKey, Sums] = {}
    for key, sums in parts.items():
        start_us = key[_START]
        add(found, (key[0], start_us - start_us % length_us, *key[2:]), sums)
    return found


def spend_of(days: Mapping[RollupKey, Sums]) -> SpendSums:
    """Return the spend per (scope, scope id, start) of what may have a budget and is rolled up; an empty value gets no row."""
    spend: SpendSums = {}
    for key, sums in days.items():
        spender = _Spender(*key)
        if spender.origin not in SPENT_ORIGINS:
            continue
        for each in _SPENT_ROLLED_UP:
            if scope_id := each.id_of(spender):
                place = (each.name, scope_id, spender.start_us)
                spend[place] = spend.get(place, 0) + sums[COST]
    return spend


def _sums_of(alike: Sequence[Entry]) -> Sums:
    """Return the amounts that entries of the same kind add to a row, in the order of `ROLLUP_SUMS`."""
    first, count = alike[0], len(alike)
    closes = _closes(first)
    tried = 0 if first.entry == "void" else closes
    # Column by column: many entries of a batch are of one kind.
    costs, baselines, cheapest, hosted, priced, saved, disputed, *plain = zip(*map(_amounts, alike), strict=True)
    replayed, sums = [sum(each) for each in plain[:_REPLAYED]], [sum(column) for column in plain[_REPLAYED:]]
    return (
        closes * count if first.attempt == 1 and first.origin == "caller" else 0,
        tried * count,
        count if first.served else 0,
        *sums[: len(_COUNTED)],
        sum(filter(None, costs)),
        *sums[len(_COUNTED) :],
        *_known(baselines, first),
        *_known(cheapest, first),
        *_known(hosted, first),
        tried * costs.count(None) - sum(priced),
        tried * count if first.usage_source == "estimated" else 0,
        sum(saved),
        sum(disputed),
        count if first.entry == "cache" else 0,
        *replayed,
    )


def _known(amounts: tuple[int | None, ...], first: Entry) -> tuple[int, int]:
    """Return the sum of the known amounts, and their number; an adjustment changes the sum alone."""
    return sum(filter(None, amounts)), 0 if first.entry == "adjust" else len(amounts) - amounts.count(None)


def _closes(entry: Entry) -> int:
    """Return 1 for an entry that closes an attempt, -1 for one that reverses an expiry, else 0."""
    if entry.entry in TERMINAL:
        return 1
    return -1 if entry.entry == "adjust" and LOST_HOST in entry.flags else 0


def by_key(sums: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    """Return rows in the order of the table's key, so that all writers lock them in the same order."""
    if not sums:
        return []
    rows = ((*key, *(value if isinstance(value, tuple) else (value,))) for key, value in sums.items())
    return sorted(rows, key=itemgetter(*range(len(next(iter(sums))))))


# The same counting rules as SQL over the ledger.

_entry: Final = col(LedgerEntry.entry)
_reverses_expiry: Final = and_(_entry == "adjust", col(LedgerEntry.flags).like(f'%"{LOST_HOST}"%'))
_closes_sql: Final = case((_entry.in_(sorted(TERMINAL)), 1), (_reverses_expiry, -1), else_=0)
_tried_sql: Final = case((_entry.in_(("settle", "expire")), 1), (_reverses_expiry, -1), else_=0)


def _counts_sql() -> dict[str, ColumnElement[Any]]:
    from_callers = and_(col(LedgerEntry.attempt) == 1, col(LedgerEntry.origin) == "caller")
    counts: dict[str, ColumnElement[Any]] = {
        "requests": case((from_callers, _closes_sql), else_=0),
        "attempts": _tried_sql,
        "served": case((col(LedgerEntry.served), 1), else_=0),
        "unpriced_attempts": case((col(LedgerEntry.cost_nanousd).is_(None), _tried_sql), else_=0)
        - col(LedgerEntry.priced_attempts),
        "estimated_attempts": case((col(LedgerEntry.usage_source) == "estimated", _tried_sql), else_=0),
        "cache_hits": case((_entry == "cache", 1), else_=0),
    }
    for name in BASELINE_COLUMNS:
        is_told = and_(getattr(LedgerEntry, name).is_not(None), _entry != "adjust")
        counts[name.replace("_nanousd", "_rows")] = case((is_told, 1), else_=0)
    return counts


@cache
def ledger_amounts() -> Mapping[str, ColumnElement[Any]]:
    """Return what one entry of the ledger adds to each of `ROLLUP_SUMS`, as SQL."""
    counts = _counts_sql()
    plain = {name: func.coalesce(getattr(LedgerEntry, name), 0) for name in ROLLUP_SUMS if name not in counts}
    return {**plain, **counts}


@cache
def ledger_sums() -> tuple[ColumnElement[Any], ...]:
    """Return `ROLLUP_SUMS` as SQL sums over the ledger."""
    return tuple(func.sum(ledger_amounts()[name]).label(name) for name in ROLLUP_SUMS)


def ledger_key(start_us: int) -> tuple[ColumnElement[Any], ...]:
    """Return `ROLLUP_KEY` for entries of the hour or day that begins at `start_us`."""
    start = literal(start_us).label("start_us")
    return tuple(start if name == "start_us" else getattr(LedgerEntry, name) for name in ROLLUP_KEY)


def first_ids(key_id: ColumnElement[str]) -> ColumnElement[str]:
    """Return `settings.key_ids.first_id` as SQL."""
    return case((key_id.contains(SEPARATOR, autoescape=True), func.substr(key_id, 1, FIRST_CHARS)), else_=key_id)


def ledger_groups() -> list[ColumnElement[Any]]:
    """Return the GROUP BY columns within one hour or day of the ledger."""
    return [getattr(LedgerEntry, name) for name in ROLLUP_KEY if name != "start_us"]


def counted(from_us: int, to_us: int) -> ColumnElement[bool]:
    """Return the condition for entries that count in this time: all but reserves."""
    return and_(col(LedgerEntry.at_us) >= from_us, col(LedgerEntry.at_us) < to_us, _entry != "reserve")


def spend_sums(day_us: int, *, rolled_up: bool = True) -> Iterator[Any]:
    """Yield the queries for the day's rows of `spend_day`, a scope each, from its roll-ups and from the ledger; without
    `rolled_up` those from the ledger alone.
    """
    for each in SCOPES if rolled_up else _SPENT_ALONE:
        source = rollup_day.c if each.rolled_up else _ledger.c
        within = rollup_day.c.start_us == day_us if each.rolled_up else counted(day_us, day_us + DAY_US)
        yield _spend_sum(each, source, literal(day_us)).where(within)


def quarter_sums(from_us: int, length_us: int = DAY_US, *, rolled_up: bool = True) -> Iterator[Any]:
    """Yield the queries for the rows of `spend_quarter` in a time, a scope each, from the ledger; without `rolled_up` those of
    what the roll-ups do not have.
    """
    start = col(LedgerEntry.at_us) - col(LedgerEntry.at_us) % QUARTER_US
    for each in SCOPES if rolled_up else _SPENT_ALONE:
        yield _spend_sum(each, _ledger.c, start).where(counted(from_us, from_us + length_us)).group_by(start)


def _spend_sum(scope: ScopeRow, source: Any, start: Any) -> Any:
    given = source[scope.column]
    value = first_ids(given) if scope.rotates else given
    scope_id = source[scope.owner_column] + "/" + value if scope.owner_column else value
    sums = select(literal(scope.name), scope_id, start, func.sum(func.coalesce(source.cost_nanousd, 0)))
    return sums.where(source.origin.in_(SPENT_ORIGINS), given != "").group_by(scope_id)


def month_sums(month_us: int) -> Any:
    """Return the query for the month's rows of `end_user_month`, from the ledger."""
    team_id, end_user = col(LedgerEntry.team_id), col(LedgerEntry.end_user)
    cost = func.sum(func.coalesce(col(LedgerEntry.cost_nanousd), 0))
    within = (counted(month_us, next_month(month_us)), col(LedgerEntry.origin).in_(SPENT_ORIGINS), end_user != "")
    return select(team_id, literal(month_us), end_user, cost).where(*within).group_by(team_id, end_user)


# Upserts for SQLite and PostgreSQL.

_TABLES: Final = (
    (rollup_hour, ROLLUP_KEY, ROLLUP_SUMS),
    (rollup_day, ROLLUP_KEY, ROLLUP_SUMS),
    *((table, key_of(table), ROLLUP_SUMS) for table in COARSER_DAYS),
    (spend_day, SPEND_KEY, ("spent_nanousd",)),
    (end_user_month, MONTH_KEY, ("spent_nanousd",)),
    (spend_quarter, QUARTER_KEY, ("spent_nanousd",)),
)
LOCK_ORDER: Final = tuple(table.name for table, _, _ in _TABLES)
"""The order in which writers lock these tables: whoever locks several of them does so in the same, or the two deadlock."""


def upserts(rolled: RollupDeltas) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return (table, rows) for each table that changes; always in this order, so that two writers never deadlock."""
    days = (rolled.days, *rolled.coarser)
    sums: tuple[Mapping[Any, Any], ...] = (rolled.hours, *days, rolled.spend, rolled.months, rolled.quarters)
    return [(table.name, by_key(found)) for (table, _, _), found in zip(_TABLES, sums, strict=True) if found]


def _upsert_sql(table: Table, key: Sequence[str], sums: Sequence[str], source: str) -> str:
    # Made of our own table and column names alone; every value is a bound parameter.
    added = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in sums)
    return (
        f"INSERT INTO {table.name} ({', '.join((*key, *sums))}) {source} "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}"
    )


def _sqlite_upsert(table: Table, key: Sequence[str], sums: Sequence[str]) -> str:
    return _upsert_sql(table, key, sums, f"VALUES ({', '.join('?' for _ in (*key, *sums))})")


def _postgresql_upsert(table: Table, key: Sequence[str], sums: Sequence[str]) -> str:
    kinds = ("bigint[]" if name in sums or name.endswith("_us") else "text[]" for name in (*key, *sums))
    arrays = ", ".join(f"${place}::{kind}" for place, kind in enumerate(kinds, 1))
    return _upsert_sql(table, key, sums, f"SELECT * FROM unnest({arrays})")  # noqa: S608


SQLITE: Final = {table.name: _sqlite_upsert(table, key, sums) for table, key, sums in _TABLES}
POSTGRESQL: Final = {table.name: _postgresql_upsert(table, key, sums) for table, key, sums in _TABLES}
