"""The section `cost.pools`: exact numbers, and one pool for each token."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from cost.config import CostSection
from cost.fleet.pool_config import pool_of_target
from tests.cost.fleet.pools import pool


def section(*pools: Any) -> CostSection:
    return CostSection.model_validate({"pools": [each.model_dump() for each in pools]})


def test_numbers_are_taken_as_they_are_written() -> None:
    """A float of a YAML reader is its shortest text, not the binary fraction behind it."""
    found = pool(usd_per_gpu_hour=2.95, overhead=1.3)
    assert (found.usd_per_gpu_hour, found.overhead) == (Decimal("2.95"), Decimal("1.3"))


def test_pools_are_told_apart() -> None:
    """Every target leads to its pool."""
    found = section(pool(), pool(name="l4", targets=["small", "tiny"]))
    assert pool_of_target(found.pools) == {"llama": "h100", "small": "l4", "tiny": "l4"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"targets": ["other"]}, "two pools are called `h100`"),
        ({"name": "l4"}, "`llama` is in the pools `h100` and `l4`"),
    ],
)
def test_nothing_is_paid_for_twice(other: dict[str, Any], message: str) -> None:
    """Two pools of one name, or one target in two, refuse to start."""
    with pytest.raises(ValidationError, match=message):
        section(pool(), pool(**other))


@pytest.mark.parametrize(
    "wrong",
    [
        {"usd_per_gpu_hour": -1},
        {"usd_per_gpu_hour": "0.0000000001"},
        {"overhead": 0.9},
        {"gpus_per_replica": 0},
        {"targets": []},
        {"name": "a/b"},
        {"seconds_per_million": {"input": 1, "output": "0.0000001"}},
        {"seconds_per_million": {"input": "NaN", "output": 1}},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """No negative rate, none finer than a nano-dollar, no weight finer than a picosecond a token."""
    with pytest.raises(ValidationError):
        pool(**wrong)


def test_a_price_that_is_none_is_told_what_there_is() -> None:
    """Somebody may take it for the price of tokens, which stands with the model."""
    assert pool().price == "margin"
    assert pool(price="average").price == "average"
    for wrong in ("0.845", 0.845, None, {"input": 1}):
        with pytest.raises(ValidationError, match=r"must be `margin`.*or `average`.*under `prices`"):
            pool(price=wrong)
