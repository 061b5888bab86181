"""Entries that come after their month was signed off: they stand at the beginning of the next open one, visibly.

So a signed month keeps its figures to the nano-dollar, and nothing is lost. Each is kept in `late_posting` with the moment
that it belongs to.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import BigInteger, column, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.calendars import day_of_row, read_calendars
from cost.ledger.entries import Entry
from cost.tables import ClosedMonth, LatePosting
from cost.times import DAY_US, HOUR_US, day_of, start_of, wall_us

LATE: Final = "late_posting"
"""Flag of an entry that belongs to a month that was signed off before it came."""
# Any number will do, as long as every version of this program uses the same one.
_CLOSING_LOCK: Final = 7_236_451_922
_MOST_LISTED: Final = 500
_LATEST_US: Final = 800 * DAY_US
"""How much older than a month what stands in it is told with its own zone's days."""
_EASTERNMOST_US: Final = 14 * HOUR_US
_WESTERNMOST_US: Final = 12 * HOUR_US

ClosedMonths = Mapping[str, Mapping[int, int]]
"""End of each signed month by its mark (`Month.mark_us`), by organisation. Microseconds since 1970."""


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of late entries of one day and kind."""

    day_us: int
    """The organisation's day that they belong to (`Days.marks`)."""
    posted_us: int
    """The moment that they stand at in the ledger."""
    origin: str
    pool: str
    entries: int
    cost_nanousd: int


async def hold_closings(connection: AsyncConnection, *, alone: bool) -> None:
    """Wait until nobody signs a month off (or, with `alone`, until nobody posts to an old month) in this transaction.

    SQLite's writers are alone anyway.
    """
    if connection.dialect.name == "postgresql":
        name = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
        await connection.execute(text(f"SELECT {name}(:lock)"), {"lock": _CLOSING_LOCK})


def may_be_late(entries: Iterable[Entry], now_us: int | None = None) -> bool:
    """Return False if no entry belongs to a past month: only a past month can be signed, so present entries need no
    look.
    """
    now = wall_us() if now_us is None else now_us
    # A month ends up to 14 hours before it does in UTC, and up to 12 after.
    begun_us = start_of(day_of(now + _EASTERNMOST_US).replace(day=1)) + _WESTERNMOST_US
    return min(entry.at_us for entry in entries) < min(now, begun_us)


async def moved(connection: AsyncConnection, entries: Sequence[Entry], now_us: int | None = None) -> list[Entry]:
    """Return the entries in their order, those of signed months moved to the next open one."""
    if not may_be_late(entries, now_us):
        return list(entries)
    await hold_closings(connection, alone=False)
    closed = await _closed_months(connection, {entry.organisation_id for entry in entries})
    if not closed:
        return list(entries)
    calendars = await read_calendars(connection)
    own = {each: calendars.of(each) for each in closed}
    return [
        _moved(entry, closed.get(entry.organisation_id, {}), own.get(entry.organisation_id, UTC_CALENDAR))
        for entry in entries
    ]


async def note_late(connection: AsyncConnection, given: Iterable[Entry], new: Sequence[Entry]) -> None:
    """Keep the original months of the moved entries among `new`; `given` are the entries as they came."""
    late = {(entry.request_id, entry.attempt, entry.entry): entry for entry in new if LATE in entry.flags}
    if not late:
        return
    rows = {}
    for entry in given:
        key = (entry.request_id, entry.attempt, entry.entry)
        if key in late and key not in rows:
            rows[key] = {
                "request_id": entry.request_id,
                "attempt": entry.attempt,
                "entry": entry.entry,
                "organisation_id": entry.organisation_id,
                "at_us": entry.at_us,
                "day_us": entry.at_us - entry.at_us % DAY_US,
                "posted_at_us": late[key].at_us,
                "pool": entry.pool,
                "origin": entry.origin,
                "cost_nanousd": entry.cost_nanousd,
            }
    await connection.execute(insert(LatePosting), list(rows.values()))


async def late_between(
    engine: AsyncEngine, organisation_id: str, days: Days, *, posted: bool = False
) -> tuple[Late, ...]:
    """Return an organisation's late entries that belong to these days, or with `posted` that stand in them; at most 500 sums."""
    at = col(LatePosting.posted_at_us) if posted else col(LatePosting.at_us)
    day = day_of_row(
        column("at_us", BigInteger), days.calendar.offsets(max(0, days.start_us - _LATEST_US), days.end_us)
    )
    group = (day, col(LatePosting.posted_at_us), col(LatePosting.origin), col(LatePosting.pool))
    query = (
        select(*group, func.count(), func.sum(func.coalesce(col(LatePosting.cost_nanousd), 0)))
        .where(col(LatePosting.organisation_id) == organisation_id, at >= days.start_us, at < days.end_us)
        .group_by(*group)
        .order_by(*group)
        .limit(_MOST_LISTED)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return tuple(
        Late(day_us=int(day), posted_us=at_us, origin=origin, pool=pool, entries=count, cost_nanousd=int(cost))
        for day, at_us, origin, pool, count, cost in rows
    )


async def _closed_months(connection: AsyncConnection, organisations: set[str]) -> ClosedMonths:
    names = (col(ClosedMonth.organisation_id), col(ClosedMonth.start_us), col(ClosedMonth.end_us))
    query = select(*names).where(col(ClosedMonth.organisation_id).in_(sorted(organisations)))
    found: dict[str, dict[int, int]] = {}
    for organisation, start_us, end_us in await connection.execute(query):
        found.setdefault(organisation, {})[start_us] = end_us
    return found


def _moved(entry: Entry, closed: Mapping[int, int], calendar: Calendar) -> Entry:
    if entry.entry == "reserve" or not closed:
        # A reservation is in no sum; its end decides where it counts.
        return entry
    at_us = entry.at_us
    while (end_us := closed.get(start_of(calendar.day(at_us).replace(day=1)))) is not None:
        at_us = end_us
    if at_us == entry.at_us:
        return entry
    # A pool's rows of a day add up to the bill of that day, and this is part of another's.
    return msgspec.structs.replace(entry, at_us=at_us, pool="", flags=(*entry.flags, LATE))
