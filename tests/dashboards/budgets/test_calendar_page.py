"""The calendar on its page, and one day and month on every page, file and API of an organisation that has one."""

import csv
import html
import io
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from accounts.audit.log import Scope
from cost.calendar import Calendar
from cost.calendars import calendar_of, set_calendar
from cost.close.checks import MonthChecks
from cost.close.month import Month
from cost.ledger.entries import Entry
from cost.prices import usd
from cost.times import HOUR_US, MINUTE_US, iso, start_of
from tests.api.finance import Finance, running_finance
from tests.cost.entries import reserve
from tests.cost.reports.two_organisations import booked
from tests.signed_in import Answer, Browser, signed_in

PATH = "/dashboard/calendar"
ZONES = ("Europe/Berlin", "Asia/Kolkata", "America/New_York")
MARCH = "2026-03"


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        yield running


@pytest.fixture
async def admin(finance: Finance) -> AsyncIterator[Browser]:
    async with signed_in(finance.gateway, "ada@acme.test", role="admin", organisation_id="acme") as found:
        yield found


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text[:500]
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_the_calendar_is_seen_and_changed(finance: Finance, admin: Browser) -> None:
    """From a day on that has not begun; what is no zone is said at its field; the log has it, and the budgets' page the link."""
    assert f'href="{PATH}">UTC</a>' in (await admin.get("/dashboard/budgets")).text
    day = (datetime.now(UTC) + timedelta(days=3)).date()
    form = {"time_zone": "Asia/Kolkata", "week_start": "sunday", "from": day.isoformat(), "reason": "our office"}
    bad = {"time_zone": "Bombay", "from": "2020-01-01", "week_start": "Sonntag"}
    for name, value in bad.items():
        refused = await admin.post(PATH, {**form, name: value})
        assert (refused.status, f'id="error-{name}"' in refused.text) == (422, True), name
    assert (await admin.post(PATH, form)).location == PATH
    found = await calendar_of(finance.gateway.engine, "acme")
    assert (found.time_zone, found.week_start, found.first) == ("Asia/Kolkata", "sunday", day)
    assert [
        (row["first"], row["time_zone"], row["state"])
        for row in rows(await admin.get(f"{PATH}?format=csv&table=calendars"))
    ] == [
        ("", "UTC", "Holds now"),
        (day.isoformat(), "Asia/Kolkata", "Follows"),
    ]
    log = await finance.gateway.parts.identity.audit.page(Scope(organisation_id="acme"))
    assert [(each.action, each.reason) for each in log if each.action.startswith("calendar")] == [
        ("calendar.set", "our office")
    ]


async def test_who_may_not_change_it_sees_it(finance: Finance) -> None:
    async with signed_in(finance.gateway, "fin@acme.test", role="finance", organisation_id="acme") as found:
        page = await found.get(PATH)
        assert (page.status, 'name="time_zone"' in page.text) == (200, False)
        assert (await found.post(PATH, {"time_zone": "UTC", "week_start": "monday"})).status == 403


def around_midnights(calendar: Calendar) -> list[Entry]:
    """Entries about the month's first and last midnights, there and in UTC, and within the hour of each; none costs as another."""
    month = Month(2026, 3, calendar)
    midnights = {month.start_us, month.end_us, start_of(month.first_day), start_of(month.next.first_day)}
    shifts = (-31 * MINUTE_US, -1, 0, 20 * MINUTE_US, 31 * MINUTE_US, 12 * HOUR_US)
    moments = sorted({midnight + shift for midnight in midnights for shift in shifts})
    return [spending(f"m{at_us}", at_us, 1_000 + 2**number) for number, at_us in enumerate(moments)]


def spending(request_id: str, at_us: int, cost: int) -> Entry:
    meters = {"input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": cost}
    return booked(request_id, at_us=at_us, team_id="team_x", key_id="k", cost_nanousd=cost, **meters)


def total(found: list[dict[str, str]], column: str = "cost_usd") -> Decimal:
    return sum((Decimal(row[column] or 0) for row in found), Decimal(0))


@pytest.mark.parametrize("zone", ZONES)
async def test_a_month_is_the_same_everywhere(finance: Finance, admin: Browser, zone: str) -> None:
    """The usage API, savings, showback, the team's page, FOCUS, the statement, the daily report; and what the clock there says."""
    engine = finance.gateway.engine
    await set_calendar(engine, "acme", zone, "monday", Calendar(zone).start(date(2026, 1, 1)), 0)
    calendar = await calendar_of(engine, "acme")
    entries = around_midnights(calendar)
    await finance.keep(entries)
    clock = ZoneInfo(zone)
    local = [datetime.fromtimestamp(each.at_us // 10**6, clock) for each in entries]
    costs = [each.cost_nanousd or 0 for each in entries]
    known = usd(sum(cost for at, cost in zip(local, costs, strict=True) if at.month == 3))
    asked = {"start": "2026-03-01", "end": "2026-04-01"}
    usage = (await finance.get("finance", "/v1/usage", asked)).body
    assert (usage["totals"]["cost_usd"], usage["time_zone"]) == (known, zone)
    assert (await finance.get("finance", "/v1/savings", asked)).body["cost_usd"] == known
    focus = await finance.get("finance", "/v1/focus", asked)
    assert total(list(csv.DictReader(io.StringIO(focus.text))), "BilledCost") == known
    days = f"month={MARCH}&format=csv"
    assert total(rows(await admin.get(f"/dashboard/finance/showback?{days}&table=showback")), "total_usd") == known
    assert total(rows(await admin.get(f"/dashboard/finance?{days}&table=days"))) == known
    assert total(rows(await admin.get(f"/dashboard/teams/team_x?{days}&table=models"))) == known
    assert total(rows(await admin.get(f"/dashboard/finance/month?{days}&table=statement"))) == known
    assert (
        total(rows(await admin.get("/dashboard/finance/exports/usage?from=2026-03-01&to=2026-03-31&group_by=day")))
        == known
    )
    utc = usd(sum(cost for each, cost in zip(entries, costs, strict=True) if iso(each.at_us)[:7] == MARCH))
    assert utc != known
    providers = rows(await admin.get(f"/dashboard/finance/month?{days}&table=providers"))
    assert total(providers) == utc
    openai = await admin.get("/dashboard/finance/exports/costs.json?from=2026-03-01&to=2026-03-31")
    buckets = json.loads(openai.text, parse_float=Decimal)["data"]
    assert sum(Decimal(each["amount"]["value"]) for bucket in buckets for each in bucket["results"]) == utc
    last = usd(sum(cost for at, cost in zip(local, costs, strict=True) if at.date().isoformat() == "2026-03-31"))
    report = await admin.get("/dashboard/finance/reports/made?day=2026-03-31&subject=organisation.acme&format=csv")
    assert f"{last:f}" in report.text
    for page in ("/dashboard/finance/showback", "/dashboard/finance", "/dashboard/teams/team_x", "/dashboard/teams"):
        assert zone in (await admin.get(page)).text, page


async def test_a_month_is_signed_by_its_own_end(finance: Finance, admin: Browser) -> None:
    """In India March ends at half past six of UTC: what comes later and belongs before it stands in April, and March as signed."""
    engine = finance.gateway.engine
    await set_calendar(engine, "acme", "Asia/Kolkata", "monday", Calendar("Asia/Kolkata").start(date(2026, 1, 1)), 0)
    month = Month(2026, 3, await calendar_of(engine, "acme"))
    assert iso(month.end_us) == "2026-03-31T18:30:00Z"
    one = spending("one", month.end_us - 1, 10**9)
    await finance.keep([reserve("one", at_us=one.at_us, organisation_id="acme"), one])
    checks = MonthChecks(engine)
    await checks.ask(Month(2026, 3))
    await checks.check()
    page = f"/dashboard/finance/month?month={MARCH}"
    tick = {"month": MARCH, "comment": "", "ticked": "on", "step": "reconciliation/vllm"}
    assert (await admin.post("/dashboard/finance/month/mark", tick)).status == 303
    signed = await admin.post("/dashboard/finance/month/sign", {"month": MARCH, "comment": ""})
    assert signed.status == 303, (await admin.get(page)).text
    late = [spending("late", month.end_us - 5 * MINUTE_US, 3), spending("next", month.end_us, 5)]
    await finance.keep(late)
    usage = {"group_by": "day", "start": "2026-03-31", "end": "2026-04-02"}
    found = (await finance.get("finance", "/v1/usage", usage)).body["data"]
    assert [(row["day"], row["cost_usd"]) for row in found] == [("2026-03-31", usd(10**9)), ("2026-04-01", usd(8))]
    (belated,) = rows(await admin.get(f"{page}&format=csv&table=late"))
    assert (belated["belongs"], belated["day"], belated["stands"]) == ("March 2026", "2026-03-31", "April 2026")


def charts(answer: Answer) -> list[tuple[list[str], list[Decimal]]]:
    """Each chart's links, and the sum of each of its bars."""
    assert answer.status == 200, answer.text[:500]
    found = []
    for text in re.findall(r'data-chart="([^"]+)"', answer.text):
        chart = json.loads(html.unescape(text))
        bars = [sum(each) for each in zip(*(series["values"] for series in chart["series"]), strict=True)]
        found.append((chart["hrefs"], [round(Decimal(bar), 9) for bar in bars]))
    return found


@pytest.mark.parametrize(
    ("zone", "day"),
    [("Europe/Berlin", "2026-03-29"), ("Asia/Kolkata", "2026-03-29"), ("America/New_York", "2026-11-01")],
)
async def test_spend_and_what_changed_are_of_the_same_days(
    finance: Finance, admin: Browser, zone: str, day: str
) -> None:
    """A day of 23, 24 or 25 hours and the one before: a bar of the team's page leads to its amount, by hours, by minutes; the movers
    have both days as the usage API has them, and every page names the zone.
    """
    engine, one = finance.gateway.engine, timedelta(days=1)
    await set_calendar(engine, "acme", zone, "monday", Calendar(zone).start(date(2026, 1, 1)), 0)
    calendar, asked = await calendar_of(engine, "acme"), date.fromisoformat(day)
    midnights = {
        at for shift in range(-1, 3) for at in (calendar.start(asked + shift * one), start_of(asked + shift * one))
    }
    shifts = (-31 * MINUTE_US, -1, 0, 20 * MINUTE_US, 31 * MINUTE_US, 7 * HOUR_US, 12 * HOUR_US)
    moments = sorted({midnight + shift for midnight in midnights for shift in shifts})
    await finance.keep([spending(f"s{at}", at, 10**6 + 7919 * place**2) for place, at in enumerate(moments)])
    known = {}
    for each in (asked - one, asked):
        (row,) = (
            await finance.get(
                "finance",
                "/v1/usage",
                {"start": f"{each}", "end": f"{each + one}", "team_id": "team_x", "group_by": "day"},
            )
        ).body["data"]
        known[each] = row["cost_usd"]
    team, days = "/dashboard/teams/team_x", f"from={asked}&to={asked}"
    hrefs, bars = charts(await admin.get(f"{team}?from={asked - one}&to={asked}"))[0]
    assert bars == list(known.values())
    for href, bar in zip(hrefs, bars, strict=True):
        page = await admin.get(href)
        ((hours, costs),) = charts(page)
        assert (sum(costs), f"Hour ({zone})" in page.text) == (bar, True)
        for hour, cost in zip(hours, costs, strict=True):
            minutes = charts(await admin.get(f"{team}/spend{hour}"))
            assert sum(sum(each) for _, each in minutes) == cost, hour
    for place in (f"{team}/spend", "/dashboard/finance/spend"):
        for by in ("key", "tag"):
            parts = rows(await admin.get(f"{place}?{days}&by={by}&team=team_x&format=csv&table=parts"))
            assert [total(parts), total(parts, "before_usd")] == [known[asked], known[asked - one]]
        week = await admin.get(f"{place}?from={asked - 6 * one}&to={asked}&team=team_x")
        assert charts(week)[0][1][-2:] == [known[asked - one], known[asked]]
        assert f"beside {asked - 13 * one} to {asked - 7 * one} ({zone})" in week.text
    query = {"start": day, "end": f"{asked + one}", "team_id": "team_x"}
    movers = (await finance.get("finance", "/v1/usage/movers", query)).body
    assert (movers["total"]["now"]["cost_usd"], movers["total"]["before"]["cost_usd"]) == (
        known[asked],
        known[asked - one],
    )
    assert (movers["time_zone"], movers["before_end"]) == (zone, movers["start"])
    utc = (await finance.get("finance", "/v1/usage/movers", {**query, "time_zone": "UTC"})).body
    assert utc["total"]["now"]["cost_usd"] != known[asked]
    by_week = (await finance.get("finance", "/v1/usage/movers", {**query, "against": "week"})).body
    assert by_week["before_start"] == iso(calendar.start(asked - 7 * one))
