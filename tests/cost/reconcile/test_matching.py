"""What of theirs is compared with what of ours; and that nothing is left out."""

from datetime import date
from typing import Any

import pytest

from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.matching import ALL, OTHERS, Line, Matching, Names, OurRow, Reconciliation, compare
from cost.reconcile.openai import read_openai
from cost.reconcile.statement import BadExport
from tests.cost.reconcile.exports import (
    DAY_US,
    anthropic_bucket,
    anthropic_cost,
    file_of,
    openai_bucket,
    openai_cost,
    openai_usage,
    page,
)
from tests.cost.reconcile.ours import row

MATCHING = Matching(upstream_models={"gpt-4o": ("gpt-4o",), "small": ("gpt-4o-mini",)})


def compared(
    *pages: dict[str, Any], ours: tuple[OurRow, ...] = (), matching: Matching = MATCHING, **days: Any
) -> Reconciliation:
    return compare(read_openai([file_of(list(pages))]), ours, matching, **days)


def only(found: Reconciliation) -> Line:
    (line,) = found.lines
    return line


def test_equal_books_agree() -> None:
    """The same tokens and the same dollars by day and model: one line, and no difference."""
    usage = page(openai_bucket(openai_usage("gpt-4o", 100, 10, input_cached_tokens=40)))
    costs = page(openai_bucket(openai_cost("gpt-4o, input", 0.1 + 0.2), openai_cost("gpt-4o, output", 0.06)))
    ours = (
        row(tokens=(50, 40, 0, 0, 0), meters=(300_000_000, 0, 0, 0, 0, 0)),
        row(team_id="team_b", tokens=(10, 0, 0, 0, 10), meters=(0, 0, 0, 0, 60_000_000, 0)),
    )
    line = only(compared(usage, costs, ours=ours))
    assert not line.differs
    assert (line.model, line.key, line.only) == ("gpt-4o", ALL, "")
    assert line.theirs_nanousd == line.ours_nanousd == 360_000_000


def test_our_target_is_known_by_its_upstream_name() -> None:
    """The configuration says what the provider calls a target."""
    line = only(compared(page(openai_bucket(openai_usage("gpt-4o-mini", 7, 1))), ours=(row(target_id="small"),)))
    assert (line.model, line.only) == ("gpt-4o-mini", "")


@pytest.mark.parametrize("named", ["gpt-4o-2024-08-06", "gpt-4o-20240806", "gpt-4o-latest", "gpt-4o@20240806"])
def test_a_dated_snapshot_is_guessed_and_told(named: str) -> None:
    """A name that differs by a date alone is taken for the configured one; the report says so."""
    found = compared(page(openai_bucket(openai_usage(named, 7, 1))), ours=(row(tokens=(7, 0, 0, 0, 1)),))
    assert not only(found).differs
    assert found.notes == (f"{named} is taken for gpt-4o: no configured model has this name",)


@pytest.mark.parametrize("named", ["gpt-4o-micro", "gpt-4", "gpt-4o-2024-08-06-custom", "ft:gpt-4o"])
def test_a_different_model_is_never_guessed(named: str) -> None:
    """A longer name that is no snapshot is another model, and both sides are listed."""
    found = compared(page(openai_bucket(openai_usage(named, 7, 1))), ours=(row(tokens=(7, 0, 0, 0, 1)),))
    assert sorted((line.model, line.only) for line in found.lines) == sorted([("gpt-4o", "ours"), (named, "theirs")])
    assert all(line.differs for line in found.lines)


def test_an_exact_name_comes_before_a_guess() -> None:
    """A snapshot with a target of its own is that target's; two that would fit are no guess."""
    matching = Matching(upstream_models={"a": ("m-2024-01-01",), "b": ("m-2024-02-02",)})
    usage = page(openai_bucket(openai_usage("m-2024-02-02", 1, 1), openai_usage("m-2024-03-03", 1, 1)))
    found = compared(usage, matching=matching)
    assert [line.model for line in found.lines] == ["m-2024-02-02", "m-2024-03-03"]
    assert found.notes == ()


def test_targets_with_a_common_upstream_model_are_one_line() -> None:
    """The provider cannot tell them apart, so neither does the comparison."""
    matching = Matching(upstream_models={"fast": ("m",), "slow": ("m", "n"), "third": ("n",)})
    usage = page(openai_bucket(openai_usage("m", 5, 0), openai_usage("n", 6, 0)))
    ours = tuple(
        row(target_id=name, tokens=(amount, 0, 0, 0, 0)) for name, amount in (("fast", 1), ("slow", 4), ("third", 6))
    )
    assert not only(compared(usage, ours=ours, matching=matching)).differs


def test_a_pair_given_by_hand_joins_names() -> None:
    """Where names do not tell, the operator does."""
    matching = Matching(upstream_models={"gpt-4o": ("gpt-4o",)}, models=(("chatgpt-special", "gpt-4o"),))
    usage = page(openai_bucket(openai_usage("chatgpt-special", 5, 0), openai_usage("gpt-4o", 1, 0)))
    assert not only(compared(usage, ours=(row(tokens=(6, 0, 0, 0, 0)),), matching=matching)).differs


def test_what_we_did_not_book_and_what_they_did_not_bill_are_listed() -> None:
    """Days and models of one side only are lines with nothing on the other."""
    usage = page(openai_bucket(), openai_bucket(openai_usage("o9", 3, 4), day=1))
    found = compared(
        usage, ours=(row(tokens=(1, 0, 0, 0, 2)), row(day_us=DAY_US + 86_400_000_000, tokens=(5, 0, 0, 0, 0)))
    )
    assert [(line.model, line.only, line.tokens_difference) for line in found.lines] == [
        ("gpt-4o", "ours", (-1, 0, 0, 0, -2)),
        ("gpt-4o", "ours", (-5, 0, 0, 0, 0)),
        ("o9", "theirs", (3, 0, 0, 0, 4)),
    ]


def test_keys_are_matched_where_a_map_says_whose_they_are() -> None:
    """A key of theirs may stand for several of ours; what no map names is compared as a whole."""
    matching = Matching(upstream_models=MATCHING.upstream_models, keys=(("pk_1", "key_a"), ("pk_1", "key_b")))
    usage = page(
        openai_bucket(
            openai_usage("gpt-4o", 10, 0, api_key_id="pk_1"),
            openai_usage("gpt-4o", 3, 0, api_key_id="pk_2"),
            openai_usage("gpt-4o", 4, 0, api_key_id="pk_3"),
        )
    )
    ours = tuple(
        row(key_id=key, tokens=(amount, 0, 0, 0, 0)) for key, amount in (("key_a", 4), ("key_b", 6), ("key_c", 7))
    )
    found = compared(usage, ours=ours, matching=matching)
    assert [(line.key, line.theirs_tokens, line.differs) for line in found.lines] == [
        (OTHERS, (7, 0, 0, 0, 0), False),
        ("pk_1", (10, 0, 0, 0, 0), False),
    ]


def test_without_a_map_keys_do_not_matter() -> None:
    """Ours and theirs are not the same keys, so each model is one line."""
    usage = page(
        openai_bucket(openai_usage("gpt-4o", 1, 0, api_key_id="x"), openai_usage("gpt-4o", 2, 0, api_key_id="y"))
    )
    assert only(compared(usage)).theirs_tokens == (3, 0, 0, 0, 0)


def test_a_map_needs_an_export_with_keys() -> None:
    """A map that nothing could match is an error, not a report of false differences."""
    matching = Matching(upstream_models={}, keys=(("pk_1", "key_a"),))
    with pytest.raises(BadExport, match="group_by=api_key_id"):
        compared(page(openai_bucket(openai_usage("gpt-4o", 1, 0))), matching=matching)


def test_costs_without_keys_are_compared_by_model_beside_usage_by_key() -> None:
    """Each kind is compared as finely as it is told."""
    matching = Matching(upstream_models=MATCHING.upstream_models, keys=(("pk_1", "key_a"),))
    usage = page(openai_bucket(openai_usage("gpt-4o", 1, 0, api_key_id="pk_1")))
    costs = page(openai_bucket(openai_cost("gpt-4o, input", 1)))
    found = compared(usage, costs, ours=(row(tokens=(1, 0, 0, 0, 0), meters=(5, 0, 0, 0, 0, 0)),), matching=matching)
    assert [(line.key, line.theirs_tokens is None, line.theirs_nanousd) for line in found.lines] == [
        (ALL, True, 1_000_000_000),
        ("pk_1", False, None),
    ]


def test_an_undivided_cost_is_compared_with_the_whole_day() -> None:
    """Costs without a line item say nothing about models."""
    costs = page(openai_bucket(openai_cost(None, 2)))
    ours = (row(meters=(5, 0, 0, 0, 0, 0)), row(target_id="small", meters=(6, 0, 0, 0, 0, 1)))
    line = only(compared(costs, ours=ours))
    assert (line.model, line.ours_nanousd, line.theirs_nanousd, line.theirs_tokens) == (ALL, 12, 2_000_000_000, None)


def test_a_result_of_nothing_divides_nothing() -> None:
    """A zero without a model, as providers give for quiet hours, does not hide whose the rest is."""
    usage = page(openai_bucket(openai_usage(None, 0, 0), openai_usage("gpt-4o", 1, 0)))
    costs = page(openai_bucket(openai_cost(None, 0), openai_cost("gpt-4o, input", 1)))
    assert only(compared(usage, costs)).model == "gpt-4o"


def test_other_charges_are_lines_of_their_own() -> None:
    """What was charged for no tokens is compared with what was posted for it."""
    costs = page(openai_bucket(openai_cost("web search", 2), openai_cost("gpt-4o, input", 1), openai_cost("gpt-4o", 1)))
    ours = (row(meters=(5, 0, 0, 0, 0, 0)), row(target_id="charge/web search", meters=(0, 0, 0, 0, 0, 2_000_000_000)))
    model, charge = compared(costs, ours=ours).lines
    # A line item that is just a configured model's name is that model's.
    assert (model.model, model.theirs_nanousd, model.ours_nanousd) == ("gpt-4o", 2_000_000_000, 5)
    assert (charge.model, charge.differs) == ("charge/web search", False)


def test_a_model_cannot_pass_for_another_charge() -> None:
    """The names of other charges are kept for them."""
    with pytest.raises(BadExport, match="charge/x"):
        compared(page(openai_bucket(openai_usage("charge/x", 1, 0))))


def test_dollars_by_meter_add_up_after_rounding() -> None:
    """The running total is rounded, so no fraction of a nano-dollar is lost or found."""
    thirds = [anthropic_cost("m", kind, "0.00000003333") for kind in ("uncached_input_tokens", "output_tokens")]
    statement = read_anthropic([file_of(page(anthropic_bucket(*thirds, *thirds)))])
    line = only(compare(statement, (), Matching(upstream_models={})))
    assert line.theirs_nanousd == 1
    assert line.theirs_meters is not None
    assert sum(line.theirs_meters) == 1


def test_days_outside_of_the_files_or_the_range_are_not_compared() -> None:
    """What the files do not tell is no zero; a note says how many days it is."""
    usage = page(openai_bucket(openai_usage("gpt-4o", 1, 0)), openai_bucket(openai_usage("gpt-4o", 2, 0), day=2))
    gap = compared(usage, ours=(row(day_us=DAY_US + 86_400_000_000, tokens=(9, 0, 0, 0, 0)),))
    assert len(gap.lines) == 2
    assert gap.notes == ("1 of the days from 2026-11-20 to 2026-11-22 are not in the files and were not compared",)
    one = compared(usage, first=date(2026, 11, 21), last=date(2026, 11, 30))
    assert [line.theirs_tokens for line in one.lines] == [(2, 0, 0, 0, 0)]
    assert one.notes[0].startswith("9 of the days")
    with pytest.raises(BadExport, match="not in the range"):
        compared(usage, first=date(2027, 1, 1))
    with pytest.raises(BadExport, match="no day"):
        compared(page())


def test_unpriced_attempts_are_told() -> None:
    """Their cost is in none of our sums, which explains a difference."""
    found = compared(page(openai_bucket(openai_cost("gpt-4o, input", 1))), ours=(row(unpriced_attempts=3),))
    assert found.notes == ("2026-11-20 gpt-4o: 3 of our attempts have no price, so their cost is not in ours",)


def test_connected_names_share_a_label() -> None:
    """Whatever the order of the pairs, what is connected is one."""
    names = Names([("a", "1"), ("b", "2"), ("c", "3"), ("b", "1"), ("c", "2")])
    assert {names.theirs(each) for each in "abc"} == {names.ours(each) for each in "123"}
    assert names.ours("4") is None
