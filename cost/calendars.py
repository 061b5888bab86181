"""Organisations' calendars in the database, each from a moment on. Without one, an organisation has UTC and weeks from Monday."""

from collections.abc import Mapping
from typing import cast

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.calendar import UTC_CALENDAR, Calendar, Weekday
from cost.tables import CalendarRow


class DatedCalendar(msgspec.Struct, frozen=True):
    """A calendar and the moment from which it holds."""

    from_us: int
    calendar: Calendar


class Calendars(msgspec.Struct, frozen=True):
    """All organisations' calendars, each organisation's in the order of time."""

    dated: Mapping[str, tuple[DatedCalendar, ...]] = {}

    def of(self, organisation_id: str, at_us: int) -> Calendar:
        """Return the calendar that holds for an organisation at a moment."""
        found = UTC_CALENDAR
        for each in self.dated.get(organisation_id, ()):
            if each.from_us <= at_us:
                found = each.calendar
        return found

    def at(self, at_us: int) -> dict[Calendar, list[str]]:
        """Return the organisations of each calendar other than the usual one at a moment."""
        found: dict[Calendar, list[str]] = {}
        for organisation_id in self.dated:
            calendar = self.of(organisation_id, at_us)
            if calendar != UTC_CALENDAR:
                found.setdefault(calendar, []).append(organisation_id)
        return found


_ALL = select(
    col(CalendarRow.organisation_id), col(CalendarRow.from_us), col(CalendarRow.time_zone), col(CalendarRow.week_start)
).order_by(col(CalendarRow.organisation_id), col(CalendarRow.from_us))


async def read_calendars(connection: AsyncConnection) -> Calendars:
    """Return all organisations' calendars."""
    dated: dict[str, tuple[DatedCalendar, ...]] = {}
    for organisation_id, from_us, time_zone, week_start in await connection.execute(_ALL):
        dated[organisation_id] = (
            *dated.get(organisation_id, ()),
            DatedCalendar(int(from_us), Calendar(time_zone, cast(Weekday, week_start))),
        )
    return Calendars(dated)


async def calendars_of(engine: AsyncEngine) -> Calendars:
    """Return all organisations' calendars."""
    async with engine.connect() as connection:
        return await read_calendars(connection)


async def set_calendar(
    engine: AsyncEngine, organisation_id: str, time_zone: str, week_start: Weekday, from_us: int, now_us: int
) -> None:
    """Set an organisation's calendar from a moment on, in place of those that were to follow."""
    async with engine.begin() as connection:
        mine = (col(CalendarRow.organisation_id) == organisation_id, col(CalendarRow.from_us) >= from_us)
        await connection.execute(delete(CalendarRow).where(*mine))
        values = {"organisation_id": organisation_id, "from_us": from_us, "time_zone": time_zone}
        await connection.execute(insert(CalendarRow).values(**values, week_start=week_start, set_us=now_us))
