"""Every figure of a day or month is of the organisation's own, and all of them say the same, to the nano-dollar."""

import csv
import io
import random
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget
from cost.budgets.grants import GrantStore
from cost.budgets.store import BudgetStore
from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.calendars import calendar_of, set_calendar
from cost.close.month import Month
from cost.fleet.cost_adjustment import TrueUpStore
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.reports.daily import DailyReader
from cost.reports.focus import FocusExport, FocusNames, FocusQuery
from cost.reports.keys import read_key_use
from cost.reports.period import PeriodReader, spent
from cost.reports.usage import UsageQuery, UsageReader
from cost.savings.savings_reader import SavingsReader
from cost.savings.savings_report import daily
from cost.times import HOUR_US, MINUTE_US, iso, moment, start_of
from dashboards.teams.figures import read_usage
from tests.cost.reports.two_organisations import TEAM_A, WHOLE, booked

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Auckland",
    "Australia/Lord_Howe",
)
FIRST, LAST = date(2026, 3, 26), date(2026, 4, 9)
"""Europe's clocks are set on 29 March, and those of the south on 5 April."""
NANO = 10**9


def books(calendar: Calendar) -> list[Entry]:
    """Entries just before, at and after each midnight there and in UTC, within the half hours, and at noon; none costs as another."""
    moments = {
        midnight + shift
        for days in range((LAST - FIRST).days + 2)
        for day in [FIRST + timedelta(days=days)]
        for midnight in (calendar.start(day), start_of(day))
        for shift in (-31 * MINUTE_US, -1, 0, 20 * MINUTE_US, 31 * MINUTE_US, 12 * HOUR_US)
    }
    chance = random.Random(37)
    return [priced(f"r{at_us}", at_us, chance.randrange(10**6, 10**9)) for at_us in sorted(moments)]


def priced(request_id: str, at_us: int, cost: int, **changes: Any) -> Entry:
    """An attempt of one of three end users, all of whose cost is of its answer."""
    meters = {"input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": cost}
    made = booked(request_id, at_us=at_us, cost_nanousd=cost, end_user=f"user-{cost % 3}", **meters)
    return msgspec.structs.replace(made, **changes)


def truth(entries: list[Entry], zone: str) -> dict[date, int]:
    """What was spent on each day of a zone, as the zone's own clock has it."""
    found: dict[date, int] = {}
    for each in entries:
        day = moment(each.at_us).astimezone(ZoneInfo(zone)).date()
        found[day] = found.get(day, 0) + (each.cost_nanousd or 0)
    return found


def within(days: dict[date, int], span: Days) -> dict[date, int]:
    return {day: cost for day, cost in sorted(days.items()) if span.first <= day <= span.last}


async def by_usage(engine: AsyncEngine, span: Days) -> dict[date, int]:
    """The usage API's figures, which all others are held against."""
    query = UsageQuery(scope=WHOLE, start_us=span.start_us, end_us=span.end_us, group_by=("day",), offsets=span.offsets)
    page = await UsageReader(engine).page(query)
    assert page.totals is not None
    whole = await UsageReader(engine).page(msgspec.structs.replace(query, group_by=()))
    assert whole.totals == page.totals
    return {moment(int(row.group[0])).date(): row.sums.cost_nanousd for row in page.rows}


@pytest.mark.parametrize("zone", [*ZONES, "UTC"])
async def test_all_figures_of_a_day_are_the_same(engine: AsyncEngine, zone: str) -> None:
    """Also where the clock is set, and where midnight is within an hour: team, showback, savings, daily, FOCUS and budget."""
    from_us = Calendar(zone).start(date(2026, 2, 1))
    await set_calendar(engine, "acme", zone, "sunday", from_us, 0)
    calendar = await calendar_of(engine, "acme")
    assert calendar.before == UTC_CALENDAR
    entries = books(calendar)
    await LedgerStore(engine).insert(entries)
    span = Days(FIRST, LAST, calendar)
    known = within(truth(entries, zone), span)
    assert await by_usage(engine, span) == known
    assert len(known) == len(span) == 15

    days = await PeriodReader(engine).days(WHOLE, span.start_us, span.end_us, span.offsets, [])
    assert {moment(each.day_us).date(): each.cost_nanousd for each in days} == known

    now_us = calendar.start(LAST) + 23 * HOUR_US
    figures = await read_usage(UsageReader(engine), TEAM_A, now_us=now_us, span=span)
    assert {mark: sums.cost_nanousd for mark, sums in figures.by_day.items() if mark in span.marks} == {
        start_of(day): cost for day, cost in known.items()
    }
    assert figures.today.cost_nanousd == known[LAST]
    month = {day: cost for day, cost in truth(entries, zone).items() if date(2026, 4, 1) <= day <= LAST}
    assert figures.month.cost_nanousd == sum(month.values())

    reader = SavingsReader(engine, TrueUpStore(engine, LedgerStore(engine)), ground_of=lambda _target: "measured")
    inputs = await reader.read(WHOLE, (), span.start_us, span.end_us, now_us, calendar)
    rows = daily(inputs, gateway_usd_per_hour=Decimal(0), now_us=now_us)
    assert {date.fromisoformat(row[0]): int(row[2] * NANO) for row in rows} == known

    for day, cost in known.items():
        one = Days(day, day, calendar)
        assert spent(await PeriodReader(engine).lines(WHOLE, one.start_us, one.end_us, ("team",))).cost_nanousd == cost
    report = await DailyReader(engine).read(WHOLE, LAST, "acme", (), calendar)
    assert {each.day: each.sums.cost_nanousd for each in report.days} == {
        day: cost for day, cost in known.items() if day > FIRST
    }
    assert (report.total.cost_nanousd, report.time_zone) == (known[LAST], zone)
    assert sum(each.sums.cost_nanousd for each in report.sections[0].groups) == known[LAST]


@pytest.mark.parametrize("zone", [*ZONES, "UTC"])
async def test_all_figures_of_a_month_are_the_same(engine: AsyncEngine, zone: str) -> None:
    """The statement's lines, FOCUS by day and by hour, the budget of the month, the largest end users and the keys' thirty days."""
    await set_calendar(engine, "acme", zone, "monday", Calendar(zone).start(date(2026, 2, 1)), 0)
    calendar = await calendar_of(engine, "acme")
    entries = books(calendar)
    await LedgerStore(engine).insert(entries)
    known = truth(entries, zone)
    months = {number: sum(cost for day, cost in known.items() if day.month == number) for number in (3, 4)}
    for number, cost in months.items():
        month = Month(2026, number, calendar)
        lines = await PeriodReader(engine).lines(WHOLE, month.start_us, month.end_us, ("team", "model", "provider"))
        assert spent(lines).cost_nanousd == cost
        assert sum((await by_usage(engine, month.days)).values()) == cost
        for by_hour in (False, True):
            assert await by_focus(engine, calendar, by_hour=by_hour) == {
                iso(Month(2026, each, calendar).start_us): amount for each, amount in months.items()
            }
    now_us = calendar.start(LAST + timedelta(days=1)) - 1
    await BudgetStore(engine).put(
        Budget(
            budget_id="b",
            organisation_id="acme",
            scope="team",
            scope_id="team_a",
            period="month",
            kind="soft",
            limit_nanousd=10**15,
        )
    )
    april = {day: cost for day, cost in known.items() if day.month == 4 and day <= LAST}
    (standing,) = await GrantStore(engine).standings(now_us)
    booked_later = months[4] - sum(april.values())
    assert standing.spent_nanousd - booked_later == sum(april.values())
    users: dict[str, int] = {}
    for each in entries:
        if moment(each.at_us).astimezone(ZoneInfo(zone)).date().month == 4:
            users[each.end_user] = users.get(each.end_user, 0) + (each.cost_nanousd or 0)
    largest = await BudgetStore(engine, lambda: now_us).largest_end_users("acme", "team_a")
    assert [(each.end_user, each.spent_nanousd) for each in largest] == sorted(users.items(), key=lambda each: -each[1])
    use = await read_key_use(engine, "acme", "team_a", now_us)
    assert use["key_a"].cost_nanousd == sum(cost for day, cost in known.items() if day <= LAST)


async def by_focus(engine: AsyncEngine, calendar: Calendar, *, by_hour: bool) -> dict[str, int]:
    """What the export bills in each month; none of its charges is beyond the month that it is billed in."""

    async def no_figures(_target: str, _version: str) -> None:
        return None

    export = FocusExport(engine, no_figures, FocusNames({}, {}), lambda: 0)
    start, end = (date(2026, 3, 20), date(2026, 4, 20)) if by_hour else (date(2026, 3, 1), date(2026, 5, 1))
    query = FocusQuery(scope=WHOLE, start=start, end=end, by_hour=by_hour, calendar=calendar)
    text = "".join([piece async for piece in export.csv(query)])
    found: dict[str, int] = {}
    for row in csv.DictReader(io.StringIO(text)):
        begun, ended = row["BillingPeriodStart"], row["BillingPeriodEnd"]
        assert begun <= row["ChargePeriodStart"] < row["ChargePeriodEnd"] <= ended
        found[begun] = found.get(begun, 0) + int(Decimal(row["BilledCost"]) * NANO)
    return found


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "Pacific/Auckland"])
async def test_days_before_a_change_stay_as_they_were(engine: AsyncEngine, zone: str) -> None:
    """March was cut in UTC, and is; April is cut there; every entry is in one of them."""
    plain = books(UTC_CALENDAR)
    await set_calendar(engine, "acme", zone, "monday", Calendar(zone).start(date(2026, 4, 1)), 0)
    calendar = await calendar_of(engine, "acme")
    entries = list({each.request_id: each for each in (*plain, *books(Calendar(zone)))}.values())
    await LedgerStore(engine).insert(entries)
    march, april = Month(2026, 3, calendar), Month(2026, 4, calendar)
    assert march.end_us == april.start_us == Calendar(zone).start(date(2026, 4, 1))
    spans = [Days(march.first_day, march.last_day, calendar), Days(april.first_day, april.last_day, calendar)]
    found = [await by_usage(engine, span) for span in (*spans, Days(march.first_day, april.last_day, calendar))]
    assert {**found[0], **found[1]} == found[2]
    assert sum(found[2].values()) == sum(each.cost_nanousd or 0 for each in entries)
    utc, own = truth(entries, "UTC"), truth(entries, zone)
    assert {day: cost for day, cost in found[0].items() if day < march.last_day} == {
        day: cost for day, cost in utc.items() if day < march.last_day
    }
    assert found[1] == {day: cost for day, cost in own.items() if day.month == 4}


def hours(span: Days) -> Iterator[float]:
    for mark in span.marks:
        start, end = span.calendar.days(moment(mark).date(), moment(mark).date())
        yield (end - start) / HOUR_US


def test_the_books_have_a_short_and_a_long_day() -> None:
    """Else the tables above would say little."""
    assert {23.0, 24.0} == set(hours(Days(FIRST, LAST, Calendar("Europe/Berlin"))))
    assert {25.0, 24.0} == set(hours(Days(FIRST, LAST, Calendar("Pacific/Auckland"))))
    assert {24.5, 24.0} == set(hours(Days(FIRST, LAST, Calendar("Australia/Lord_Howe"))))
