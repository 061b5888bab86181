"""Replica hours of a pool: as entered or recorded, else as configured.

Of one hour the first of these counts: what a person entered, what the fleet recorded, what the configuration said when
the day was billed, what the configuration says now. The configuration counts from `up_since`; without that from the
hour of the pool's first booked use or first recorded hour, because nobody can know that it stood there before. No
replica is up in the future.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, ColumnElement, case, delete, func, insert, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.fleet.fleet_errors import HoursRefused
from cost.fleet.pool_config import MOST_REPLICAS, PoolSection
from cost.ledger.rolled_up import days_with
from cost.tables import PoolHour, rollup_hour
from cost.times import DAY_US, HOUR_US, start_of

_RANK: Final[Mapping[str, int]] = {"entered": 0, "fleet": 1, "configured": 2}
_CONFIGURED: Final = "configured"
_UNLIKELY: Final = "a replica is up for at most an hour of an hour that starts on the hour"
MOST_ROWS: Final = 100_000
"""Most rows (hours times replicas) that are entered at once."""


class RecordedHour(msgspec.Struct, frozen=True):
    """Time up in one hour, summed over replicas, from the source that counts."""

    up_us: int
    source: str
    """`entered`, `fleet` or `configured`."""


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's recorded hours by their start, and `since_us` from which the configured replicas count for other hours."""

    since_us: int | None = None
    hours: Mapping[int, RecordedHour] = {}


def up_us(pool: PoolSection, record: PoolRecord, start_us: int, end_us: int, now_us: int) -> int:
    """Return replica microseconds up in the whole hours from `start_us` to `end_us`, summed over replicas."""
    return sum(hour_up_us(pool, record, hour, now_us) for hour in range(start_us, min(end_us, now_us), HOUR_US))


def hour_up_us(pool: PoolSection, record: PoolRecord, hour_us: int, now_us: int) -> int:
    """Return replica microseconds up in one hour; of the current hour the part that is past counts."""
    elapsed = max(0, min(HOUR_US, now_us - hour_us))
    found = record.hours.get(hour_us)
    if found is None:
        counts = record.since_us is not None and hour_us >= record.since_us
        return pool.replicas * elapsed if counts else 0
    # The fleet records what has been; a person enters whole hours, also ahead of time.
    return found.up_us if found.source == "fleet" and elapsed else found.up_us * elapsed // HOUR_US


def configured_hours(pool: PoolSection, record: PoolRecord, start_us: int, end_us: int) -> dict[int, int]:
    """Return, per hour without a record, the replica microseconds up as configured now."""
    ahead_us = end_us  # Every hour of the range counts whole.
    return {
        hour: hour_up_us(pool, record, hour, ahead_us)
        for hour in range(start_us, end_us, HOUR_US)
        if hour not in record.hours
    }


def since_us(pool: PoolSection, first_use_us: int | None, first_record_us: int | None) -> int | None:
    """Return the first moment that configured replicas count for; None while nothing shows that the pool ever ran."""
    if pool.up_since is not None:
        return start_of(pool.up_since)
    return min((each for each in (first_use_us, first_record_us) if each is not None), default=None)


class HoursStore:
    """The only reader and writer of the table `pool_hour`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def enter(self, pool: str, start_us: int, end_us: int, replicas: int) -> int:
        """Enter the number of replicas up in these whole hours, in place of earlier entries.

        Returns the number of hours. Raises HoursRefused.
        """
        _refuse_bad_range(start_us, end_us, replicas)
        hours = range(start_us, end_us, HOUR_US)
        # Zero replicas get a row too, since an hour without one counts as configured.
        names = [f"entered/{number}" for number in range(1, replicas + 1)] or ["entered/0"]
        up = HOUR_US if replicas else 0
        rows = [
            {"pool": pool, "hour_us": hour, "replica": name, "up_us": up, "source": "entered"}
            for hour in hours
            for name in names
        ]
        replaced = (*_range_conditions(pool, start_us, end_us), col(PoolHour.source) == "entered")
        async with self._engine.begin() as connection:
            await connection.execute(delete(PoolHour).where(*replaced))
            await connection.execute(insert(PoolHour), rows)
        return len(hours)

    async def record(self, pool: str, hour_us: int, replica: str, up_us: int) -> None:
        """Record one replica's time up in an hour, in place of an earlier record. Raises HoursRefused."""
        if hour_us % HOUR_US or not 0 <= up_us <= HOUR_US:
            raise HoursRefused(_UNLIKELY)
        row = self._insert(PoolHour).values(pool=pool, hour_us=hour_us, replica=replica, up_us=up_us, source="fleet")
        keys = ("pool", "hour_us", "replica")
        async with self._engine.begin() as connection:
            await connection.execute(row.on_conflict_do_update(index_elements=keys, set_={"up_us": up_us}))

    async def add(self, connection: AsyncConnection, pool: str, up: Mapping[str, Mapping[int, int]]) -> None:
        """Add time that the fleet saw replicas up, by replica and hour, within the caller's transaction.

        A zero means that the fleet looked and saw no replica up. A sum is capped at one hour. Raises HoursRefused.
        """
        # The prefix keeps a replica's self-chosen name apart from entered and configured rows.
        rows: list[dict[str, Any]] = [
            {"pool": pool, "hour_us": hour, "replica": f"fleet/{replica}", "up_us": up_us, "source": "fleet"}
            for replica, spans in sorted(up.items())
            for hour, up_us in sorted(spans.items())
        ]
        if any(row["hour_us"] % HOUR_US or not 0 <= row["up_us"] <= HOUR_US for row in rows):
            raise HoursRefused(_UNLIKELY)
        if not rows:
            return
        insertion = self._insert(PoolHour)
        total, whole = col(PoolHour.up_us) + insertion.excluded.up_us, literal(HOUR_US, BigInteger)
        most = {"up_us": case((total > whole, whole), else_=total)}
        await connection.execute(
            insertion.on_conflict_do_update(index_elements=("pool", "hour_us", "replica"), set_=most), rows
        )

    async def keep(self, pool: str, hours: Mapping[int, int]) -> None:
        """Run `freeze` in a transaction of its own."""
        if hours:
            async with self._engine.begin() as connection:
                await self.freeze(connection, pool, hours)

    async def freeze(self, connection: AsyncConnection, pool: str, hours: Mapping[int, int]) -> None:
        """Store configured hours that are billed, so that a later configuration does not change them."""
        if not hours:
            return
        rows = [
            {"pool": pool, "hour_us": hour, "replica": _CONFIGURED, "up_us": up, "source": _CONFIGURED}
            for hour, up in sorted(hours.items())
        ]
        await connection.execute(self._insert(PoolHour).on_conflict_do_nothing(), rows)

    async def read(self, pools: Sequence[PoolSection], start_us: int, end_us: int) -> dict[str, PoolRecord]:
        """Return the records of these pools by name. The caller bounds the range."""
        async with self._engine.connect() as connection:
            hours = await self._read_hours(connection, [pool.name for pool in pools], start_us, end_us)
            return {
                pool.name: PoolRecord(
                    since_us=since_us(pool, *await self._first_hours(connection, pool)), hours=hours.get(pool.name, {})
                )
                for pool in pools
            }

    async def _read_hours(
        self, connection: AsyncConnection, pools: Sequence[str], start_us: int, end_us: int
    ) -> dict[str, dict[int, RecordedHour]]:
        key = (col(PoolHour.pool), col(PoolHour.hour_us), col(PoolHour.source))
        query = select(*key, func.sum(col(PoolHour.up_us)).label("up_us")).group_by(*key)
        query = query.where(
            col(PoolHour.pool).in_(pools), col(PoolHour.hour_us) >= start_us, col(PoolHour.hour_us) < end_us
        )
        rows = (await connection.execute(query)).all()
        found: dict[str, dict[int, RecordedHour]] = {}
        # Sorted so that the source that takes precedence is written last.
        for pool, hour, source, up in sorted(rows, key=lambda row: -_RANK[row.source]):
            found.setdefault(pool, {})[hour] = RecordedHour(int(up), source)
        return found

    async def _first_hours(self, connection: AsyncConnection, pool: PoolSection) -> tuple[int | None, int | None]:
        """Return the hours of the first booked use and of the first record; not queried if `up_since` is configured."""
        if pool.up_since is not None:
            return None, None
        record = select(func.min(col(PoolHour.hour_us))).where(
            col(PoolHour.pool) == pool.name, col(PoolHour.source) != _CONFIGURED
        )
        first_record: int | None = await connection.scalar(record)
        # In the order of the index on time, so that the search ends at the first row that fits.
        days = days_with(("pool", "origin"))
        day = await connection.scalar(
            select(days.c.start_us).where(*_request_conditions(days, pool.name)).order_by(days.c.start_us).limit(1)
        )
        if day is None:
            return None, first_record
        within = (rollup_hour.c.start_us >= day, rollup_hour.c.start_us < day + DAY_US)
        first_use: int | None = await connection.scalar(
            select(func.min(rollup_hour.c.start_us)).where(*_request_conditions(rollup_hour, pool.name), *within)
        )
        return first_use, first_record


def _request_conditions(table: Any, pool: str) -> tuple[ColumnElement[bool], ...]:
    """Return conditions for rows of requests, without postings of our own."""
    return table.c.pool == pool, table.c.origin.in_(("caller", "shadow"))


def _range_conditions(pool: str, start_us: int, end_us: int) -> tuple[ColumnElement[bool], ...]:
    return col(PoolHour.pool) == pool, col(PoolHour.hour_us) >= start_us, col(PoolHour.hour_us) < end_us


def _refuse_bad_range(start_us: int, end_us: int, replicas: int) -> None:
    if start_us % HOUR_US or end_us % HOUR_US:
        raise HoursRefused("hours are entered whole: both ends are on the hour, such as 2026-11-01T06:00")
    if start_us < 0 or end_us <= start_us:
        raise HoursRefused("the end must come after the start")
    if not 0 <= replicas <= MOST_REPLICAS:
        raise HoursRefused(f"replicas are 0 to {MOST_REPLICAS}")
    if (end_us - start_us) // HOUR_US * max(1, replicas) > MOST_ROWS:
        raise HoursRefused(f"at most {MOST_ROWS} replica-hours are entered at once; give a shorter range")
