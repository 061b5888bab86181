"""Budgets are kept only where they can be found again, and limits are exact."""

import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from cost.budgets.budget import BudgetStatus, Outlook, checked, limit_from_usd, nearest, split_id
from cost.budgets.budget_errors import BadBudget
from cost.scopes import LONGEST_ID
from cost.times import iso
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
        (7_999, 10_000, "0.7999", "open"),
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


def test_what_is_not_said_of_a_budget() -> None:
    """Nothing is raised, nothing is held, and only a hard one refuses."""
    usual = budget()
    assert (usual.raised_nanousd, usual.raised_until_us, usual.on_exhausted, usual.webhook) == (0, 0, "refuse", "")
    assert BudgetStatus(budget=usual, at_us=NOON_US, spent_nanousd=0).held_nanousd == 0
    assert (usual.hard, budget(kind="soft").hard) == (True, False)


def test_a_rotated_key_goes_on_with_the_first_ones_budget() -> None:
    """Another id with a dot is what it is."""
    assert budget(scope="key", scope_id="key_1.2").scope_id == "key_1"
    assert budget(scope="team", scope_id="team.1").scope_id == "team.1"


def test_a_raise_ends_by_itself() -> None:
    """Up to its end, and never below what the budget has by itself."""
    raised = budget(100, raised_nanousd=150, raised_until_us=NOON_US)
    assert [raised.limit_at(at_us) for at_us in (NOON_US - 1, NOON_US)] == [150, 100]
    assert msgspec.structs.replace(raised, limit_nanousd=200).limit_at(NOON_US - 1) == 200
    assert budget(100).limit_at(0) == 100


def test_nothing_spent_reaches_no_share_of_nothing() -> None:
    """A limit of 0 warns nobody before something was booked."""
    none, some = (BudgetStatus(budget=budget(0), at_us=NOON_US, spent_nanousd=spent) for spent in (0, 1))
    assert [each.reached(80) for each in (none, some)] == [False, True]


@pytest.mark.parametrize(
    ("spent", "outlook", "told"),
    [
        (100, None, (False, None, None)),
        (99, None, (None, None, None)),
        (99, Outlook(expected_nanousd=120, runs_out_us=5), (False, 120, 5)),
        (99, Outlook(expected_nanousd=99, runs_out_us=None), (True, 99, None)),
        (100, Outlook(expected_nanousd=120, runs_out_us=5), (False, 120, None)),
    ],
)
def test_what_is_expected_of_a_budget(spent: int, outlook: Outlook | None, told: tuple[Any, ...]) -> None:
    """What is used up already runs out on no day to come."""
    standing = BudgetStatus(budget=budget(100), at_us=NOON_US, spent_nanousd=spent, outlook=outlook)
    assert (standing.lasts, standing.expected_nanousd, standing.runs_out_us) == told


def test_the_period_of_a_standing() -> None:
    """Of the month that its moment lies in; what never renews has no next one."""
    month, lifetime = (
        BudgetStatus(budget=budget(period=period), at_us=NOON_US, spent_nanousd=0) for period in ("month", "lifetime")
    )
    assert (iso(month.start_us), iso(month.resets_us)) == ("2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z")
    assert (month.renews_us, lifetime.renews_us) == (month.resets_us, None)


def test_the_first_level_with_a_budget_of_a_kind_holds() -> None:
    """Each period and kind by itself; a second one of the same level gives way too."""
    own = [budget(budget_id="a"), budget(budget_id="b", kind="soft")]
    every = [budget(budget_id="c"), budget(budget_id="d", period="day"), budget(budget_id="e", period="day")]
    assert [each.budget_id for each in nearest(own, every)] == ["a", "b", "d"]


def test_a_budget_for_each_one_is_known_by_whom_it_holds_for() -> None:
    """By the stored id and whom, which are told apart again."""
    each = budget(scope="end_user", scope_id="team_a/*")
    made = each.of_each("team_a/ada/1")
    assert (each.for_each, made.for_each, made.scope_id) == (True, False, "team_a/ada/1")
    assert (split_id(made.budget_id), split_id("b1")) == (("b1", "team_a/ada/1"), ("b1", ""))
    assert budget(scope="end_user", scope_id="*").for_each
    assert not budget(scope="team", scope_id="*").for_each


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_nanousd": 0},
        {"limit_nanousd": 10**18},
        {"scope_id": "t"},
        {"scope_id": "t" * LONGEST_ID},
        {"webhook": "w"},
        {"webhook": "w" * 64},
        {"budget_id": "b" * 64},
        {"scope": "organisation", "scope_id": "default"},
        {"scope": "end_user", "scope_id": "*"},
        {"scope": "end_user", "scope_id": "team_a/*"},
        {"scope": "end_user", "scope_id": "team_a/ada"},
        {"period": "prepaid"},
        {"scope": "team_model", "scope_id": "team_a/m", "on_exhausted": "downgrade"},
        {"scope": "team_model", "scope_id": "team_a/m", "kind": "soft"},
        {"kind": "soft", "on_exhausted": "downgrade"},
    ],
)
def test_what_can_be_found_again_is_kept(changes: dict[str, Any]) -> None:
    """The least and the most of each field."""
    sound = budget(**changes)
    assert checked(sound) == sound


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scope_id": "t" * (LONGEST_ID + 1)}, "printable characters"),
        ({"budget_id": "b" * 65}, "a budget's id"),
        ({"scope": "end_user", "scope_id": "team_a/*", "webhook": "w"}, "warns nobody"),
        ({"scope": "end_user", "scope_id": "team_a/*", "period": "prepaid"}, "one's own"),
        ({"scope": "end_user", "scope_id": "team_a/"}, "TEAM/END_USER, TEAM"),
        ({"scope": "end_user", "scope_id": "/ada"}, "TEAM/END_USER, TEAM"),
        ({"scope": "end_user", "scope_id": "*/ada"}, "TEAM/END_USER, TEAM"),
        ({"scope": "end_user", "scope_id": "team_a/a b"}, "as the books have it"),
        ({"scope": "team_model", "scope_id": "team_a/m", "kind": "soft", "on_exhausted": "downgrade"}, "only warns"),
    ],
)
def test_what_cannot_be_kept_says_why(changes: dict[str, Any], says: str) -> None:
    """One character too many, or nobody that it could be for."""
    with pytest.raises(BadBudget, match=re.escape(says)):
        checked(budget(**changes))
