"""How a reconciliation is told."""

from decimal import Decimal

import pytest

from cost.reconcile.matching import Matching, Reconciliation, compare
from cost.reconcile.openai import read_openai
from cost.reconcile.reconciliation_report import Tolerance, differing, reconciliation_as_json, table_rows, tolerance_of
from tests.cost.reconcile.exports import file_of, openai_bucket, openai_cost, openai_usage, page
from tests.cost.reconcile.ours import row


def reconciliation() -> Reconciliation:
    """Theirs is 10 tokens more, and half a cent and a nano-dollar."""
    pages = [
        page(openai_bucket(openai_usage("gpt-4o", 1010, 7), openai_usage("o9", 1, 0))),
        page(openai_bucket(openai_cost("gpt-4o, input", "1.005000001"), openai_cost("web search", 0.25))),
    ]
    ours = [
        row(tokens=(1000, 0, 0, 0, 7), meters=(10**9, 0, 0, 0, 0, 0)),
        row(target_id="gone", tokens=(4, 0, 0, 0, 0)),
    ]
    return compare(read_openai([file_of(pages)]), ours, Matching(upstream_models={"gpt-4o": ("gpt-4o",)}))


def test_the_table_has_a_row_for_each_meter_and_totals() -> None:
    """Dollars have as many decimals as tell all of them exactly; what is on one side only says so."""
    assert [" | ".join(cells) for cells in table_rows(reconciliation())] == [
        "2026-11-20 | gone |  | input | 0 | 4 | -4 | only ours",
        "2026-11-20 | gone |  | cost (USD) | 0.000000000 | 0.000000000 | 0.000000000 | only ours",
        "2026-11-20 | gpt-4o |  | input | 1,010 | 1,000 | +10 | ",
        "2026-11-20 | gpt-4o |  | output | 7 | 7 | 0 | ",
        "2026-11-20 | gpt-4o |  | cost (USD) | 1.005000001 | 1.000000000 | +0.005000001 | ",
        "2026-11-20 | o9 |  | input | 1 | 0 | +1 | only theirs",
        "2026-11-20 | charge/web search |  | cost (USD) | 0.250000000 | 0.000000000 | +0.250000000 | only theirs",
        "total |  |  | input | 1,011 | 1,004 | +7 | ",
        "total |  |  | output | 7 | 7 | 0 | ",
        "total |  |  | cost (USD) | 1.255000001 | 1.000000000 | +0.255000001 | ",
    ]


def test_json_has_exact_texts_for_dollars() -> None:
    """No float on the way, and tokens by meter."""
    plain = reconciliation_as_json(reconciliation(), Tolerance())
    assert plain["agrees"] is False
    assert [line["model"] for line in plain["lines"]] == ["gone", "gpt-4o", "o9", "charge/web search"]
    assert plain["lines"][1]["cost_usd"] == {
        "theirs": "1.005000001",
        "ours": "1.000000000",
        "difference": "0.005000001",
    }
    assert plain["lines"][1]["tokens"]["difference"]["input"] == 10
    assert plain["total"]["cost_usd"]["difference"] == "0.255000001"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("0", ["gone", "gpt-4o", "o9", "charge/web search"]),
        ("0.01", ["gone", "gpt-4o", "o9", "charge/web search"]),
        ("1", ["gone", "gpt-4o", "o9"]),
        ("1%", ["gone", "o9", "charge/web search"]),
        ("0.4%", ["gone", "gpt-4o", "o9", "charge/web search"]),
        ("100%", ["gone"]),
    ],
)
def test_a_tolerance_forgives_dollars_or_a_share(text: str, left: list[str]) -> None:
    """Dollars forgive no token; a share is of what they say."""
    assert [line.model for line in differing(reconciliation(), tolerance_of(text))] == left


def test_a_tolerance_is_a_number() -> None:
    """Anything else is refused; a share of a share is exact."""
    assert tolerance_of(" 0.5 %").share == Decimal("0.005")
    for text in ("", "much", "-1", "nan", "inf", "101%", "1e99"):
        with pytest.raises(ValueError, match="is no tolerance"):
            tolerance_of(text)
