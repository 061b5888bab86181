"""What a period cost: every way to add its lines up gives the books' own sum."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.period import PeriodReader, divided, idle_of, spent
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader, UsageSums
from cost.times import DAY_US
from tests.cost.reports.two_organisations import DAY, OTHERS, TEAM_A, WHOLE, idle, keep, many, two_days

END = DAY + 5 * DAY_US


async def booked_sums(engine: AsyncEngine, scope: ReadScope) -> UsageSums:
    found = (await UsageReader(engine).page(UsageQuery(scope=scope, start_us=DAY, end_us=END))).totals
    assert found is not None
    return found


@pytest.mark.parametrize("by", ["team", "key", "model", "provider", "tier", "tag"])
async def test_groups_and_idle_are_the_whole(engine: AsyncEngine, by: Any) -> None:
    """However a period is divided, its groups and the idle row add up to what the roll-ups say, to the nano-dollar."""
    await keep(engine, [*many(300), idle("idle/h100/1"), idle("idle/h100/2", at_us=DAY + DAY_US, cost_nanousd=-7)])
    for scope in (WHOLE, TEAM_A, OTHERS):
        lines = await PeriodReader(engine).lines(scope, DAY, END, (by,))
        whole, sums = spent(lines), await booked_sums(engine, scope)
        groups = [*divided(lines, by).values(), idle_of(lines)]
        for name in ("cost_nanousd", "requests", "output_tokens", "baseline_nanousd", "unpriced_attempts"):
            told = sum(getattr(group, name) for group in groups)
            assert told == getattr(whole, name) == getattr(sums, name)


async def test_parts_tell_costs_apart(engine: AsyncEngine) -> None:
    """Requests, shadow calls, corrections, reconciliations, the true-up and idle hours each stand by themselves."""
    origins = ["caller", "shadow", "correction", "reconciliation", "true-up", "idle"]
    entries = [
        idle(f"posting/{place}", origin=origin, tier="x", cost_nanousd=10**place)
        for place, origin in enumerate(origins)
    ]
    await keep(engine, entries)
    lines = await PeriodReader(engine).lines(WHOLE, DAY, END, ())
    assert spent(lines).parts == {
        "requests": 1,
        "shadow": 10,
        "corrections": 100,
        "reconciliations": 1_000,
        "true-up": 10_000,
        "idle": 100_000,
    }
    assert spent(lines).part("requests", "idle") == 100_001


async def test_a_team_sees_its_own_days_only(engine: AsyncEngine) -> None:
    """Another organisation's team of the same name, and days outside of the range, are in no line."""
    await keep(engine, two_days())
    first = await PeriodReader(engine).lines(TEAM_A, DAY, DAY + DAY_US, ("model",))
    assert {(line.target_id, line.requests) for line in first} == {("small", 2), ("large", 1)}
    reader = PeriodReader(engine)
    assert await reader.dearest_teams(WHOLE, DAY, END, 1) == ("team_a",)
    assert await reader.dearest_teams(WHOLE, DAY, END, 9) == ("team_a", "team_b")
    one = await reader.days(WHOLE, DAY, END, (), ["team_b"])
    assert {(each.day_us, each.team_id, each.is_idle) for each in one} == {
        (DAY, None, False),
        (DAY, "team_b", False),
        (DAY, None, True),
        (DAY + DAY_US, None, False),
    }
    days = await reader.days(WHOLE, DAY, END, (), ["team_a", "team_b", ""])
    assert sum(each.cost_nanousd for each in one) == sum(each.cost_nanousd for each in days)
    assert {(each.day_us, each.team_id, each.is_idle) for each in days} == {
        (DAY, "team_a", False),
        (DAY, "team_b", False),
        (DAY, "", True),
        (DAY + DAY_US, "team_a", False),
    }
    assert sum(each.cost_nanousd for each in days) == (await booked_sums(engine, WHOLE)).cost_nanousd


async def test_what_has_no_price_is_not_free(engine: AsyncEngine) -> None:
    """Where all that is known is that something has no price, cost and saving are unknown."""
    await keep(engine, [e for e in two_days() if e.request_id == "a4"])
    found = spent(await PeriodReader(engine).lines(WHOLE, DAY, END, ("team",)))
    assert (found.known_cost_nanousd, found.saving_nanousd, found.unpriced_attempts) == (None, None, 1)


async def test_a_range_must_be_sound(engine: AsyncEngine) -> None:
    """Whole days, in order, and no more than a year."""
    reader = PeriodReader(engine)
    for start, end in ((DAY + 1, END), (END, DAY), (DAY, DAY), (DAY, DAY + 400 * DAY_US)):
        with pytest.raises(BadQuery):
            await reader.lines(WHOLE, start, end, ())
