"""What a provider itself tells that a request costs."""

from typing import Any

import pytest

from cost.meters import ZERO_METERS
from cost.told_cost import ToldCost, differs, divided, possible_nanousd

OPENROUTER = ToldCost(fields=("cost",), with_own_key=("cost_details.upstream_inference_cost",))

ODD: tuple[Any, ...] = (-1, True, "much", float("nan"), float("inf"), 1e9, {}, [1], None)


@pytest.mark.parametrize(
    ("where", "usage", "nanousd"),
    [
        (
            OPENROUTER,
            {"cost": 0.00014, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.00014}},
            140_000,
        ),
        (
            OPENROUTER,
            {"cost": 0.000007, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.00014}},
            147_000,
        ),
        (OPENROUTER, {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, 0),
        (OPENROUTER, {"cost": "0.5"}, 500_000_000),
        (OPENROUTER, {"cost": 1e-9}, 1),
        (ToldCost(fields=("cost.total_cost",)), {"cost": {"total_cost": 0.006, "request_cost": 0.005}}, 6_000_000),
        (ToldCost(fields=("cost_in_usd_ticks",), per_usd=10_000_000_000), {"cost_in_usd_ticks": 37_756_000}, 3_775_600),
        (ToldCost(fields=("estimated_cost",)), {"prompt_tokens": 3}, None),
        *((OPENROUTER, {"cost": odd}, None) for odd in ODD),
    ],
)
def test_told(where: ToldCost, usage: dict[str, Any], nanousd: int | None) -> None:
    """Figures are exact to the nano-dollar, and what cannot be true is as if nothing was told."""
    assert where.nanousd(usage) == nanousd


def test_possible() -> None:
    """A bill of ten times our figure and a dollar is believed, what is beyond is disputed; without a figure all is believed."""
    assert possible_nanousd(5_000, 4_000) == (5_000, 0)
    assert possible_nanousd(3_000_000_000, 100_000_000) == (2_000_000_000, 1_000_000_000)
    assert possible_nanousd(3_000_000_000, None) == (3_000_000_000, 0)


@pytest.mark.parametrize("told", [0, 1, 999, 1_000, 1_001, 5_000_000])
def test_divided(told: int) -> None:
    """Meters add up to what was told, and none is below zero."""
    costs = (100, *ZERO_METERS[1:-2], 900, 0)
    found = divided(told, costs)
    assert sum(found) == told
    assert min(found) >= 0
    assert len(found) == len(costs)
    assert divided(told, ZERO_METERS)[-1] == told


def test_differs() -> None:
    """Rounding is no difference."""
    assert not differs(1_000_000, 1_000_500)
    assert differs(1_000_000, 1_100_000)
    assert not differs(10, 900)
