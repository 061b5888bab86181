"""OpenAI's exports in our shape."""

from decimal import Decimal
from typing import Any

import pytest

from cost.reconcile.openai import read_openai
from cost.reconcile.statement import BadExport
from tests.cost.reconcile.exports import DAY_US, file_of, openai_bucket, openai_cost, openai_usage, page


def test_inclusive_buckets_become_parts() -> None:
    """Cached and cache-written tokens are parts of the input."""
    usage = openai_usage(
        "gpt-4o", 1000, 500, input_cached_tokens=800, input_cache_write_tokens=50, num_model_requests=5, api_key_id="k"
    )
    (line,) = read_openai([file_of(page(openai_bucket(usage)))]).usage
    assert line.tokens == (150, 800, 50, 0, 500)
    assert (line.day_us, line.model, line.key, line.requests) == (DAY_US, "gpt-4o", "k", 5)


def test_embeddings_have_no_output_and_images_no_tokens() -> None:
    """What is counted in tokens is taken; what is not is left out and told."""
    embeddings = {"object": "organization.usage.embeddings.result", "input_tokens": 7, "num_model_requests": 1}
    images = {"object": "organization.usage.images.result", "images": 3, "num_model_requests": 3}
    told = read_openai([file_of([page(openai_bucket(embeddings)), page(openai_bucket(images))])])
    assert [line.tokens for line in told.usage] == [(7, 0, 0, 0, 0)]
    assert told.notes == ("usage of images is not counted in tokens and was left out",)


@pytest.mark.parametrize(
    ("item", "model", "meter", "charge"),
    [
        ("gpt-4o-2024-08-06, input", "gpt-4o-2024-08-06", "input", ""),
        ("gpt-4o-2024-08-06, cached input", "gpt-4o-2024-08-06", "cached_input", ""),
        ("gpt-4o-2024-08-06, Output", "gpt-4o-2024-08-06", "output", ""),
        ("web search tool calls", "", "", "web search tool calls"),
        ("gpt-4o, searches", "", "", "gpt-4o, searches"),
        (None, "", "", ""),
    ],
)
def test_a_line_item_names_a_model_and_a_meter_or_another_charge(
    item: str | None, model: str, meter: str, charge: str
) -> None:
    """What is no known meter is another charge by its own name."""
    (line,) = read_openai([file_of(page(openai_bucket(openai_cost(item, 1))))]).costs
    assert (line.model, line.meter, line.charge) == (model, meter, charge)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (0.06, "0.06"),
        (1e-7, "1e-7"),
        (3, "3"),
        (-2.5, "-2.5"),
        ("0.0054", "0.0054"),
    ],
)
def test_dollars_are_exactly_what_is_written(value: Any, amount: str) -> None:
    """Floats with their noise, whole numbers, credits, and the texts of newer exports."""
    (line,) = read_openai([file_of(page(openai_bucket(openai_cost("x", value))))]).costs
    assert line.amount_usd == Decimal(amount)


def test_a_project_stands_for_a_key() -> None:
    """Where results are grouped by project, that is what a map can name."""
    usage = openai_usage("gpt-4o", 1, 1, project_id="proj_1")
    assert read_openai([file_of(page(openai_bucket(usage)))]).usage[0].key == "proj_1"


_COSTS_TABLE = b"""\
start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item,project_id,organization_id,organization_name
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,0.8958740000000000,usd,"gpt-4o-2024-08-06, input",,org-1,Personal
1795219200,1795305600,2026-11-21T00:00:00+00:00,2026-11-22T00:00:00+00:00,,,,,,
"""
_USAGE_TABLE = b"""\
start_time,end_time,project_id,num_model_requests,user_id,api_key_id,model,batch,input_tokens,output_tokens,input_cached_tokens
1795132800,1795219200,,5,,key_1,gpt-4o-2024-08-06,False,1000,500,800
1795219200,1795305600,,,,,,,,,
"""


def test_a_table_of_the_dashboard_says_what_the_api_says() -> None:
    """Usage and costs as CSV; a day without figures is a day of the file."""
    usage = openai_usage(
        "gpt-4o-2024-08-06", 1000, 500, input_cached_tokens=800, num_model_requests=5, api_key_id="key_1", batch="False"
    )
    cost = openai_cost("gpt-4o-2024-08-06, input", "0.8958740000000000")
    pages = [page(openai_bucket(each), openai_bucket(day=1)) for each in (usage, cost)]
    told = read_openai([("usage.csv", b"\xef\xbb\xbf" + _USAGE_TABLE), ("costs.csv", _COSTS_TABLE)])
    meant = read_openai([file_of(pages)])
    assert (told.usage, told.costs) == (meant.usage, meant.costs)
    assert (told.usage_days, told.cost_days) == (meant.usage_days, meant.cost_days)
    assert len(told.cost_days) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((b"0.8958740000000000", b"cheap"), r"costs.csv: line 2.results\[0\].amount.value: an amount is expected"),
        ((b"usd,", b"eur,"), "only US dollars"),
        ((b"start_time,", b"begins,"), r"costs.csv: line 2.start_time: a Unix time"),
        ((b"Personal\n", b"Personal,more\n"), "costs.csv: line 2: more cells than headings"),
        ((b"amount_value", b"input_tokens"), r"line 2.results\[0\].input_tokens: a whole number"),
        ((b"amount_value", b"num_model_requests"), "costs.csv: line 2: input_tokens is expected here, or amount_value"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_line(change: tuple[bytes, bytes], told: str) -> None:
    """As with pages: nothing is guessed."""
    with pytest.raises(BadExport, match=told):
        read_openai([("costs.csv", _COSTS_TABLE.replace(*change))])
