"""The CSV of a daily report: exact, of one shape, and nothing in it that a spreadsheet runs."""

import csv
import io
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, TOKEN_COLUMNS
from cost.prices import usd
from cost.reports.daily import DailyReader, plain
from cost.reports.daily_csv import daily_csv
from cost.reports.daily_html import daily_html
from cost.reports.scope import ReadScope
from tests.cost.reports.days import DAY, HOSTILE, books

NOTHING = dict.fromkeys((*TOKEN_COLUMNS, *METER_COLUMNS), 0)


async def test_the_file_says_what_the_report_says(engine: AsyncEngine) -> None:
    """Every row has every column, amounts are exact, and each section adds up to the total."""
    await LedgerStore(engine).insert(books())
    report = await DailyReader(engine).read(ReadScope(organisation_id="default", team_id=None), DAY, "x")
    text = daily_csv(report)
    assert "\r\n" in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {None} & {key for row in rows for key in row} == set()
    assert {(row["day"], row["organisation"], row["team"]) for row in rows} == {("2026-11-20", "default", "")}
    total = next(row for row in rows if row["section"] == "total")
    assert Decimal(total["cost_usd"]) == usd(report.total.cost_nanousd)
    assert Decimal(total["saving_usd"]) == usd(report.total.savings_nanousd or 0)
    for section in ("team", "model", "tier", "key", "tag", "meter"):
        costs = [Decimal(row["cost_usd"] or 0) for row in rows if row["section"] == section]
        assert sum(costs) == Decimal(total["cost_usd"]), section
    assert len([row for row in rows if row["section"] == "day"]) == 14
    unpriced = next(row for row in rows if row["name"] == "<b>x</b>")
    assert [unpriced[name] for name in ("cost_usd", "saving_usd", "baseline_usd", "unpriced_attempts")] == [
        "",
        "",
        "",
        "1",
    ]


async def test_what_was_given_again_has_a_line_of_its_own(engine: AsyncEngine) -> None:
    """And none where nothing was; it is in no other."""
    scope = ReadScope(organisation_id="default", team_id=None)
    await LedgerStore(engine).insert(books())
    before = await DailyReader(engine).read(scope, DAY, "x")
    assert "given again" not in daily_csv(before)
    again: dict[str, Any] = {"entry": "cache", "served": False, "cost_nanousd": 0, "baseline_nanousd": None, **NOTHING}
    more = [
        msgspec.structs.replace(books()[0], request_id=f"again_{each}", cache_saved_nanousd=5, **again) for each in "ab"
    ]
    await LedgerStore(engine).insert(more)
    report = await DailyReader(engine).read(scope, DAY, "x")
    rows = list(csv.DictReader(io.StringIO(daily_csv(report))))
    (line,) = [row for row in rows if row["section"] == "given again"]
    assert (line["requests"], line["saving_usd"], line["cost_usd"]) == ("2", "0.00000001", "")
    assert report.total.requests == before.total.requests
    assert plain(report)["given_again"] == {"requests": 2, "saved_usd": "0.000000010"}
    assert "Answers given again" in daily_html(report, "x")


async def test_no_cell_is_a_formula(engine: AsyncEngine) -> None:
    """A tag that begins like a formula is text, and a quote ends no cell."""
    await LedgerStore(engine).insert(books())
    report = await DailyReader(engine).read(ReadScope(organisation_id="default", team_id="team_a"), DAY, "x")
    names = [row[4] for row in csv.reader(io.StringIO(daily_csv(report)))]
    assert "'=HYPERLINK(1)" in names
    assert HOSTILE in names
