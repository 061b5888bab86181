"""The CSV of a daily report: exact, of one shape, and nothing in it that a spreadsheet runs."""

import csv
import io
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.prices import usd
from cost.reports.daily import DailyReader
from cost.reports.daily_csv import daily_csv
from cost.reports.scope import ReadScope
from tests.cost.reports.days import DAY, HOSTILE, books


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


async def test_no_cell_is_a_formula(engine: AsyncEngine) -> None:
    """A tag that begins like a formula is text, and a quote ends no cell."""
    await LedgerStore(engine).insert(books())
    report = await DailyReader(engine).read(ReadScope(organisation_id="default", team_id="team_a"), DAY, "x")
    names = [row[4] for row in csv.reader(io.StringIO(daily_csv(report)))]
    assert "'=HYPERLINK(1)" in names
    assert HOSTILE in names
