"""/dashboard/calendar: the time zone and first day of the week by which the organisation's budgets and reports are cut."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.calendar.change import put_calendar
from api.web.changing import REASON_CHARS, looking
from cost.calendar import UTC_CALENDAR, WEEKDAYS, Weekday
from cost.calendars import DatedCalendar, calendars_of
from cost.times import start_of
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/calendar"
_ZONE_CHARS: Final = 64
_WEEKS: Final = tuple((each, each.capitalize()) for each in WEEKDAYS)
_COLUMNS: Final = (
    Column("first", "First day", "day", sortable=False, note="— for the one of the beginning."),
    Column("time_zone", "Time zone", sortable=False),
    Column("week_start", "Weeks begin on", sortable=False),
    Column("state", "State", "badge", sortable=False),
)


@router.get(PATH)
async def show_calendar(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show the organisation's calendars, each with the day from which it holds."""
    return await _show(view, {}, {})


@router.post(PATH)
async def change_calendar(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Cut budgets and reports by another time zone or week from a day on."""
    form = await view.form()
    try:
        made = await put_calendar(
            view.gateway.identity.audit,
            view.actor,
            view.principal.organisation_id,
            form.text("time_zone", most=_ZONE_CHARS, required=True),
            cast(Weekday, form.one_of("week_start", WEEKDAYS)),
            form.day("from"),
            reason=form.text("reason", most=REASON_CHARS),
        )
    except FormError as error:
        return await _show(view, form.plain, {error.field: error.message})
    except BadRequest as error:
        return await _show(view, form.plain, {error.param or "time_zone": error.message})
    return view.redirect(PATH, f"From {made.first} on, days are in {made.calendar.time_zone}.")


async def _show(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    owner, now_us = view.principal.organisation_id, view.now_us
    async with looking():
        calendars = await calendars_of(view.gateway.database)
    dated = (DatedCalendar(0, UTC_CALENDAR), *calendars.dated.get(owner, ()))
    whole = calendars.of(owner)
    table = Table.of(
        _COLUMNS, [_row(each, dated, now_us) for each in dated], view.query, name="calendars", caption="Calendars"
    )
    return view.csv_asked("calendar", table) or view.page(
        "budgets/calendar.html",
        title="Calendar",
        status=422 if errors else 200,
        table=table,
        place=PATH,
        today=whole.day(now_us).isoformat(),
        now=whole.at(now_us),
        weeks=_WEEKS,
        reason_chars=REASON_CHARS,
        values=values,
        errors=errors,
    )


def _row(each: DatedCalendar, dated: tuple[DatedCalendar, ...], now_us: int) -> dict[str, Any]:
    begun = [other for other in dated if other.from_us <= now_us]
    if each.from_us > now_us:
        state = ("Follows", "info")
    else:
        state = ("Holds now", "good") if each == begun[-1] else ("Held before", "quiet")
    return {
        "first": start_of(each.first) if each.from_us else None,
        "time_zone": each.calendar.time_zone,
        "week_start": each.calendar.week_start.capitalize(),
        "state": state,
    }
