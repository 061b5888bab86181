"""Intervals of one version and of the difference of two."""

import random

from hypothesis import given
from hypothesis import strategies as st

from selfhosted.rollouts.comparison import Sample, compared, difference, percentile, share

COUNTS = st.integers(1, 5_000).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))
TIMES = st.lists(st.floats(0.001, 60, allow_nan=False), max_size=300).map(sorted)


@given(COUNTS, COUNTS)
def test_an_interval_holds_its_value_and_turns_with_the_sides(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Less doubt makes it narrower, and exchanging the versions exchanges the bounds."""
    ours, theirs = (share(*each, 1.96) for each in (one, other))
    surer = share(*one, 1.0)
    assert ours is not None
    assert theirs is not None
    assert surer is not None
    assert 0 <= ours.low <= surer.low <= ours.value <= surer.high <= ours.high <= 1
    low, high = difference(ours, theirs)
    assert low <= theirs.value - ours.value <= high
    assert difference(theirs, ours) == (-high, -low)


@given(TIMES)
def test_a_percentile_lies_within_its_interval(times: list[float]) -> None:
    """With too few values there is none."""
    found = percentile(times, 0.95, 1.96)
    assert (found is None) == (len(times) < 75)
    if found is not None:
        assert found.low <= found.value <= found.high


def test_equal_versions_rarely_differ() -> None:
    """Of 400 pairs that are the same, 95 % intervals exclude no difference in at most 5 % and a little."""
    draws = random.Random(7)
    wrong = 0
    for _ in range(400):
        times = [sorted(draws.expovariate(1) for _ in range(200)) for _ in range(2)]
        failed = [sum(draws.random() < 0.03 for _ in range(300)) for _ in range(2)]
        ours, theirs = (
            Sample(attempts=300, failed=bad, ttft_s=tuple(seen)) for bad, seen in zip(failed, times, strict=True)
        )
        wrong += any(each.is_worse or each.is_better for each in compared(ours, theirs))
    # Two figures are looked at, each with 5 %.
    assert wrong / 400 < 0.12


def test_what_is_unknown_is_neither_better_nor_worse() -> None:
    """A version without a verdict has no quality, not one of zero."""
    rows = compared(Sample(attempts=10, verdicts={"feedback": (1.0, 0.0)}), Sample())
    assert [(each.name, each.candidate, each.low) for each in rows] == [
        ("failures", None, None),
        ("ttft_p95_s", None, None),
        ("tpot_p95_s", None, None),
        ("escalations", None, None),
        ("verdicts_feedback", None, None),
    ]
    assert not any(each.is_worse or each.is_better for each in rows)


def test_worse_quality_is_a_lower_one() -> None:
    """And more failures are worse."""
    good = Sample(attempts=500, failed=1, verdicts={"implicit": (1.0,) * 200})
    bad = Sample(attempts=500, failed=40, verdicts={"implicit": (0.0,) * 100 + (1.0,) * 100})
    assert {each.name for each in compared(good, bad) if each.is_worse} == {"failures", "verdicts_implicit"}
    assert {each.name for each in compared(bad, good) if each.is_better} == {"failures", "verdicts_implicit"}
