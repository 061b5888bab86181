"""Budgets are kept only where they can be found again, and limits are exact."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from cost.budgets.budget import BudgetStatus, checked, limit_from_usd
from cost.budgets.budget_errors import BadBudget
from tests.cost.budgets.crowd import NOON_US, budget


@pytest.mark.parametrize(("dollars", "nanousd"), [("500", 500 * 10**9), ("0.000000001", 1), (0, 0), ("1e9", 10**18)])
def test_limits_are_exact(dollars: Any, nanousd: int) -> None:
    """Dollars become whole nano-dollars."""
    assert limit_from_usd(dollars) == nanousd


@pytest.mark.parametrize("dollars", ["x", "-1", "1e10", "1e400000000", "0.0000000001", "NaN", "Infinity", ""])
def test_what_is_no_limit_is_refused(dollars: str) -> None:
    """Too fine, too large, negative, or no number: nothing is rounded, and nothing takes long."""
    with pytest.raises(BadBudget):
        limit_from_usd(dollars)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget_id": ""},
        {"budget_id": "a/b"},
        {"scope_id": ""},
        {"scope_id": "t" * 266},
        {"scope": "organisation", "scope_id": "other"},
        {"scope": "tag", "scope_id": "search"},
        {"scope": "tag", "scope_id": "other/search"},
        {"scope": "tag", "scope_id": "default/"},
        {"scope": "tag", "scope_id": "default/a b"},
        {"scope": "tag", "scope_id": "default/a\0"},
        {"scope": "tag", "scope_id": "default/\u202etag"},
        {"scope_id": "team\0"},
        {"webhook": "x\r\ny: z"},
        {"webhook": "w" * 65},
        {"limit_nanousd": -1},
        {"limit_nanousd": 10**18 + 1},
    ],
)
def test_what_could_not_be_found_again_is_refused(changes: dict[str, Any]) -> None:
    """Ids fit their columns, and a tag carries its organisation."""
    with pytest.raises(BadBudget):
        checked(msgspec.structs.replace(budget(), **changes))
    sound = budget(scope="tag", scope_id="default/search")
    assert checked(sound) == sound
    assert sound.shown_id == "search"


@pytest.mark.parametrize(
    ("spent", "limit", "share", "state"),
    [
        (0, 100, "0.0000", "open"),
        (79, 100, "0.7900", "open"),
        (80, 100, "0.8000", "warning"),
        (99_999, 100_000, "0.9999", "warning"),
        (100, 100, "1.0000", "spent"),
        (250, 100, "2.5000", "spent"),
        (0, 0, None, "spent"),
    ],
)
def test_how_a_budget_stands(spent: int, limit: int, share: str | None, state: str) -> None:
    """A share is rounded down: nothing is at 100 % before it is."""
    standing = BudgetStatus(budget=budget(limit), at_us=NOON_US, spent_nanousd=spent)
    assert (standing.share, standing.state) == (None if share is None else Decimal(share), state)
