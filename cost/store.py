"""The ledger in the database: written in batches, any number of times, and summed up by day."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, and_, case, distinct, exists, func, literal, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.entries import TERMINAL, Entry
from cost.errors import EntriesRefused
from cost.tables import LedgerEntry

COLUMNS: Final = Entry.__struct_fields__
_FLAGS: Final = COLUMNS.index("flags")
_NAMES: Final = ", ".join(COLUMNS)

# Both statements are made of our own column names alone; every value is a bound parameter.
_INSERT_SQLITE: Final = (
    f"INSERT INTO ledger_entry ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)}) ON CONFLICT DO NOTHING"  # noqa: S608
)
_PG_TYPES: Final = {"int": "bigint[]", "bool": "boolean[]", "float": "double precision[]", "str": "text[]"}


class UsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """What was used and what it came to. An unpriced attempt is counted, and adds nothing to the cost.

    Savings may be negative: an attempt that failed costs and has no baseline.
    """

    requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nanousd: int
    baseline_nanousd: int
    unpriced_requests: int
    estimated_requests: int
    estimated_rows: int

    @property
    def savings_nanousd(self) -> int:
        """The baseline less the cost."""
        return self.baseline_nanousd - self.cost_nanousd


class ModelUsage(UsageSums, frozen=True, kw_only=True):
    """The share of one target. A request that tried two targets counts in both."""

    target_id: str


class UsageReport(UsageSums, frozen=True, kw_only=True):
    """One team's UTC day."""

    team_id: str
    day: date
    models: tuple[ModelUsage, ...]


class LedgerStore:
    """The only writer and reader of the table `ledger_entry`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sqlite = engine.dialect.name == "sqlite"

    async def insert(self, entries: Sequence[Entry]) -> int:
        """Write entries and tell how many were new. One that is there already stays as it is.

        Raises EntriesRefused when trying again cannot help; any other error says that it may.
        """
        if not entries:
            return 0
        # In the order of the key: two writers of overlapping batches then never wait for each other in a circle.
        rows = sorted((_row(entry) for entry in entries), key=itemgetter(0, 1, 2))
        try:
            return await self._insert(rows)
        except (DataError, IntegrityError, ValueError, OverflowError) as failure:
            raise EntriesRefused(type(failure).__name__) from failure
        except DBAPIError as failure:
            # asyncpg's errors come without a class of their own, but with PostgreSQL's: 22 is bad data.
            if str(getattr(failure.orig, "sqlstate", None)).startswith("22"):
                raise EntriesRefused(type(failure).__name__) from failure
            raise

    async def _insert(self, rows: list[tuple[Any, ...]]) -> int:
        async with self._engine.begin() as connection:
            if self._sqlite:
                result = await connection.exec_driver_sql(_INSERT_SQLITE, rows)
            else:
                # One array a column: a single statement, whatever the number of rows.
                columns = tuple(list(column) for column in zip(*rows, strict=True))
                result = await connection.exec_driver_sql(_INSERT_POSTGRESQL, columns)
            return max(0, result.rowcount)

    async def usage(self, team_id: str, day: date) -> UsageReport:
        """The sums of one team's UTC day, over the entries that close an attempt and their corrections."""
        where = _booked(team_id, day)
        by_target = select(col(LedgerEntry.target_id), *_SUMS).where(where)
        by_target = by_target.group_by(col(LedgerEntry.target_id)).order_by(col(LedgerEntry.target_id))
        async with self._engine.connect() as connection:
            total = (await _mappings(connection, select(*_SUMS).where(where)))[0]
            targets = await _mappings(connection, by_target)
        models = tuple(ModelUsage(target_id=row["target_id"], **_sums(row)) for row in targets)
        return UsageReport(team_id=team_id, day=day, models=models, **_sums(total))

    async def open_reserves(self, boot_ids: Sequence[str]) -> list[Entry]:
        """The reserves of these processes that nothing closed."""
        closing = aliased(LedgerEntry)
        closed = exists().where(
            col(closing.request_id) == col(LedgerEntry.request_id),
            col(closing.attempt) == col(LedgerEntry.attempt),
            col(closing.entry).in_(TERMINAL),
        )
        query = _ALL.where(
            col(LedgerEntry.boot_id).in_(boot_ids),
            # Written out, so that the partial index is known to serve.
            col(LedgerEntry.entry) == literal("reserve", literal_execute=True),
            ~closed,
        )
        return await self._read(query.order_by(col(LedgerEntry.at_us)))

    async def entries(self, request_id: str) -> list[Entry]:
        """All entries of one request, in the order they happened."""
        query = _ALL.where(col(LedgerEntry.request_id) == request_id)
        return await self._read(query.order_by(col(LedgerEntry.attempt), col(LedgerEntry.at_us)))

    async def _read(self, query: Select[Any]) -> list[Entry]:
        async with self._engine.connect() as connection:
            return [_entry(row) for row in await connection.execute(query)]


def _postgresql_insert() -> str:
    arrays = ", ".join(f"${place}::{_array_type(name)}" for place, name in enumerate(COLUMNS, 1))
    return f"INSERT INTO ledger_entry ({_NAMES}) SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"  # noqa: S608


def _array_type(column: str) -> str:
    kind = LedgerEntry.model_fields[column].annotation
    words = str(kind) if kind is None or not isinstance(kind, type) else kind.__name__
    return next(array for name, array in _PG_TYPES.items() if name in words)


def _row(entry: Entry) -> tuple[Any, ...]:
    values = msgspec.structs.astuple(entry)
    flags = msgspec.json.encode(entry.flags).decode() if entry.flags else "[]"
    return (*values[:_FLAGS], flags, *values[_FLAGS + 1 :])


def _entry(row: Sequence[Any]) -> Entry:
    values = list(row)
    values[_FLAGS] = msgspec.json.decode(values[_FLAGS], type=tuple[str, ...])
    return Entry(**dict(zip(COLUMNS, values, strict=True)))


def _booked(team_id: str, day: date) -> ColumnElement[bool]:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return and_(
        col(LedgerEntry.team_id) == team_id,
        col(LedgerEntry.at_us) >= _us(start),
        col(LedgerEntry.at_us) < _us(start) + _DAY_US,
        col(LedgerEntry.entry).in_(("settle", "expire", "adjust")),
    )


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


async def _mappings(connection: AsyncConnection, query: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in (await connection.execute(query)).mappings()]


def _sums(row: Mapping[str, Any]) -> dict[str, int]:
    # PostgreSQL sums integers to Decimals; an empty sum is null.
    return {name: int(row[name] or 0) for name in UsageSums.__struct_fields__}


def _sum(value: Any, name: str) -> ColumnElement[Any]:
    return func.sum(value).label(name)


_DAY_US: Final = int(timedelta(days=1).total_seconds()) * 1_000_000
_INSERT_POSTGRESQL: Final = _postgresql_insert()
_ALL: Final = select(*(getattr(LedgerEntry, name) for name in COLUMNS))
_served: Final = col(LedgerEntry.status).between(200, 299)
_estimated: Final = col(LedgerEntry.usage_source) == "estimated"
_request: Final = col(LedgerEntry.request_id)
_SUMS: Final = (
    func.count(distinct(_request)).label("requests"),
    _sum(col(LedgerEntry.input_tokens), "input_tokens"),
    _sum(col(LedgerEntry.cached_input_tokens), "cached_input_tokens"),
    _sum(col(LedgerEntry.output_tokens), "output_tokens"),
    _sum(col(LedgerEntry.reasoning_tokens), "reasoning_tokens"),
    _sum(col(LedgerEntry.cost_nanousd), "cost_nanousd"),
    _sum(case((_served, col(LedgerEntry.baseline_nanousd)), else_=0), "baseline_nanousd"),
    func.count(distinct(case((col(LedgerEntry.cost_nanousd).is_(None), _request)))).label("unpriced_requests"),
    func.count(distinct(case((_estimated, _request)))).label("estimated_requests"),
    _sum(case((_estimated, 1), else_=0), "estimated_rows"),
)
