"""GET /v1/usage over a socket: a day, ranges, groups, pages, and the same figures as CSV and NDJSON."""

import asyncio
import contextlib
import csv
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import text

from api.web.gateway import READS_AT_ONCE
from cost.calendars import set_calendar
from cost.ledger.store import LedgerStore
from cost.prices import usd
from cost.tables import COARSER_DAYS, ROLLUP_SUMS
from cost.times import DAY_US, HOUR_US, MINUTE_US, iso, moment, wall_us
from tests.api.finance import Finance, running_finance
from tests.cost.entries import settle
from tests.cost.reports.two_organisations import DAY, booked

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIGURES = tuple(each for each in ROLLUP_SUMS if each != "quantity_milli")
"""A quantity is told by unit alone: seconds and images do not add up."""
RANGE = {"start": "2026-04-05", "end": "2026-04-07"}
MONEY = [name.replace("_nanousd", "_usd") for name in ROLLUP_SUMS if name.endswith("_nanousd")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Finance]:
    """One for all who only read."""
    async with running_finance(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path: Path) -> AsyncIterator[Finance]:
    """For one who changes something."""
    async with running_finance(tmp_path) as running:
        yield running


def rows_of_csv(content: str) -> list[dict[str, str]]:
    """Read strictly, as spreadsheets do."""
    assert content.endswith("\r\n")
    return list(csv.DictReader(io.StringIO(content, newline=""), strict=True))


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/usage/movers", "/v1/savings"])
@pytest.mark.parametrize("team_id", ["team_r", "team_misspelt"])
async def test_a_team_that_is_not_theirs_is_told(finance: Finance, path: str, team_id: str) -> None:
    """Another organisation's and one that does not exist look the same, and never like a team that spent nothing."""
    refused = await finance.get("finance", path, {"team_id": team_id})
    assert refused.refusal == (404, "team_not_found", "team_id")
    assert "GET /v1/admin/teams lists" in refused.text


async def test_a_day_keeps_its_shape(finance: Finance) -> None:
    """REQUIREMENTS' names, exact money and the models; of the own team, or for finance of any or all of them."""
    body = (await finance.get("member x", "/v1/usage", {"team_id": "team_x", "date": "2026-04-05"})).body
    assert {name: body[name] for name in body if name != "models"} == {
        "team_id": "team_x",
        "date": "2026-04-05",
        "requests": 3,
        "input_tokens": 2_400,
        "cached_input_tokens": 900,
        "output_tokens": 600,
        "cost_usd": Decimal("0.002000002"),
        "baseline_usd": Decimal("0.008"),
        "savings_usd": Decimal("0.005999998"),
        "savings_share": Decimal("0.7500"),
        "estimated_requests": 0,
        "unpriced_requests": 1,
        "cache_hits": 0,
        "cache_saved_usd": Decimal(0),
    }
    assert [(row["model"], row["requests"], row["cost_usd"]) for row in body["models"]] == [
        ("large", 1, Decimal("0.001000001")),
        ("small", 2, Decimal("0.001000001")),
    ]
    everything = (await finance.get("finance", "/v1/usage", {"date": "2026-04-05"})).body
    assert (everything["team_id"], everything["requests"]) == (None, 4)
    assert everything["cost_usd"] == Decimal("0.073000003")
    one = (await finance.get("finance", "/v1/usage", {"date": "2026-04-05", "team_id": "team_y"})).body
    assert (one["team_id"], one["requests"], one["estimated_requests"]) == ("team_y", 1, 1)
    nobody = (await finance.get("finance", "/v1/usage", {"date": "2026-04-05", "team_id": ""})).body
    assert (nobody["team_id"], nobody["requests"]) == ("", 0)
    assert (await finance.get("member x", "/v1/usage", {"team_id": "team_y"})).refusal == (
        404,
        "team_not_found",
        "team_id",
    )


async def test_a_range_in_groups_and_pages(finance: Finance) -> None:
    """Both spellings of group_by, rows in the order of time, and totals that do not change with the page."""
    query: dict[str, Any] = {**RANGE, "group_by": "model,day", "limit": 2}
    first = (await finance.get("finance", "/v1/usage", query)).body
    assert (first["object"], first["start"], first["end"]) == (
        "usage.page",
        "2026-04-05T00:00:00Z",
        "2026-04-07T00:00:00Z",
    )
    assert [(row["day"], row["model"]) for row in first["data"]] == [("2026-04-05", "h100"), ("2026-04-05", "large")]
    repeated = [*RANGE.items(), ("group_by[]", "model"), ("group_by", "day"), ("limit", "2")]
    second = (await finance.get("finance", "/v1/usage", [*repeated, ("page", first["next_page"])])).body
    assert [(row["day"], row["model"]) for row in second["data"]] == [("2026-04-05", "small"), ("2026-04-06", "small")]
    assert (first["has_more"], second["has_more"], second["next_page"]) == (True, False, None)
    assert first["totals"] == second["totals"]
    rows = first["data"] + second["data"]
    totals = await finance.totals("acme")
    for name in FIGURES:
        told = name.replace("_nanousd", "_usd")
        expected: Any = getattr(totals, name)
        assert sum(row[told] for row in rows) == first["totals"][told] == (usd(expected) if told != name else expected)


async def test_filters_and_hours(finance: Finance) -> None:
    """A range may begin on any full hour; filters hold together; ids are named team_id and key_id."""
    query = {"start": "2026-04-05T14:00:00+02:00", "end": "2026-04-05T13:00:00Z", "group_by": "hour,team,key,tag"}
    rows = (await finance.get("finance", "/v1/usage", query)).body["data"]
    assert [(row["hour"], row["team_id"], row["key_id"], row["tag"], row["attempts"]) for row in rows] == [
        ("2026-04-05T12:00:00Z", "", "", "", 0),
        ("2026-04-05T12:00:00Z", "team_x", "key_a", "", 1),
        ("2026-04-05T12:00:00Z", "team_y", "key_b", "", 1),
    ]
    filtered = [*RANGE.items(), ("model", "large"), ("model", "nothing"), ("tag", "red"), ("provider", "openai")]
    (row,) = (await finance.get("member x", "/v1/usage", filtered)).body["data"]
    assert (row["requests"], row["cost_usd"], row["savings_usd"]) == (1, Decimal("0.001000001"), Decimal("0.002999999"))


async def test_end_users_are_told_from_the_ledger(own: Finance) -> None:
    """They add up to the same totals, are filtered by, stand in CSV, and are told for at most 31 days."""
    await own.keep(
        [
            booked(
                f"of_{number}", team_id="team_x", end_user=f"u-{number % 3}", cost_nanousd=number, at_us=DAY + DAY_US
            )
            for number in range(1, 31)
        ]
    )
    whole = (await own.get("finance", "/v1/usage", {**RANGE, "group_by": "team"})).body["totals"]
    query = {**RANGE, "group_by": "day,end_user"}
    found = (await own.get("finance", "/v1/usage", query)).body
    assert found["totals"] == whole
    assert {row["end_user"] for row in found["data"]} == {"", "u-0", "u-1", "u-2"}
    (row,) = (await own.get("member x", "/v1/usage", {**RANGE, "group_by": "team", "end_user": "u-1"})).body["data"]
    assert (row["team_id"], row["attempts"], row["cost_usd"]) == ("team_x", 10, usd(sum(range(1, 31, 3))))
    table = await own.get("finance", "/v1/usage", query, "text/csv")
    assert table.text.splitlines()[0].startswith("day,end_user,requests")
    assert len(table.text.splitlines()) == 1 + len(found["data"])
    refused = await own.get("finance", "/v1/usage", {"start": "2026-01-01", "end": "2026-03-01", "end_user": "u-1"})
    assert (refused.status, "`end_user`" in refused.body["error"]["message"]) == (400, True)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "UTC"])
async def test_days_are_those_of_the_time_zone(own: Finance, zone: str) -> None:
    """Each booking is in its local day, also where the clock is changed or an hour is cut; CSV and single days say the same."""
    first = int(datetime(2026, 3, 27, tzinfo=UTC).timestamp()) * 1_000_000
    moments = [first + number * 20 * MINUTE_US for number in range(4 * 72)]
    await LedgerStore(own.gateway.engine).insert(
        [
            msgspec.structs.replace(
                settle(f"z{at_us}", at_us=at_us, cost_nanousd=1_000), organisation_id="acme", team_id="team_x"
            )
            for at_us in moments
        ]
    )
    expected = Counter(moment(at_us).astimezone(ZoneInfo(zone)).date().isoformat() for at_us in moments)
    days = {"start": "2026-03-28", "end": "2026-03-31", "time_zone": zone, "group_by": "day"}
    body = (await own.get("finance", "/v1/usage", days)).body
    told = {row["day"]: row["requests"] for row in body["data"]}
    assert (told, body["time_zone"]) == (
        {day: expected[day] for day in ("2026-03-28", "2026-03-29", "2026-03-30")},
        zone,
    )
    assert told["2026-03-29"] == (23 * 3 if zone == "Europe/Berlin" else 72)
    rows = rows_of_csv((await own.get("finance", "/v1/usage", days, accept="text/csv")).text)
    assert {row["day"]: int(row["requests"]) for row in rows} == told
    for day, requests in told.items():
        one = (await own.get("finance", "/v1/usage", {"date": day, "time_zone": zone})).body
        assert (one["date"], one["requests"]) == (day, requests)
    (page,) = [(await own.get("finance", "/v1/usage", {**days, "limit": 1})).body]
    rest = (await own.get("finance", "/v1/usage", {**days, "limit": 2, "page": page["next_page"]})).body
    assert [row["day"] for row in page["data"] + rest["data"]] == list(told)


async def test_an_organisations_calendar_cuts_its_ranges_from_a_day_on(own: Finance) -> None:
    """UTC until it is set and until that day; what is not a zone, or lies behind, is refused; the log has it."""
    assert (await own.get("finance", "/v1/usage", RANGE)).body["time_zone"] == "UTC"
    put = {"time_zone": "Europe/Berlin", "week_start": "sunday"}
    made = await own.send("admin", "PUT", "/v1/admin/calendar", put)
    assert (made.status, made.body["time_zone"], made.body["from"] > iso(wall_us())) == (200, "Europe/Berlin", True)
    assert (await own.get("finance", "/v1/usage", RANGE)).body["time_zone"] == "UTC"
    await set_calendar(own.gateway.engine, "acme", "Europe/Berlin", "monday", DAY + DAY_US - 2 * HOUR_US, 0)
    assert (await own.get("finance", "/v1/usage", {"start": "2026-04-06", "end": "2026-04-07"})).body["start"] == (
        "2026-04-05T22:00:00Z"
    )
    assert (await own.get("finance", "/v1/usage", {"start": "2026-04-04", "end": "2026-04-05"})).body[
        "time_zone"
    ] == "UTC"
    listed = (await own.get("finance", "/v1/admin/calendar")).body["data"]
    assert [each["time_zone"] for each in listed] == ["UTC", "Europe/Berlin"]
    for bad, param in (({"time_zone": "Berlin"}, "time_zone"), ({**put, "from": "2020-01-01"}, "from")):
        refused = await own.send("admin", "PUT", "/v1/admin/calendar", bad)
        assert (refused.status, refused.body["error"]["param"]) == (400, param)
    assert (await own.get("finance", "/v1/usage", {**RANGE, "time_zone": "Berlin"})).status == 400


async def test_csv_json_and_ndjson_are_the_same_books(own: Finance) -> None:
    """Over several pages of an export: the ledger, the roll-ups, the API and both files add up to one figure each."""
    await own.keep(
        [
            booked(f"many_{number}", team_id="team_x", tag=f"t{number}", cost_nanousd=number, at_us=DAY + DAY_US)
            for number in range(2_100)
        ]
    )
    query = {**RANGE, "group_by": "day,team,key,model,provider,tier,tag"}
    totals = (await own.get("finance", "/v1/usage", {**query, "limit": "1"})).body["totals"]
    table = await own.get("finance", "/v1/usage", query, "text/csv")
    assert table.headers["content-type"].startswith("text/csv; charset=utf-8")
    assert "usage-2026-04-05-2026-04-07.csv" in table.headers["content-disposition"]
    lines = await own.get("finance", "/v1/usage", query, "application/x-ndjson")
    assert lines.headers["content-type"] == "application/x-ndjson"
    from_csv = rows_of_csv(table.text)
    from_lines = [json.loads(line, parse_float=Decimal) for line in lines.text.splitlines()]
    assert len(from_csv) == len(from_lines) == 2_105
    booked_totals = await own.totals("acme")
    for name in FIGURES:
        told = name.replace("_nanousd", "_usd")
        expected: Any = getattr(booked_totals, name)
        expected = usd(expected) if told in MONEY else expected
        assert sum(Decimal(row[told]) for row in from_csv) == sum(row[told] for row in from_lines) == expected
        assert totals[told] == expected
    assert "E-" not in table.text
    counted = await own.gateway.rows("entry <> 'reserve' AND organisation_id = 'acme'")
    assert sum(row["cost_nanousd"] or 0 for row in counted) == booked_totals.cost_nanousd
    assert sum(row["input_tokens"] for row in counted) == booked_totals.input_tokens


async def test_cells_of_a_csv_are_safe_and_numbers_stay_numbers(own: Finance) -> None:
    """What a team called itself cannot be a formula on the accountant's machine."""
    evil = "=cmd|' /C calc'!A0"
    await own.keep([booked("evil", team_id="team_x", target_id=evil, tag="@SUM(1,2)", cost_nanousd=4_000_001)])
    query = {**RANGE, "group_by": "model,tag", "model": evil}
    (row,) = rows_of_csv((await own.get("member x", "/v1/usage", query, "text/csv")).text)
    assert (row["model"], row["tag"]) == (f"'{evil}", "'@SUM(1,2)")
    assert (row["savings_usd"], row["cost_usd"]) == ("-0.000000001", "0.004000001")
    (line,) = (await own.get("member x", "/v1/usage", query, "application/x-ndjson")).text.splitlines()
    assert json.loads(line)["model"] == evil


async def test_a_day_as_csv(finance: Finance) -> None:
    """The one-day form has its models as rows."""
    answer = await finance.get("member x", "/v1/usage", {"date": "2026-04-05"}, "text/csv")
    assert [(row["model"], row["cost_usd"]) for row in rows_of_csv(answer.text)] == [
        ("large", "0.001000001"),
        ("small", "0.001000001"),
    ]


REFUSED: list[tuple[dict[str, str], tuple[int, str | None, str]]] = [
    ({"date": "2026-04-05", "group_by": "model"}, (400, None, "date")),
    ({"groupby": "model"}, (400, None, "groupby")),
    ({**RANGE, "group_by": "prompt"}, (400, None, "group_by")),
    ({**RANGE, "group_by": "origin"}, (400, None, "group_by")),
    ({"start": "2026-04-05", "end": "2027-04-07"}, (400, None, "end")),
    ({"start": "2026-04-05", "end": "2026-05-07", "group_by": "hour"}, (400, None, "end")),
    ({"start": "2026-04-05T00:30:00Z"}, (400, None, "start")),
    ({"start": "2026-04-05", "end": "2026-04-05"}, (400, None, "end")),
    ({**RANGE, "limit": "1001"}, (400, None, "limit")),
    ({**RANGE, "group_by": "day", "page": "nonsense"}, (400, None, "page")),
    ({**RANGE, "team_id": "team_y"}, (404, "team_not_found", "team_id")),
]


async def test_what_is_not_sound_is_refused(finance: Finance) -> None:
    """With the parameter that is wrong."""
    for query, refusal in REFUSED:
        assert (await finance.get("member x", "/v1/usage", query)).refusal == refusal


async def test_other_kinds_are_not_acceptable(finance: Finance) -> None:
    """406 for what it cannot be; an export takes neither limit nor page."""
    assert (await finance.get("member x", "/v1/usage", RANGE, "text/html")).refusal[:2] == (406, "not_acceptable")
    assert (await finance.get("member x", "/v1/usage", {**RANGE, "limit": "5"}, "text/csv")).refusal == (
        400,
        None,
        "limit",
    )
    assert (await finance.get("member x", "/v1/usage", RANGE, "text/csv;q=0.1, application/json")).body["data"]


async def test_a_database_that_does_not_answer_is_told(own: Finance) -> None:
    """503 in every form, before a single line of a file is sent."""
    async with own.gateway.engine.begin() as connection:
        for table in ("rollup_day", *(each.name for each in COARSER_DAYS)):
            await connection.execute(text(f"DROP TABLE {table}"))
    for accept in ("application/json", "text/csv", "application/x-ndjson"):
        assert (await own.get("member x", "/v1/usage", RANGE, accept)).refusal == (503, "usage_unavailable", None)


async def test_an_unknown_price_is_nowhere_a_zero(own: Finance) -> None:
    """What was used without a price costs null and saves nothing, in every shape; with known costs it is counted."""
    free = {"input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": 0, "cost_nanousd": None}
    await own.keep([booked("u1", team_id="team_x", target_id="new", baseline_nanousd=5_000, **free)])
    day = (await own.get("member x", "/v1/usage", {"date": "2026-04-05"})).body
    (new,) = [each for each in day["models"] if each["model"] == "new"]
    assert (new["cost_usd"], new["savings_usd"], new["savings_share"], new["unpriced_requests"]) == (
        None,
        None,
        None,
        1,
    )
    query = {**RANGE, "group_by": "model", "model": "new"}
    (row,) = (await own.get("member x", "/v1/usage", query)).body["data"]
    assert (row["cost_usd"], row["savings_usd"], row["unpriced_attempts"]) == (None, None, 1)
    (line,) = rows_of_csv((await own.get("member x", "/v1/usage", query, "text/csv")).text)
    assert (line["cost_usd"], line["savings_usd"], line["unpriced_attempts"]) == ("", "", "1")
    bucket = {"start_time": str(DAY // 1_000_000), "group_by": "line_item", "limit": "1"}
    costs = (await own.get("member x", "/v1/organization/costs", bucket)).body["data"][0]["results"]
    found = {each["line_item"]: each["amount"] for each in costs if each["line_item"].startswith("new")}
    unknown = {"value": None, "currency": "usd", "value_decimal": None}
    assert found == {"new, input": unknown, "new, cached input": unknown, "new, output": unknown}
    spend = (await own.get("member x", "/spend/logs", {"start_date": "2026-04-05", "end_date": "2026-04-05"})).body
    assert spend[0]["models"]["new"] is None
    assert spend[0]["spend"] == day["cost_usd"] == Decimal("0.002000002")


async def test_a_few_look_at_the_books_at_once(own: Finance) -> None:
    """Whoever comes when as many do as may waits for its turn, so that requests keep their connections."""
    reads = own.gateway.parts.finance.reads
    async with contextlib.AsyncExitStack() as others:
        for _ in range(READS_AT_ONCE):
            await others.enter_async_context(reads)
        asked = asyncio.create_task(own.get("finance", "/v1/usage", RANGE))
        assert await asyncio.wait({asked}, timeout=0.1) == (set(), {asked})
    assert (await asked).status == 200
    for accept in ("text/csv", "application/x-ndjson"):
        answers = await asyncio.gather(*(own.get("finance", "/v1/usage", RANGE, accept) for _ in range(20)))
        assert {each.status for each in answers} == {200}
    assert not reads.locked()
