"""A daily report's figures, from the roll-ups of both databases."""

from datetime import date, timedelta
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget, BudgetStatus
from cost.ledger.store import LedgerStore
from cost.prices import usd
from cost.reports.daily import (
    MAX_GROUPS_SHOWN,
    DailyReader,
    DailyReport,
    change,
    meters_of,
    plain,
    plain_within,
    saving,
    share,
)
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageSums
from cost.times import iso
from tests.cost.by_meter import by_meter
from tests.cost.reports.days import DAY, DAY_US, HOSTILE, booked, books

TEAM = ReadScope(organisation_id="default", team_id="team_a")
WHOLE = ReadScope(organisation_id="default", team_id=None)


def standing(limit_nanousd: int = 10**9, spent_nanousd: int = 9 * 10**8) -> BudgetStatus:
    """A budget at its warning."""
    budget = Budget(
        budget_id="b1",
        organisation_id="default",
        scope="team",
        scope_id="team_a",
        period="month",
        kind="hard",
        limit_nanousd=limit_nanousd,
    )
    return BudgetStatus(budget=budget, at_us=DAY_US, spent_nanousd=spent_nanousd)


@pytest.fixture
async def reader(engine: AsyncEngine) -> DailyReader:
    await LedgerStore(engine).insert(books())
    return DailyReader(engine)


def names(report: DailyReport, dimension: str) -> list[str]:
    (section,) = (each for each in report.sections if each.dimension == dimension)
    return [each.name for each in section.groups]


async def test_a_team_sees_its_own_day(reader: DailyReader) -> None:
    """Its requests, its cost, what it is compared with; and nothing of anybody else."""
    report = await reader.read(TEAM, DAY, "Team A", [standing()])
    total = report.total
    assert (total.requests, total.attempts, total.unpriced_attempts, total.estimated_attempts) == (4, 4, 1, 1)
    assert total.cost_nanousd == 3_001_000_001
    assert saving(total) == 8_000_000 - 3_001_000_001
    assert report.day_before.cost_nanousd == 2_000_000_000
    assert report.week_before.cost_nanousd == 2_000_000_000
    assert report.month.cost_nanousd == 5_001_000_001
    assert [each.day for each in report.days] == [DAY - timedelta(days=back) for back in range(13, -1, -1)]
    assert names(report, "model") == ["gpt-4o", "llama-3-70b", "<b>x</b>"]
    assert names(report, "tag") == ["=HYPERLINK(1)", "checkout", "", HOSTILE]
    assert names(report, "tier") == ["interactive", "batch"]
    assert names(report, "key") == ["key_2", "key_abc"]
    assert "team" not in {each.dimension for each in report.sections}


async def test_an_organisation_sees_all_its_teams_and_its_idle_gpus(reader: DailyReader) -> None:
    """What is nobody's is a part of the whole, and other organisations are not."""
    report = await reader.read(WHOLE, DAY, "default")
    assert names(report, "team") == ["team_a", "team_b", ""]
    assert report.total.cost_nanousd == 3_001_000_001 + 5_000_000 + 4_000_000
    assert report.week_before.cost_nanousd == 3_000_000_000
    for section in report.sections:
        assert sum(each.sums.cost_nanousd for each in section.groups) == report.total.cost_nanousd
    other = await reader.read(ReadScope(organisation_id="other", team_id=None), DAY, "other")
    assert other.total.cost_nanousd == 77


async def test_a_day_without_anything_is_empty(reader: DailyReader) -> None:
    """Zeros, no sections, no claim of a saving; and it knows that it is empty."""
    nothing = await reader.read(TEAM, date(2020, 2, 29), "Team A")
    assert nothing.is_empty
    assert saving(nothing.total) is None
    assert nothing.total == UsageSums()
    quiet = await reader.read(TEAM, DAY + timedelta(days=3), "Team A")
    assert not quiet.is_empty


async def test_what_is_beyond_the_limit_is_one_part(engine: AsyncEngine) -> None:
    """However many tags there are, the parts shown and the rest add up."""
    await LedgerStore(engine).insert([booked(f"r{each}", tag=f"t{each:03}") for each in range(MAX_GROUPS_SHOWN + 5)])
    report = await DailyReader(engine).read(TEAM, DAY, "Team A")
    (section,) = (each for each in report.sections if each.dimension == "tag")
    assert len(section.groups) == MAX_GROUPS_SHOWN
    assert section.left_out is not None
    assert (section.left_out.requests, section.left_out.cost_nanousd) == (5, 5_000_000)


async def test_plain_values_are_exact(reader: DailyReader) -> None:
    """Dollars are texts to the nano-dollar, and JSON has no float of them."""
    report = await reader.read(TEAM, DAY, "Team A", [standing()])
    found = plain(report)
    assert found["cost_usd"] == "3.001000001"
    assert found["saving_usd"] == "-2.993000001"
    assert found["estimated_share"] == "0.250"
    assert found["change_to_day_before"] == "0.501"
    assert found["meters"]["reasoning"] == {"used": 50, "cost_usd": "0.000000000"}
    assert found["budgets"][0]["state"] == "warning"
    assert found["budgets"][0]["as_of"] == iso(DAY_US)
    assert found["models"][0]["name"] == "gpt-4o"
    assert found["models"][2]["cost_usd"] is None
    assert sum(Decimal(each["cost_usd"] or 0) for each in found["models"]) == usd(report.total.cost_nanousd)


async def test_a_message_has_room_for_what_there_is(engine: AsyncEngine) -> None:
    """Whatever names are made of, the figures stay below the limit; the totals are always there."""
    entries = [
        booked(f"r{each}", tag="\x01" * 60 + str(each), target_id='"' * 190 + str(each), key_id=f"{each}" + "é" * 60)
        for each in range(30)
    ]
    await LedgerStore(engine).insert(entries)
    report = await DailyReader(engine).read(TEAM, DAY, "Team A")
    assert len(msgspec.json.encode(plain(report))) > 18_000
    found = plain_within(report, 9_000)
    assert len(msgspec.json.encode(found)) <= 9_000
    assert found["requests"] == 30
    assert 0 < len(found["models"]) < 10
    assert plain_within(report, 2)["models"] == []


def test_meters_do_not_overlap() -> None:
    """Inclusive buckets become parts, each with what it cost."""
    sums = UsageSums(
        requests=2,
        input_tokens=100,
        cached_input_tokens=60,
        cache_write_tokens=15,
        cache_write_1h_tokens=5,
        output_tokens=30,
        reasoning_tokens=10,
        cost_nanousd=28,
        input_nanousd=1,
        cached_input_nanousd=2,
        cache_write_nanousd=3,
        cache_write_1h_nanousd=4,
        output_nanousd=5,
        reasoning_nanousd=6,
        request_nanousd=7,
    )
    assert tuple(each.used for each in meters_of(sums)) == by_meter(
        input=25, cached_input=60, cache_write=10, cache_write_1h=5, output=20, reasoning=10, request=2
    )
    assert sum(each.cost_nanousd for each in meters_of(sums)) == 28


@given(st.integers(-(10**18), 10**18), st.integers(-(10**18), 10**18), st.integers(1, 31))
def test_changes_and_shares_never_fail(now: int, before: int, days: int) -> None:
    """Whatever was booked: a share, or nothing where there is nothing to compare with."""
    assert (change(now, before, days) is None) == (before <= 0)
    assert (share(now, before) is None) == (before <= 0)


def test_a_change_is_against_the_mean() -> None:
    """Seven days of 10 are a mean of 10; 15 is half as much again."""
    assert change(15, 70, 7) == Decimal("0.500")
    assert change(5, 10) == Decimal("-0.500")
    assert change(5, 0) is None
