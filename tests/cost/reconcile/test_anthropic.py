"""Anthropic's exports in our shape."""

from decimal import Decimal
from typing import Any

import pytest

from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.statement import BadExport
from tests.cost.reconcile.exports import (
    DAY_US,
    anthropic_bucket,
    anthropic_cost,
    anthropic_usage,
    file_of,
    page,
)


def test_cache_reads_and_writes_come_on_top() -> None:
    """Each part stays what it is; nothing is taken off the uncached input."""
    creation = {"ephemeral_1h_input_tokens": 3, "ephemeral_5m_input_tokens": 20}
    usage = anthropic_usage("claude-sonnet-4-5-20250929", 100, 7, cache_creation=creation, cache_read_input_tokens=900)
    (line,) = read_anthropic([file_of(page(anthropic_bucket(usage)))]).usage
    assert line.tokens == (100, 900, 20, 3, 7)
    assert (line.day_us, line.model, line.key) == (DAY_US, "claude-sonnet-4-5-20250929", "")


def test_nulls_are_none() -> None:
    """A missing part is no tokens, and an ungrouped result has no model."""
    usage = anthropic_usage(None, 5, 1, cache_creation=None, cache_read_input_tokens=None)
    (line,) = read_anthropic([file_of(page(anthropic_bucket(usage)))]).usage
    assert (line.model, line.tokens) == ("", (5, 0, 0, 0, 1))


def test_amounts_are_cents() -> None:
    """`123.45` is a dollar and a bit, to the last digit."""
    costs = anthropic_bucket(
        anthropic_cost("claude-x", "uncached_input_tokens", "123.45"),
        anthropic_cost("claude-x", "cache_creation.ephemeral_1h_input_tokens", "0.000000123"),
        anthropic_cost("claude-x", "of_tomorrow", "1"),
    )
    first, second, third = read_anthropic([file_of(page(costs))]).costs
    assert (first.meter, first.amount_usd) == ("input", Decimal("1.2345"))
    assert (second.meter, second.amount_usd) == ("cache_write_1h", Decimal("0.00000000123"))
    assert (third.model, third.meter) == ("claude-x", "")


def test_what_is_no_tokens_is_another_charge() -> None:
    """Web search and code execution have a name of their own and no model."""
    cost = anthropic_cost("claude-x", None, "500", cost_type="web_search")
    (line,) = read_anthropic([file_of(page(anthropic_bucket(cost)))]).costs
    assert (line.charge, line.model, line.amount_usd) == ("web_search", "", Decimal(5))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"starting_at": "2026-11-20", "ending_at": "2026-11-21", "results": []}, "starting_at: a moment needs"),
        ({"starting_at": "soon", "ending_at": "later", "results": []}, "starting_at: a moment such as"),
        ({"starting_at": None, "ending_at": None, "results": []}, "starting_at: a moment such as"),
        ({"starting_at": "1900-01-01T00:00:00Z", "ending_at": "later", "results": []}, "starting_at: a moment after"),
        (anthropic_bucket({"model": "x"}), "results[0]: a result of usage_report"),
        (anthropic_bucket(anthropic_usage("x", 1, 1, cache_creation=7)), "cache_creation: an object"),
        (anthropic_bucket(anthropic_cost("x", None, "1", currency="EUR")), "currency: only US dollars"),
        (anthropic_bucket(anthropic_cost("x", None, "1,000")), "amount: an amount"),
    ],
)
def test_what_it_does_not_export_is_refused_by_place(value: Any, place: str) -> None:
    """The message names the place."""
    with pytest.raises(BadExport) as refused:
        read_anthropic([file_of(page(value))])
    assert place in str(refused.value)


def test_other_time_zones_mean_the_same_moment() -> None:
    """A bucket is of the UTC day that it is in."""
    bucket = {
        "starting_at": "2026-11-20T01:00:00+01:00",
        "ending_at": "2026-11-21T01:00:00+01:00",
        "results": [anthropic_usage("x", 1, 1)],
    }
    assert read_anthropic([file_of(page(bucket))]).usage_days == {DAY_US: 86_400_000_000}


_USAGE_TABLE = b"""\
usage_date_utc,model_version,api_key,workspace,usage_type,context_window,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,\
usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens,web_search_count,inference_geo,speed
2026-11-20,claude-sonnet-4-5,shop,Default,standard,200k,1000,20,30,400,500,0,global,
"""
_COSTS_TABLE = b"""\
usage_date_utc,model,workspace,api_key,usage_type,context_window,token_type,cost_usd,list_price_usd,cost_type,inference_geo,speed
2026-11-20,Claude Sonnet 4.5,Default,shop,message,200k,input_no_cache,1.50,1.50,token,global,
2026-11-20,,Default,shop,message,,,0.02,0.02,web_search,global,
"""


def test_a_table_of_the_console_says_what_the_api_says() -> None:
    """Its dollars are dollars, where the API has cents."""
    creation = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
    usage = anthropic_usage(
        "claude-sonnet-4-5", 1000, 500, cache_creation=creation, cache_read_input_tokens=400, api_key_id="shop"
    )
    tokens = anthropic_cost("Claude Sonnet 4.5", "uncached_input_tokens", "150")
    other = anthropic_cost(None, None, "2", cost_type="web_search")
    told = read_anthropic([("usage.csv", _USAGE_TABLE), ("costs.csv", _COSTS_TABLE)])
    meant = read_anthropic([file_of([page(anthropic_bucket(usage)), page(anthropic_bucket(tokens, other))])])
    assert (told.usage, told.costs) == (meant.usage, meant.costs)
    assert (told.usage_days, told.cost_days) == (meant.usage_days, meant.cost_days)


def test_a_table_without_days_is_none() -> None:
    """Something else as CSV is told so, with its place."""
    with pytest.raises(BadExport, match=r"other.csv: line 2.usage_date_utc: a day such as"):
        read_anthropic([("other.csv", b"name,amount\nSupport,3\n")])
