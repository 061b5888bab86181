"""/v1/admin/calendar: the time zone and first day of the week by which budgets and reports are cut."""

from datetime import date
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.calendar.change import audit_record, put_calendar
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Listed, Reason, RequestBody
from api.web.changing import looking
from api.web.openapi import PREFIX, described
from cost.calendar import UTC_CALENDAR, Weekday
from cost.calendars import DatedCalendar, calendars_of

router = APIRouter(tags=["budgets"])


class PutCalendar(RequestBody, frozen=True):
    """The calendar to set. It holds from midnight of the day `from` in its zone; from tomorrow unless given."""

    time_zone: Annotated[str, msgspec.Meta(max_length=64, description="An IANA name, such as Europe/Berlin.")]
    week_start: Weekday = "monday"
    first_day: date | None = msgspec.field(name="from", default=None)
    reason: Reason = ""


class CalendarOut(msgspec.Struct, frozen=True, kw_only=True):
    """A calendar; `from` is null for the one of the beginning."""

    time_zone: str
    week_start: str
    from_moment: str | None = msgspec.field(name="from")
    object: str = "calendar"


@router.get(f"{PREFIX}/calendar", **described("Read the calendar", gives={200: Listed[CalendarOut]}))
async def list_calendars(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return the organisation's calendars, each with the moment from which it holds."""
    async with looking():
        own = (await calendars_of(desk.gateway.database)).dated.get(desk.organisation_id, ())
    return desk.reply(Listed(data=[_out(each) for each in (DatedCalendar(0, UTC_CALENDAR), *own)]))


@router.put(
    f"{PREFIX}/calendar",
    **described(
        "Set the calendar",
        takes=PutCalendar,
        gives={200: CalendarOut},
        example={"time_zone": "Europe/Berlin", "week_start": "monday", "from": "2027-01-01"},
    ),
)
async def set_it(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Cut budgets and reports by another time zone or week from a day on."""
    asked = await desk.body(PutCalendar)
    made = await put_calendar(
        desk.gateway.identity.audit,
        desk.actor,
        desk.organisation_id,
        asked.time_zone,
        asked.week_start,
        asked.first_day,
        reason=asked.reason,
    )
    return desk.reply(_out(made))


def _out(found: DatedCalendar) -> CalendarOut:
    told = audit_record(found)
    return CalendarOut(time_zone=told["time_zone"], week_start=told["week_start"], from_moment=told["from"])
