"""The report: what is lost a month, in tokens and in exact dollars, and what to do about it."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from cost.fleet.bill import usd_per_million
from cost.fleet.pool_config import PoolSection, SecondsPerMillion
from cost.price_book.book import DatedPrice, price_book
from cost.prices import Price
from cost.times import DAY_US
from selfhosted.prefixes.prefix_report import advice_for, prefixes_as_json, rates_of, stability
from selfhosted.prefixes.store import PrefixUsage

DAY = 20_000 * DAY_US
POOL = PoolSection(
    name="h100",
    targets=("llama",),
    gpus_per_replica=4,
    usd_per_gpu_hour=Decimal("2.95"),
    overhead=Decimal("1.3"),
    seconds_per_million=SecondsPerMillion(input=Decimal("37.8"), cached_input=Decimal("1.8"), output=Decimal(200)),
)
PRICE = Price(
    version="v",
    input_nanousd=2_500_000_000,
    cached_input_nanousd=1_250_000_000,
    cache_write_nanousd=0,
    output_nanousd=1,
)
RATES = rates_of([POOL], price_book([DatedPrice(target_id="gpt", price=PRICE, source="config")]), DAY)


def habit(target: str = "llama", **changes: object) -> PrefixUsage:
    usual = PrefixUsage(
        organisation_id="acme",
        team_id="t",
        target_id=target,
        skeleton="ab" * 16,
        first_day_us=DAY,
        requests=1_000,
        prompt_tokens=3_000_000,
        broken=900,
        broken_tokens=1_800_000,
        first_break_tokens=12,
        kinds=("date", "time"),
    )
    return msgspec.structs.replace(usual, **changes)


def report(*habits: PrefixUsage, days: int = 3) -> dict[str, Any]:
    end_us = DAY + days * DAY_US
    return prefixes_as_json(stability(habits, RATES, start_us=DAY, end_us=end_us, now_us=end_us))


def test_our_own_time_has_its_price() -> None:
    """1.8 million tokens in three days are 18 million a month; each million takes 36 s of four GPUs longer."""
    (found,) = report(habit())["findings"]
    assert found["tokens_a_month"] == 18_000_000
    # 36 s of 4 GPUs at 2.95 $ an hour, and 30 % on top.
    assert found["usd_a_month"] == 18 * Decimal(36) * 4 * Decimal("2.95") * Decimal("1.3") / 3_600
    planned = usd_per_million(POOL, Fraction(1))
    assert found["usd_a_month"] == pytest.approx(18 * (planned["input"] - planned["cached_input"]), rel=Decimal("1e-5"))
    assert found["share_broken"] == Decimal("0.9")
    assert found["advice"] == "move the date and the time to the end of the system prompt or into the user message"


def test_an_api_has_its_list_price() -> None:
    """What a cached token is cheaper by, by the list."""
    (found,) = report(habit("gpt"))["findings"]
    assert found["usd_a_month"] == 18 * Decimal("1.25")


def test_what_nobody_knows_is_not_nothing() -> None:
    """Without a price the cost is unknown, and told so in the team's sum; what loses nothing costs nothing."""
    whole = report(habit("other"), habit("gpt"), habit("third", broken=0, broken_tokens=0, kinds=()))
    costs = {each["target_id"]: each["usd_a_month"] for each in whole["findings"]}
    assert costs == {"other": None, "gpt": Decimal("22.5"), "third": 0}
    (team,) = whole["teams"]
    assert (team["usd_a_month"], team["unpriced"], team["tokens_a_month"]) == (Decimal("22.5"), 1, 36_000_000)


def test_a_month_is_counted_from_the_first_day_seen() -> None:
    """Who began yesterday is not told a thirtieth; a first morning counts as a whole day."""
    week = {"start_us": DAY - 6 * DAY_US, "end_us": DAY + DAY_US}
    found = stability([habit()], RATES, now_us=DAY + DAY_US // 2, **week)
    assert (found.days, found.findings[0].tokens_a_month) == (Decimal(1), 30 * 1_800_000)
    found = stability([habit(), habit(first_day_us=DAY - DAY_US)], RATES, now_us=DAY + DAY_US // 2, **week)
    assert found.days == Decimal("1.50")


def test_the_dearest_stands_first() -> None:
    """Findings and teams are ordered by what they lose."""
    whole = report(habit(team_id="small", broken_tokens=5), habit(team_id="large"), habit("gpt", team_id="larger"))
    assert [each["team_id"] for each in whole["findings"]] == ["larger", "large", "small"]
    assert [each["team_id"] for each in whole["teams"]] == ["larger", "large", "small"]


def test_nothing_was_seen() -> None:
    """An empty report is one, and JSON."""
    assert json.loads(msgspec.json.encode(report()))["findings"] == []


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        (("date",), "the date"),
        (("clock",), "the time"),
        (("hex", "uuid"), "the session's or request's id"),
        (("number", "other"), "the number and what differs from request to request"),
        (("date", "number", "uuid"), "the date, the session's or request's id and the number"),
    ],
)
def test_advice(kinds: tuple[str, ...], what: str) -> None:
    """It names what varies, and where it should stand."""
    assert advice_for(kinds) == f"move {what} to the end of the system prompt or into the user message"
    assert advice_for(()) == ""
