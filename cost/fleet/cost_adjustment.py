"""Nightly true-up: adjusts a pool's day from the planned rate to its bill.

Requests are booked at a planned rate when they happen. When the day is over, its bill is known, and what each group of
rows should have paid of it; the difference is posted beside what is there, and unused time as the idle row. Then the
rows of that pool and day add up to the bill to the nano-dollar. Late rows and corrected hours make the sum differ from
the bill again, and the next round posts that difference as the next revision.

A revision is claimed by its row in `true_up`, in the transaction that posts its entries. Of two processes that mean to
post the same one, the second finds it taken and has written nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import msgspec
from sqlalchemy import Select, and_, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.dimensions import POSTED_COLUMNS, PostedGroup
from cost.fleet.bill import Allocation, Bill, allocate, bill_of, posted_bill, weights_ps
from cost.fleet.fleet_errors import DayNotOver
from cost.fleet.hours import HoursStore, PoolRecord, configured_hours, up_us
from cost.fleet.pool_config import PoolSection, pool_named
from cost.ledger.entries import Entry, Origin, adjustment
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, TOKEN_COLUMNS, ZERO_METERS, Meters
from cost.prices import meters
from cost.tables import LatePosting, LedgerEntry, TrueUp, rollup_day
from cost.times import DAY_US, HOUR_US, day_of, start_of
from cost.usage import Usage

NIGHT_US: Final = 15 * 60 * 1_000_000
"""Delay after midnight: requests of a day may end a little after it, and journals take a moment to drain."""
LOOK_BACK_DAYS: Final = 7
"""Days looked back for bills that were missed, or whose rows no longer add up."""
_GROUP: Final = tuple(name for name in POSTED_COLUMNS if name != "pool")
IDLE: Final = "idle"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A day's rows of one group: units used by meter, and what is booked for them so far."""

    key: PostedGroup
    used: Meters
    booked: Meters
    booked_nanousd: int


class PostedDay(msgspec.Struct, frozen=True, kw_only=True):
    """The last posted revision of a day's bill."""

    revision: int
    bill_nanousd: int
    up_us: int
    busy_us: int
    posted_us: int


class PoolDay(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of one pool's true-up for one UTC day."""

    pool: PoolSection
    day_us: int
    up_us: int
    groups: tuple[Group, ...] = ()
    """Ordered by key, so that the same books are always allocated the same way."""
    idle_booked_nanousd: int = 0
    last: PostedDay | None = None

    @property
    def booked_nanousd(self) -> int:
        """Sum of all rows of the day, the idle row included."""
        return self.idle_booked_nanousd + sum(group.booked_nanousd for group in self.groups)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """Differences still to be posted so that a day's rows add up to its bill."""

    bill: Bill
    allocation: Allocation
    groups: tuple[tuple[PostedGroup, Meters], ...]
    """Signed differences in nano-dollars by meter; groups without one are left out."""
    idle_nanousd: int

    @property
    def is_nothing(self) -> bool:
        """True if the rows already add up to the bill, group by group."""
        return not self.groups and not self.idle_nanousd


def bill_of_day(day: PoolDay, *, rebill: bool = False) -> Bill:
    """Return the day's bill; a posted day keeps its own while its hours are the same.

    A new rate is for days to come. With `rebill` it is priced at the configured rate.
    """
    if day.last is not None and day.last.up_us == day.up_us and not rebill:
        return posted_bill(day.pool, day.up_us, day.last.bill_nanousd)
    return bill_of(day.pool, day.up_us)


def pending(day: PoolDay, *, rebill: bool = False) -> Pending:
    """Return each group's share of the bill less what it is booked at."""
    bill = bill_of_day(day, rebill=rebill)
    allocation = allocate(bill, [group.used for group in day.groups], weights_ps(day.pool))
    differences = [
        (group.key, _difference(share, group)) for group, share in zip(day.groups, allocation.shares, strict=True)
    ]
    return Pending(
        bill=bill,
        allocation=allocation,
        groups=tuple((key, difference) for key, difference in differences if any(difference)),
        idle_nanousd=allocation.idle_nanousd - day.idle_booked_nanousd,
    )


def _difference(share: Meters, group: Group) -> Meters:
    *told, request = (should - is_ for should, is_ in zip(share, group.booked, strict=True))
    # Cost booked without meters is offset under the last meter.
    request += sum(group.booked) - group.booked_nanousd
    return (*told, request)


def is_due(day: PoolDay) -> bool:
    """Return True if the day was never posted, or its rows no longer add up to its bill."""
    return day.last is None or day.booked_nanousd != bill_of_day(day).nanousd


def entries(day: PoolDay, found: Pending, revision: int) -> list[Entry]:
    """Return the adjusting entries, dated at the end of the day that they correct."""
    posting = f"{day.pool.name}/{day_of(day.day_us).isoformat()}/{revision}"
    rows = [
        _adjust(day, f"true-up/{posting}/{number}", key, difference, origin="true-up")
        for number, (key, difference) in enumerate(found.groups, 1)
    ]
    if found.idle_nanousd:
        key = PostedGroup(
            organisation_id=day.pool.organisation, target_id=day.pool.name, provider="self-hosted", tier=IDLE
        )
        # Nobody used a meter; a row's meters add up to its cost all the same.
        amounts = (*ZERO_METERS[:-1], found.idle_nanousd)
        rows.append(_adjust(day, f"{IDLE}/{posting}/1", key, amounts, origin=IDLE))
    return rows


def _adjust(day: PoolDay, request_id: str, key: PostedGroup, amounts: Meters, *, origin: Origin) -> Entry:
    return adjustment(
        request_id,
        at_us=day.day_us + DAY_US - 1,
        origin=origin,
        meters_nanousd=amounts,
        pool=day.pool.name,
        **{name: getattr(key, name) for name in _GROUP},
    )


class TrueUpStore:
    """The only reader and writer of the table `true_up`: reads a pool's ledger rows and posts true-ups."""

    def __init__(self, engine: AsyncEngine, ledger: LedgerStore) -> None:
        self._engine = engine
        self._ledger = ledger
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        self.hours = HoursStore(engine)

    async def last_posted(self, pools: Iterable[str], start_us: int, end_us: int) -> dict[tuple[str, int], PostedDay]:
        """Return the last revision of each posted day of these pools, by pool and day."""
        query = (
            select(*(getattr(TrueUp, name) for name in ("pool", "day_us", *PostedDay.__struct_fields__)))
            .where(col(TrueUp.pool).in_(list(pools)), col(TrueUp.day_us) >= start_us, col(TrueUp.day_us) < end_us)
            .order_by(col(TrueUp.revision))
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        # The newest revision is written last.
        return {
            (pool, day): PostedDay(**dict(zip(PostedDay.__struct_fields__, rest, strict=True)))
            for pool, day, *rest in rows
        }

    async def groups(self, pool: str, day: int) -> tuple[tuple[Group, ...], int]:
        """Return a day's groups in order of their keys, and the nano-dollars booked as idle."""
        table = rollup_day.c
        sums = [func.sum(table[name]).label(name) for name in (*TOKEN_COLUMNS, *METER_COLUMNS, "cost_nanousd")]
        mine = (table.start_us == day, table.pool == pool)
        query = select(*(table[name] for name in _GROUP), *sums).where(*mine, table.origin != IDLE)
        idle = select(func.sum(table.cost_nanousd)).where(*mine, table.origin == IDLE)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.group_by(*(table[name] for name in _GROUP)))).mappings().all()
            booked_idle = await connection.scalar(idle)
            late = (await connection.execute(_late_entries(pool, day))).mappings().all()
        late_idle = sum(int(row["cost_nanousd"] or 0) for row in late if row["origin"] == IDLE)
        # Tens of thousands of groups are possible: not in the event loop.
        found = await asyncio.to_thread(_groups, [*rows, *(row for row in late if row["origin"] != IDLE)])
        return found, int(booked_idle or 0) + late_idle

    async def day(self, pool: PoolSection, day: int, record: PoolRecord, now_us: int) -> PoolDay:
        """Read one day. The revision is read before the rows: whoever posts in between makes `post` lose."""
        last = (await self.last_posted([pool.name], day, day + 1)).get((pool.name, day))
        groups, idle = await self.groups(pool.name, day)
        return PoolDay(
            pool=pool,
            day_us=day,
            up_us=up_us(pool, record, day, day + DAY_US, now_us),
            groups=groups,
            idle_booked_nanousd=idle,
            last=last,
        )

    async def post(self, day: PoolDay, found: Pending, frozen: Mapping[int, int], now_us: int) -> bool:
        """Post the next revision in one transaction. False when another process posted it first."""
        revision = 1 if day.last is None else day.last.revision + 1
        row = {
            "pool": day.pool.name,
            "day_us": day.day_us,
            "revision": revision,
            "bill_nanousd": found.bill.nanousd,
            "up_us": found.bill.up_us,
            "busy_us": found.allocation.busy_us,
            "posted_us": now_us,
        }
        claim = self._insert(TrueUp).values(row).on_conflict_do_nothing()
        posted = await asyncio.to_thread(entries, day, found, revision)
        async with self._engine.begin() as connection:
            if not (await connection.execute(claim)).rowcount:
                return False
            await self.hours.freeze(connection, day.pool.name, frozen)
            await self._ledger.insert_within(connection, posted)
        return True


def _late_entries(pool: str, day: int) -> Select[Any]:
    """Return the query for adjustments of a pool's day that stand in a later month, because theirs was signed off."""
    entry = (LedgerEntry.request_id, LedgerEntry.attempt, LedgerEntry.entry)
    late = (LatePosting.request_id, LatePosting.attempt, LatePosting.entry)
    same = and_(*(col(mine) == col(theirs) for mine, theirs in zip(entry, late, strict=True)))
    names = (*_GROUP, *TOKEN_COLUMNS, *METER_COLUMNS, "cost_nanousd", "origin")
    return (
        select(*(getattr(LedgerEntry, name) for name in names))
        .select_from(LatePosting)
        .join(LedgerEntry, same)
        # What callers used late is billed where it stands.
        .where(
            col(LatePosting.pool) == pool,
            col(LatePosting.day_us) == day,
            col(LatePosting.origin).not_in(("caller", "shadow")),
        )
    )


def _groups(rows: Sequence[Any]) -> tuple[Group, ...]:
    groups: dict[PostedGroup, Group] = {}
    for group in map(_group, rows):
        before = groups.get(group.key)
        groups[group.key] = group if before is None else _added(before, group)
    return tuple(groups[key] for key in sorted(groups))


def _added(one: Group, other: Group) -> Group:
    def sums(first: Meters, second: Meters) -> Meters:
        return tuple(a + b for a, b in zip(first, second, strict=True))

    return Group(
        key=one.key,
        used=sums(one.used, other.used),
        booked=sums(one.booked, other.booked),
        booked_nanousd=one.booked_nanousd + other.booked_nanousd,
    )


def _group(row: Any) -> Group:
    # A correction may have taken back more than was there.
    tokens: dict[str, Any] = {name: max(0, int(row[name])) for name in TOKEN_COLUMNS}
    used = tuple(max(0, each) for each in meters(Usage(**tokens)))
    return Group(
        key=PostedGroup(*(row[name] for name in _GROUP)),
        used=used,
        booked=tuple(int(row[name]) for name in METER_COLUMNS),
        booked_nanousd=int(row["cost_nanousd"] or 0),
    )


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one pool's true-up for one day."""

    pool: str
    day: date
    revision: int
    """Newest revision; 0 if there is none."""
    posted: bool
    """True if a revision was added; else nothing was to be posted, or another process did it."""
    bill_nanousd: int
    idle_nanousd: int
    changed_nanousd: int
    """Nano-dollars that the postings add to what was booked."""
    up_us: int
    busy_us: int
    overfull: bool


class TrueUpRounds:
    """The periodic posting of due true-ups; `run_due` is called every few minutes."""

    def __init__(
        self, books: TrueUpStore, pools: Callable[[], Sequence[PoolSection]], now_us: Callable[[], int]
    ) -> None:
        self._books = books
        self._pools = pools
        self._now_us = now_us
        self._checked_us = 0

    async def run_due(self) -> list[Posting]:
        """Freeze configured hours as they pass; once a night, post what the last days need."""
        pools, now = self._pools(), self._now_us()
        if not pools:
            return []
        today = now - now % DAY_US
        await self._freeze_past_hours(pools, today - DAY_US, now - now % HOUR_US)
        # The night's work is done once a process; days that a stopped gateway missed are found by it too.
        night = today + NIGHT_US
        if now < night or self._checked_us >= night:
            return []
        done = [
            posting
            for pool in pools
            for days_ago in range(LOOK_BACK_DAYS, 0, -1)
            if (posting := await self._post(pool, today - days_ago * DAY_US, now, on_demand=False)) is not None
        ]
        self._checked_us = now
        return done

    async def true_up(self, name: str, day: date, *, rebill: bool = False) -> Posting:
        """Post one pool's day now, even if it adds up already. Raises UnknownPool or DayNotOver."""
        pool = pool_named(self._pools(), name)
        now, start = self._now_us(), start_of(day)
        if start + DAY_US > now:
            raise DayNotOver(f"{day} is not over yet (UTC); a day is billed when it is")
        posting = await self._post(pool, start, now, on_demand=True, rebill=rebill)
        assert posting is not None  # noqa: S101 - on demand there always is an answer
        return posting

    async def _freeze_past_hours(self, pools: Sequence[PoolSection], start_us: int, end_us: int) -> None:
        """Freeze the hours up to `end_us`: a configuration that changes at noon says nothing of the morning."""
        records = await self._books.hours.read(pools, start_us, end_us)
        for pool in pools:
            record = records[pool.name]
            hours = configured_hours(pool, record, start_us, end_us)
            since = record.since_us
            await self._books.hours.keep(
                pool.name, {hour: up for hour, up in hours.items() if since is not None and hour >= since}
            )

    async def _post(
        self, pool: PoolSection, start_us: int, now_us: int, *, on_demand: bool, rebill: bool = False
    ) -> Posting | None:
        record = (await self._books.hours.read([pool], start_us, start_us + DAY_US))[pool.name]
        day = await self._books.day(pool, start_us, record, now_us)
        if not on_demand and (not is_due(day) or _is_before_first_hour(day)):
            return None
        found = await asyncio.to_thread(pending, day, rebill=rebill)
        wanted = day.last is None or not found.is_nothing or found.bill.nanousd != day.last.bill_nanousd
        frozen = configured_hours(pool, record, start_us, start_us + DAY_US)
        posted = wanted and await self._books.post(day, found, frozen, now_us)
        return Posting(
            pool=pool.name,
            day=day_of(start_us),
            revision=(0 if day.last is None else day.last.revision) + posted,
            posted=posted,
            bill_nanousd=found.bill.nanousd,
            idle_nanousd=found.allocation.idle_nanousd,
            changed_nanousd=found.idle_nanousd + sum(sum(amounts) for _, amounts in found.groups),
            up_us=found.bill.up_us,
            busy_us=found.allocation.busy_us,
            overfull=found.allocation.overfull,
        )


def _is_before_first_hour(day: PoolDay) -> bool:
    """Return True for a day before a pool's first hour, which has nothing to bill."""
    return not day.up_us and not day.groups and day.last is None
