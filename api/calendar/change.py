"""Changes of an organisation's calendar, each from a day on and with its audit entry."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.web.changing import changing
from cost.calendar import Calendar, UnknownTimeZone, Weekday, check_time_zone
from cost.calendars import DatedCalendar, calendar_of, set_calendar
from cost.times import iso, wall_us
from proxy.errors import BadRequest


def dated(time_zone: str, week_start: Weekday, first: date | None, now_us: int, before: Calendar) -> DatedCalendar:
    """Return a calendar from the midnight of a day in its zone on, in the place of another; from tomorrow unless given.

    Raises BadRequest.
    """
    try:
        calendar = Calendar(check_time_zone(time_zone), week_start)
    except UnknownTimeZone as error:
        raise BadRequest(f"{str(error)[0].upper()}{str(error)[1:]}.", param="time_zone") from error
    # A day that has begun by the clock of either zone, and what it told, stays as it is.
    today = max(calendar.day(now_us), before.day(now_us))
    from_us = calendar.start(today + timedelta(days=1) if first is None else first)
    if from_us <= now_us or (first is not None and first <= today):
        raise BadRequest("A calendar holds from a later day on: what was told by the old one stays.", param="from")
    return DatedCalendar(from_us, calendar)


async def put_calendar(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    time_zone: str,
    week_start: Weekday,
    first: date | None,
    *,
    reason: str = "",
    now_us: Callable[[], int] = wall_us,
) -> DatedCalendar:
    """Set an organisation's calendar from a day on. Budgets and reports follow then."""
    at_us = now_us()
    async with changing(log, actor, "calendar.set", organisation_id, reason=reason) as change:
        before = await calendar_of(change.within, organisation_id)
        made = dated(time_zone, week_start, first, at_us, before)
        await set_calendar(change.within, organisation_id, time_zone, week_start, made.from_us, at_us)
        change.tell("calendar", organisation_id, audit_record(DatedCalendar(0, before.at(at_us))), audit_record(made))
    return made


def audit_record(found: DatedCalendar) -> dict[str, Any]:
    """Return a calendar as its audit entry stores it, and as programs read it."""
    return {
        "time_zone": found.calendar.time_zone,
        "week_start": found.calendar.week_start,
        "from": iso(found.from_us) if found.from_us else None,
    }
