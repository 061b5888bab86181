"""Organisations' calendars in the database, each from a moment on. Without one, an organisation has UTC and weeks from Monday."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, cast

import msgspec
from sqlalchemy import ColumnElement, Row, case, delete, insert, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.calendar import UTC_CALENDAR, Calendar, Weekday
from cost.tables import CalendarRow
from cost.times import DAY_US

Offsets = Sequence[tuple[int, int]]
"""What to add to a moment to have its local day in UTC, each with the moment from which it holds (`Calendar.offsets`)."""


class DatedCalendar(msgspec.Struct, frozen=True):
    """A calendar and the moment from which it holds."""

    from_us: int
    calendar: Calendar

    @property
    def first(self) -> date:
        """The first day that begins by it."""
        return msgspec.structs.replace(self.calendar, from_us=self.from_us).first


class Calendars(msgspec.Struct, frozen=True):
    """All organisations' calendars, each organisation's in the order of time."""

    dated: Mapping[str, tuple[DatedCalendar, ...]] = {}

    def of(self, organisation_id: str) -> Calendar:
        """Return an organisation's calendar, which knows those that it had before."""
        found = UTC_CALENDAR
        for each in self.dated.get(organisation_id, ()):
            found = msgspec.structs.replace(each.calendar, from_us=each.from_us, before=found)
        return found

    def others(self) -> dict[Calendar, list[str]]:
        """Return the organisations of each calendar other than the usual one."""
        found: dict[Calendar, list[str]] = {}
        for organisation_id in self.dated:
            found.setdefault(self.of(organisation_id), []).append(organisation_id)
        return found


_ALL = select(
    col(CalendarRow.organisation_id), col(CalendarRow.from_us), col(CalendarRow.time_zone), col(CalendarRow.week_start)
).order_by(col(CalendarRow.organisation_id), col(CalendarRow.from_us))


async def read_calendars(connection: AsyncConnection) -> Calendars:
    """Return all organisations' calendars."""
    return _calendars((await connection.execute(_ALL)).all())


def _calendars(rows: Sequence[Row[str, int, str, str]]) -> Calendars:
    dated: dict[str, tuple[DatedCalendar, ...]] = {}
    for organisation_id, from_us, time_zone, week_start in rows:
        dated[organisation_id] = (
            *dated.get(organisation_id, ()),
            DatedCalendar(int(from_us), Calendar(time_zone, cast(Weekday, week_start))),
        )
    return Calendars(dated)


async def calendars_of(engine: AsyncEngine) -> Calendars:
    """Return all organisations' calendars."""
    async with engine.connect() as connection:
        return await read_calendars(connection)


async def calendar_of(engine: AsyncEngine, organisation_id: str) -> Calendar:
    """Return an organisation's calendar, by which its days are cut."""
    async with engine.connect() as connection:
        rows = await connection.execute(_ALL.where(col(CalendarRow.organisation_id) == organisation_id))
        return _calendars(rows.all()).of(organisation_id)


async def set_calendar(
    engine: AsyncEngine, organisation_id: str, time_zone: str, week_start: Weekday, from_us: int, now_us: int
) -> None:
    """Set an organisation's calendar from a moment on, in place of those that were to follow."""
    made = Calendar(time_zone, week_start, from_us)
    async with engine.begin() as connection:
        mine = col(CalendarRow.organisation_id) == organisation_id
        # Midnight of one day comes at other moments in other zones.
        for each in _calendars((await connection.execute(_ALL.where(mine))).all()).dated.get(organisation_id, ()):
            if each.from_us >= from_us or each.first >= made.first:
                await connection.execute(delete(CalendarRow).where(mine, col(CalendarRow.from_us) == each.from_us))
        values = {"organisation_id": organisation_id, "from_us": from_us, "time_zone": time_zone}
        await connection.execute(insert(CalendarRow).values(**values, week_start=week_start, set_us=now_us))


def day_of_row(start: ColumnElement[Any], offsets: Offsets = ()) -> ColumnElement[Any]:
    """Return a row's local day, as the beginning of the UTC day of the same date."""
    if not offsets:
        return _day(start, 0)
    *changed, (_, last_us) = offsets
    by_offset = [
        (start < literal_column(str(until)), _day(start, before_us))
        for (_, before_us), (until, _) in zip(changed, offsets[1:], strict=True)
    ]
    return case(*by_offset, else_=_day(start, last_us)) if by_offset else _day(start, last_us)


def _day(start: ColumnElement[Any], offset_us: int) -> ColumnElement[Any]:
    # Inlined as literals: two bound parameters would make GROUP BY and SELECT differ.
    local = start + literal_column(str(offset_us)) if offset_us else start
    day: ColumnElement[Any] = local - local % literal_column(str(DAY_US))
    return day
