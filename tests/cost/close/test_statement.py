"""A month's statement: its lines add up to what was spent, and no cell of it is a formula."""

import csv
import io
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.close.month import Month
from cost.close.statement import COLUMNS, statement_csv
from cost.prices import usd
from cost.reports.period import PeriodLine, PeriodReader, spent
from tests.cost.reports.two_organisations import WHOLE, booked, idle, keep, many

APRIL = Month(2026, 4)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


async def test_lines_add_up_to_the_month(engine: AsyncEngine) -> None:
    """To the nano-dollar, idle GPUs and the gateway's machines among them."""
    await keep(engine, [*many(200), idle("idle/h100/1")])
    lines = await PeriodReader(engine).lines(WHOLE, APRIL.start_us, APRIL.end_us, ("team", "model", "provider"))
    rows = read(statement_csv(APRIL, "acme", lines, {"team_a": "Team A"}, gateway_nanousd=7))
    total = sum(Decimal(row["cost_usd"] or 0) for row in rows)
    assert total == usd(spent(lines).cost_nanousd + 7)
    assert sum(int(row["requests"]) for row in rows) == spent(lines).requests
    assert {row["kind"] for row in rows} == {"requests", "idle", "gateway"}
    assert {row["team"] for row in rows if row["team_id"] == "team_a"} == {"Team A"}


async def test_what_is_sold_by_units_says_how_many(engine: AsyncEngine) -> None:
    """A line of its own for each unit, beside what the same model took in tokens."""
    heard = {"target_id": "whisper-1", "unit": "second", "input_tokens": 0, "output_tokens": 0}
    entries = [booked(f"h{number}", quantity_milli=2_500, **heard) for number in range(3)]
    await keep(engine, [*entries, booked("t", target_id="whisper-1")])
    lines = await PeriodReader(engine).lines(WHOLE, APRIL.start_us, APRIL.end_us, ("team", "model", "provider"))
    rows = read(statement_csv(APRIL, "acme", lines, {}))
    assert [(row["unit"], row["quantity"], row["attempts"]) for row in rows] == [("", "", "1"), ("second", "7.5", "3")]


def test_what_is_unknown_is_empty_and_no_name_runs() -> None:
    """Not 0 for what has no price; a name that a spreadsheet would take for a formula is text."""
    line = PeriodLine(team_id="t", target_id="=1+1", attempts=2, unpriced_attempts=2)
    (row,) = read(statement_csv(APRIL, "acme", [line], {"t": "=cmd|' /C calc'!A0"}))
    assert list(row) == list(COLUMNS)
    assert (row["cost_usd"], row["reference_usd"], row["unpriced_attempts"]) == ("", "", "2")
    assert (row["model"], row["team"]) == ("'=1+1", "'=cmd|' /C calc'!A0")
