"""What counts for what, row by row, by hand."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.ledger.entries import Entry, orphan_settlement, reversal_of, void_of
from cost.ledger.orphan_reaper import expiry_of
from cost.ledger.rollups import ROLLUP_KEY, by_key, roll_up, upserts
from cost.tables import COARSER_DAYS, ROLLUP_SUMS
from cost.times import DAY_US, HOUR_US, month_of
from tests.cost.entries import reserve, settle

NOON_US = reserve().at_us
DAY_OF = NOON_US - NOON_US % DAY_US


def counted(*entries: Entry) -> dict[str, int]:
    """The figures that are not 0, of entries that share a row."""
    (sums,) = roll_up(entries).days.values()
    return {name: figure for name, figure in zip(ROLLUP_SUMS, sums, strict=True) if figure}


TOKENS = {"input_tokens": 800, "output_tokens": 200}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            settle(served=True, input_nanousd=1_000_000),
            {"requests": 1, "attempts": 1, "served": 1, **TOKENS, "cost_nanousd": 1_000_000, "input_nanousd": 1_000_000}
            | {"baseline_nanousd": 4_000_000, "baseline_rows": 1},
        ),
        (
            settle(attempt=2, cost_nanousd=None, baseline_nanousd=None, usage_source="estimated"),
            {"attempts": 1, **TOKENS, "unpriced_attempts": 1, "estimated_attempts": 1},
        ),
        (
            settle(origin="shadow", baseline_nanousd=None, cheapest_nanousd=0, hosted_nanousd=3),
            {"attempts": 1, **TOKENS, "cost_nanousd": 1_000_000, "cheapest_rows": 1}
            | {"hosted_nanousd": 3, "hosted_rows": 1},
        ),
        (void_of(reserve()), {"requests": 1}),
        (
            orphan_settlement(reserve()),
            {"requests": 1, "attempts": 1, "input_tokens": 800, "cost_nanousd": 5_000_000}
            | {"request_nanousd": 5_000_000, "estimated_attempts": 1},
        ),
        (
            settle(entry="adjust", origin="true-up", usage_source="none", cost_nanousd=-7, baseline_nanousd=None),
            {**TOKENS, "cost_nanousd": -7},
        ),
    ],
)
def test_what_an_entry_counts(entry: Entry, expected: dict[str, int]) -> None:
    """Closing entries count requests and attempts, postings only amounts, and an unknown cost is never one of 0."""
    assert counted(reserve(), entry) == expected


@given(st.none() | st.integers(0, 10**12))
def test_a_reversal_takes_all_of_an_expiry_back(cost: int | None) -> None:
    """Together they count nothing at all."""
    expiry = expiry_of(reserve(cost_nanousd=cost, cache_write_1h_tokens=3, cache_write_tokens=5))
    assert counted(expiry, reversal_of(expiry)) == {}
    assert sum(msgspec.structs.asdict(expiry)[name] for name in ROLLUP_SUMS if name == "request_nanousd") == (cost or 0)


def test_hours_and_days_begin_in_utc() -> None:
    """The first microsecond of an hour belongs to it, the last one before does not; a day is its hours."""
    rolled = roll_up([settle("a", at_us=DAY_OF + HOUR_US), settle("b", at_us=DAY_OF + HOUR_US - 1)])
    start = ROLLUP_KEY.index("start_us")
    assert sorted(key[start] for key in rolled.hours) == [DAY_OF, DAY_OF + HOUR_US]
    assert [key[start] for key in rolled.days] == [DAY_OF]


OF_TARGET = ("default/llama-3-70b", "default/vllm", "team_payments/llama-3-70b", "team_payments/vllm")


@pytest.mark.parametrize(
    ("changes", "spent"),
    [
        ({"tag": "blue"}, {"default", "team_payments", "key_abc", "default/blue", *OF_TARGET}),
        ({"end_user": "ada"}, {"default", "team_payments", "key_abc", "team_payments/ada", *OF_TARGET}),
        ({"origin": "shadow"}, {"default", "team_payments", "key_abc", *OF_TARGET}),
        ({"origin": "correction"}, {"default", "team_payments", "key_abc", *OF_TARGET}),
        ({"origin": "reconciliation", "key_id": ""}, {"default", "team_payments", *OF_TARGET}),
        ({"origin": "true-up"}, set()),
        ({"origin": "idle"}, set()),
    ],
)
def test_what_budgets_count(changes: dict[str, Any], spent: set[str]) -> None:
    """Everything that was booked to a request or corrected since, for each of its scopes, but no true-up and no idle GPU."""
    spend = roll_up([settle(**changes), reserve(**changes)]).spend
    assert {scope_id: amount for (_, scope_id, _), amount in spend.items()} == dict.fromkeys(spent, 1_000_000)
    assert {day_us for _, _, day_us in spend} <= {DAY_OF}


def test_what_an_end_user_spent_is_summed_by_quarter_day_and_month() -> None:
    """Whatever has no known cost adds nothing, and each team's `ada` is another."""
    moments = [NOON_US, NOON_US + 1, NOON_US + HOUR_US, NOON_US + DAY_US]
    entries = [settle(f"r{place}", end_user="ada", at_us=at_us) for place, at_us in enumerate(moments)]
    entries += [settle("free", end_user="ada", cost_nanousd=None), settle("other", end_user="ada", team_id="team_b")]
    rolled = roll_up(entries)
    spent = {
        place[2]: amount for place, amount in rolled.spend.items() if place[:2] == ("end_user", "team_payments/ada")
    }
    assert spent == {DAY_OF: 3_000_000, DAY_OF + DAY_US: 1_000_000}
    quarters = {at: each for (_, of, at), each in rolled.quarters.items() if of == "team_payments/ada"}
    assert quarters == {NOON_US: 2_000_000, NOON_US + HOUR_US: 1_000_000, NOON_US + DAY_US: 1_000_000}
    month = month_of(NOON_US)
    assert rolled.months == {("team_payments", month, "ada"): 4_000_000, ("team_b", month, "ada"): 1_000_000}


def test_rows_of_one_kind_are_what_they_are_one_by_one() -> None:
    """A batch is summed column by column: its counts are those of its entries."""
    kinds = (
        {"served": True, "usage_source": "estimated"},
        {"cost_nanousd": None, "baseline_nanousd": None},
        {"attempt": 2, "entry": "void"},
    )
    for changes in kinds:
        entries = [settle(f"r{number}", **changes) for number in range(3)]
        alone = [counted(each) for each in entries]
        assert counted(*entries) == {name: 3 * figure for name, figure in alone[0].items()}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 3)), max_size=30))
def test_rows_are_written_in_one_order(places: list[tuple[str, str, int]]) -> None:
    """Whatever comes in whatever order, the tables and the rows in each are locked in the same order."""
    entries = [
        settle(f"r{number}", team_id=team, key_id=key, at_us=NOON_US + hour * HOUR_US)
        for number, (team, key, hour) in enumerate(places)
    ]
    found = upserts(roll_up(entries))
    assert found == upserts(roll_up(reversed(entries)))
    assert [table for table, _ in found] == (
        ["rollup_hour", "rollup_day", *(table.name for table in COARSER_DAYS), "spend_day", "spend_quarter"]
        if places
        else []
    )
    for _, rows in found:
        assert rows == sorted(rows)
    assert by_key({}) == []
