"""Earnings of a pool's hours: dollars paid for them beside dollars that the same requests would have cost elsewhere.

Elsewhere is the cheapest commercial model that was capable of each request, at its price of that moment, which the
ledger keeps with every entry. Best in hindsight is the fixed number of replicas with the smallest bill for the hours
as they were, when what they do not carry is bought elsewhere. It knows of the work that the pool did, not of what was
turned away, and sees hours, not minutes.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.bill import bill_of, rate_of, weights_ps
from cost.fleet.hours import HoursStore, PoolRecord, hour_up_us
from cost.fleet.pool_config import PoolSection
from cost.meters import TOKEN_COLUMNS
from cost.prices import meters
from cost.tables import rollup_hour
from cost.times import HOUR_US
from cost.usage import Usage

MOST_FIXED: Final = 1_000
_PS_PER_US: Final = 1_000_000
_HUNDREDTH: Final = Decimal("0.01")


class PoolHourWork(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a pool: how long replicas were up and worked, and what the work would have cost elsewhere."""

    up_us: int = 0
    busy_us: int = 0
    avoided_nanousd: int = 0


class Earnings(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's hours over some time, and their sums."""

    up_us: int
    paid_nanousd: int
    avoided_nanousd: int
    best_fixed: int
    """Replicas of the best fixed fleet in hindsight; 0 where no hour was worth its price."""
    best_fixed_nanousd: int
    """Its bill, with the cost elsewhere of the work that it would not have carried."""

    @property
    def net_nanousd(self) -> int:
        """Dollars avoided less dollars paid; negative where the hours were not worth it."""
        return self.avoided_nanousd - self.paid_nanousd


def earnings(pool: PoolSection, hours: Sequence[PoolHourWork]) -> Earnings:
    """Sum up hours and find the best fixed fleet. Pure."""
    up = sum(hour.up_us for hour in hours)
    most = min(MOST_FIXED, max((-(-hour.busy_us // HOUR_US) for hour in hours), default=0))
    bills = [_fixed_nanousd(pool, hours, replicas) for replicas in range(most + 1)]
    best = bills.index(min(bills))
    return Earnings(
        up_us=up,
        paid_nanousd=bill_of(pool, up).nanousd,
        avoided_nanousd=sum(hour.avoided_nanousd for hour in hours),
        best_fixed=best,
        best_fixed_nanousd=bills[best],
    )


def _fixed_nanousd(pool: PoolSection, hours: Sequence[PoolHourWork], replicas: int) -> int:
    room = replicas * HOUR_US
    overflow = sum(
        hour.avoided_nanousd * (hour.busy_us - room) // hour.busy_us for hour in hours if hour.busy_us > room
    )
    return int(rate_of(pool) * room * len(hours)) + overflow


class PoolEarnings(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's earnings."""

    pool: str
    earnings: Earnings

    @property
    def hours(self) -> Decimal:
        """Replica-hours up, to a hundredth."""
        return (Decimal(self.earnings.up_us) / HOUR_US).quantize(_HUNDREDTH)


class EarningsReader:
    """A reader of the hours of pools from the roll-ups."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._records = HoursStore(engine)

    async def read(self, pools: Sequence[PoolSection], start_us: int, end_us: int, now_us: int) -> list[PoolEarnings]:
        """Return the pools' earnings in the whole hours of a range, which the caller bounds."""
        records = await self._records.read(pools, start_us, end_us)
        return [
            PoolEarnings(
                pool=pool.name,
                earnings=earnings(pool, await self.hours(pool, records[pool.name], start_us, end_us, now_us)),
            )
            for pool in pools
        ]

    async def hours(
        self, pool: PoolSection, record: PoolRecord, start_us: int, end_us: int, now_us: int
    ) -> list[PoolHourWork]:
        """Return the whole hours from `start_us` until `end_us`, or now. The caller bounds the range."""
        work = await self._work(pool, start_us, end_us)
        return [
            msgspec.structs.replace(work.get(hour, PoolHourWork()), up_us=hour_up_us(pool, record, hour, now_us))
            for hour in range(start_us, min(end_us, now_us), HOUR_US)
        ]

    async def usd_per_busy_s(self, pool: PoolSection, start_us: int, end_us: int) -> float | None:
        """Return the dollars that a second of a busy replica saves elsewhere; None where no request has the figure."""
        found = (await self._work(pool, start_us, end_us)).values()
        busy, avoided = sum(hour.busy_us for hour in found), sum(hour.avoided_nanousd for hour in found)
        return avoided / busy / 1_000 if busy and avoided > 0 else None

    async def _work(self, pool: PoolSection, start_us: int, end_us: int) -> dict[int, PoolHourWork]:
        table = rollup_hour.c
        sums = [func.sum(table[name]).label(name) for name in (*TOKEN_COLUMNS, "cheapest_nanousd")]
        query = (
            select(table.start_us, *sums)
            .where(
                table.pool == pool.name, table.origin == "caller", table.start_us >= start_us, table.start_us < end_us
            )
            .group_by(table.start_us)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        weights = weights_ps(pool)
        return {
            int(row["start_us"]): PoolHourWork(
                busy_us=_busy_ps({name: max(0, int(row[name])) for name in TOKEN_COLUMNS}, weights) // _PS_PER_US,
                avoided_nanousd=max(0, int(row["cheapest_nanousd"])),
            )
            for row in rows
        }


def _busy_ps(tokens: dict[str, Any], weights: Sequence[int]) -> int:
    used = meters(Usage(**tokens))
    return sum(max(0, amount) * weight for amount, weight in zip(used, weights, strict=True))
