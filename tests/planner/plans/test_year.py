"""A year in whole nodes, against a calculation by hand."""

import math
from decimal import Decimal
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plans.comparators import comparator_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, plan
from planner.plans.year import (
    Elsewhere,
    Hours,
    ReservedPrice,
    Year,
    elsewhere_at,
    hours_given,
    nodes_for,
    reserved_prices,
    usual_hours,
    year_of,
)
from tests.planner.plans.questions import question

TARGET = Decimal("0.40")


@cache
def planned(tp: int = 2, *, spare: int = 0) -> Plan:
    return plan(question(tp=tp, requests_per_s=200.0, spare=spare))


def year(
    found: Plan,
    hours: Hours,
    *,
    reserved: str | None = "2.35",
    elsewhere: tuple[Elsewhere, ...] = (),
    fewest: float = 0.0,
) -> Year:
    price = (
        None if reserved is None else ReservedPrice(usd_per_hour=Decimal(reserved), source="as given", as_of="as given")
    )
    return year_of(found, hours=hours, reserved=price, elsewhere=elsewhere, saving=TARGET, fewest_requests_per_s=fewest)


def day(*shares: float) -> Hours:
    return hours_given(",".join(map(str, shares)))


OFFICE = (*[0.1] * 8, *[1.0] * 10, *[0.4] * 6)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_nodes_are_whole_and_of_eight(tp: int) -> None:
    """Four replicas of two GPUs to a node, two of four, one of eight."""
    found = planned(tp)
    assert nodes_for(found, found.requests_per_s) == math.ceil(found.replicas * tp / 8)
    # One request a second still takes a node.
    assert nodes_for(found, 1e-6) == 1


def test_the_bills_are_the_hours_times_the_prices() -> None:
    """Each hour by hand: so many requests, replicas, nodes, and dollars."""
    found = planned(spare=1)
    (chosen,) = [each for each in found.candidates if each.tp == 2 and each.pp == 1]
    nodes = []
    for share in OFFICE:
        replicas = max(1, math.ceil(200 * share / chosen.rate)) + 1
        nodes.append(math.ceil(replicas / 4))
    got = year(found, day(*OFFICE))
    reserved, hourly, both = got.purchases
    assert (got.nodes, got.fewest_nodes, got.gpus) == (max(nodes), min(nodes), 8 * max(nodes))
    assert reserved.usd_per_year == max(nodes) * 8 * Decimal("2.35") * 8_760
    assert float(hourly.usd_per_year) == pytest.approx(sum(nodes) * 8 * 2.95 * 365)
    ways = [sum(base * 2.35 + max(0, each - base) * 2.95 for each in nodes) * 8 * 365 for base in range(max(nodes) + 1)]
    assert float(both.usd_per_year) == pytest.approx(min(ways))
    assert got.cheapest == both


def test_a_year_is_not_the_peak_all_the_time() -> None:
    """Requests are the hours' mean of the peak, so what they cost elsewhere is, too."""
    got = year(planned(), day(*OFFICE), elsewhere=(elsewhere_at(comparator_named("mine=1/2"), planned(), batch=False),))
    mean = sum(OFFICE) / 24
    work = planned().work
    assert got.requests == pytest.approx(200 * mean * 365 * 86_400, abs=1)
    (mine,) = got.alternatives
    dollars = (work.input_tokens * 1 + work.output_tokens * 2) / 1e6
    assert float(mine.usd_per_year) == pytest.approx(dollars * got.requests, rel=1e-6)
    assert got.cheapest is not None
    assert mine.saving is not None
    assert float(mine.saving) == pytest.approx(1 - float(got.cheapest.usd_per_year / mine.usd_per_year))
    assert mine.verdict == ("met" if mine.saving >= TARGET else "not met")


def test_no_hour_has_less_than_one_teams_peak() -> None:
    """A team may come at night, sooner than a node starts."""
    found = planned()
    low = year(found, day(*OFFICE))
    kept = year(found, day(*OFFICE), fewest=found.requests_per_s / 2)
    assert kept.fewest_nodes == nodes_for(found, found.requests_per_s / 2) > low.fewest_nodes
    assert kept.nodes == low.nodes


@given(
    shares=st.lists(st.integers(0, 100), min_size=23, max_size=23),
    reserved=st.decimals("0.01", "6", places=2),
)
@settings(max_examples=60, deadline=None)
def test_buying_both_ways_is_never_dearer_than_either(shares: list[int], reserved: Decimal) -> None:
    """Whatever the hours and the price."""
    got = year(planned(), day(1, *(each / 100 for each in shares)), reserved=str(reserved))
    bills = {each.how: each.usd_per_year for each in got.purchases}
    assert bills["both"] <= min(bills.values())


def test_without_a_price_there_is_no_bill() -> None:
    """Of the kind that has none; the source says what to give."""
    got = year(planned(), day(*OFFICE), reserved=None)
    assert [each.how for each in got.purchases] == ["on demand by the hour"]
    assert "--reserved-usd-hour" in got.reserved_source
    nothing = year(msgspec.structs.replace(planned(), cost=None), day(*OFFICE), reserved=None)
    assert (nothing.purchases, nothing.cheapest) == ((), None)


def test_the_published_week_and_prices_tell_where_they_are_from() -> None:
    """Shares of the busiest hour, of whole days; prices of GPUs that are known, each with its day."""
    hours = usual_hours()
    assert len(hours.hours) == 168
    assert max(hours.hours) == 1
    assert min(hours.hours) > 0
    assert round(hours.mean, 3) == Decimal("0.616")
    assert "ServeGen" in hours.source
    for each in reserved_prices().values():
        assert each.url.startswith("https://")
        assert each.as_of >= "2026"
        assert 0 < each.usd_per_hour < 10


@pytest.mark.parametrize("text", ["", "1", "1,0.5", ",".join(["0.5"] * 24), ",".join(["1"] * 23 + ["2"]), "a," * 24])
def test_hours_that_are_none_are_refused(text: str) -> None:
    """With what is wanted."""
    with pytest.raises(PlanRefused, match="--hours is 24 or 168 shares"):
        hours_given(text)
