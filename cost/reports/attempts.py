"""Readers of the ledger itself, for what roll-ups lack: single attempts, and figures by the minute."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, literal, literal_column, select
from sqlalchemy import tuple_ as sql_tuple
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.dimensions import COLUMNS, Dimension, UsageFilters
from cost.ledger.rollups import counted, ledger_sums
from cost.reports.cursor import decode_cursor, encode_cursor
from cost.reports.report_errors import BadQuery, refuse_archived
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageRow, check_values, filtered, plain, scoped, sums_of
from cost.tables import LedgerEntry
from cost.times import DAY_US

MINUTE_US: Final = 60_000_000
MAX_LOG_ROWS: Final = 10_000
MAX_LOG_DAYS: Final = 31
_LOGGED: Final = ("settle", "expire", "adjust")
"""Kinds of entry with a final cost."""


class LoggedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt, or a correction. `cost_nanousd` is None when the price is unknown."""

    request_id: str
    attempt: int
    entry: str
    at_us: int
    team_id: str
    key_id: str
    tier: str
    alias: str
    target_id: str
    deployment_id: str
    provider: str
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nanousd: int | None
    usage_source: str
    status: int
    stream: bool
    ttft_us: int | None
    duration_us: int | None
    began_us: int | None
    given_us: int | None
    tag: str
    end_user: str
    origin: str


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of attempts, newest first, up to and without `end_us`. Construction raises BadQuery."""

    scope: ReadScope
    start_us: int
    end_us: int
    request_id: str | None = None
    key_id: str | None = None
    limit: int = 1_000
    cursor: str | None = None

    def __post_init__(self) -> None:
        # A single request may be of any age.
        days = MAX_LOG_DAYS if self.request_id is None else 2**20
        if not 0 <= self.start_us < self.end_us <= self.start_us + days * DAY_US:
            raise BadQuery(f"it must be after the beginning, by at most {MAX_LOG_DAYS} days", param="end_date")
        if not 1 <= self.limit <= MAX_LOG_ROWS:
            raise BadQuery(f"it must be from 1 to {MAX_LOG_ROWS}", param="limit")
        check_values([self.request_id or ""], "request_id")
        check_values([self.key_id or ""], "api_key")


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of attempts; `next_cursor` is None on the last one."""

    rows: tuple[LoggedAttempt, ...]
    next_cursor: str | None


class AttemptReader:
    """A reader of the ledger in one statement a call, bounded in time and number of rows."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def page(self, query: LogQuery) -> LogPage:
        """Return the attempts after the query's cursor. Raises BadQuery for a foreign cursor."""
        conditions = [
            *scoped(_columns, query.scope),
            col(LedgerEntry.entry).in_(_LOGGED),
            col(LedgerEntry.at_us) >= query.start_us,
            col(LedgerEntry.at_us) < query.end_us,
        ]
        if query.request_id is not None:
            conditions.append(col(LedgerEntry.request_id) == query.request_id)
        if query.key_id is not None:
            conditions.append(col(LedgerEntry.key_id) == query.key_id)
        if query.cursor is not None:
            conditions.append(_before(decode_cursor(query.cursor, _without_cursor(query), (int, str, int, str))))
        statement = select(*_LOG_COLUMNS).where(*conditions).order_by(*(column.desc() for column in _LOG_ORDER))
        async with self._engine.connect() as connection:
            await refuse_archived(connection, query.start_us, query.end_us)
            found = (await connection.execute(statement.limit(query.limit + 1))).mappings().all()
        rows = tuple(LoggedAttempt(**{str(name): value for name, value in each.items()}) for each in found)
        shown = rows[: query.limit]
        return LogPage(rows=shown, next_cursor=_next_cursor(query, shown[-1]) if len(rows) > query.limit else None)

    async def by_minute(
        self,
        scope: ReadScope,
        start_us: int,
        end_us: int,
        *,
        group_by: Sequence[Dimension] = (),
        filters: UsageFilters,
        limit: int,
    ) -> tuple[UsageRow, ...]:
        """Return groups by minute, at most `limit`, the earliest first.

        A group begins with its minute in microseconds since 1970. Raises BadQuery for more than a day.
        """
        if not 0 <= start_us < end_us <= start_us + DAY_US:
            raise BadQuery("by the minute, at most a day can be asked for at once", param="end_time")
        for name, values in msgspec.structs.asdict(filters).items():
            check_values(values, name)
        at = col(LedgerEntry.at_us)
        # Inlined as a literal: two bound parameters would make GROUP BY and SELECT differ.
        groups = [at - at % literal_column(str(MINUTE_US)), *(_columns[COLUMNS[each]] for each in group_by)]
        labels = [expression.label(f"group_{place}") for place, expression in enumerate(groups)]
        statement = (
            select(*labels, *ledger_sums())
            .where(*scoped(_columns, scope), counted(start_us, end_us), *filtered(_columns, filters))
            .group_by(*groups)
            .order_by(*groups)
            .limit(limit)
        )
        async with self._engine.connect() as connection:
            await refuse_archived(connection, start_us, end_us)
            found = (await connection.execute(statement)).mappings().all()
        names = [label.name for label in labels]
        return tuple(UsageRow(group=tuple(plain(row[name]) for name in names), sums=sums_of(row)) for row in found)


def _before(last: Sequence[str | int]) -> ColumnElement[bool]:
    bound = [literal(value, column.type) for value, column in zip(last, _LOG_ORDER, strict=True)]
    return sql_tuple(*_LOG_ORDER) < sql_tuple(*bound)


def _next_cursor(query: LogQuery, last: LoggedAttempt) -> str:
    return encode_cursor(_without_cursor(query), [last.at_us, last.request_id, last.attempt, last.entry])


def _without_cursor(query: LogQuery) -> LogQuery:
    """Return the query without cursor and limit, which is what a cursor belongs to."""
    return msgspec.structs.replace(query, cursor=None, limit=1)


_columns: Final[Mapping[str, ColumnElement[Any]]] = {
    name: getattr(LedgerEntry, name) for name in (*LoggedAttempt.__struct_fields__, "organisation_id")
}
_LOG_COLUMNS: Final = tuple(_columns[name] for name in LoggedAttempt.__struct_fields__)
_LOG_ORDER: Final = tuple(_columns[name] for name in ("at_us", "request_id", "attempt", "entry"))
