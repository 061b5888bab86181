"""The rule that rolls back or promotes."""

import random

import pytest

from selfhosted.rollouts.comparison import Sample
from selfhosted.rollouts.evidence import Evidence, Side
from selfhosted.rollouts.rule import decide
from selfhosted.rollouts.versions import Rule


def sample(attempts: int, failed: int = 0, mean_s: float = 0.2) -> Sample:
    draws = random.Random(attempts)
    return Sample(
        attempts=attempts,
        failed=failed,
        ttft_s=tuple(sorted(draws.gammavariate(4, mean_s / 4) for _ in range(attempts - failed))),
    )


def seen(stable: Sample, candidate: Sample, rule: Rule) -> Evidence:
    """The evidence of all of it, added at once."""
    found, draws = Evidence(), random.Random(0)

    def side(sample: Sample) -> Side:
        ttft_s = draws.sample(sample.ttft_s, len(sample.ttft_s))
        return Side(attempts=sample.attempts, failed=sample.failed, ttft_s=tuple(ttft_s))

    found.add(side(stable), side(candidate), rule)
    return found


@pytest.mark.parametrize(
    ("candidate", "rule", "step"),
    [
        (sample(5, 5), Rule(), "roll_back"),
        (sample(300, 30), Rule(), "roll_back"),
        (sample(300, 30), Rule(errors=False), None),
        (sample(300, 4), Rule(), None),
        (sample(300, 0, 0.6), Rule(), "roll_back"),
        (sample(300, 0, 0.6), Rule(ttft_worse=None), None),
        (sample(300, 0, 0.6), Rule(ttft_worse=5.0), None),
        (sample(40, 0, 0.6), Rule(), "roll_back"),
        (Sample(), Rule(promote_after=100), None),
        (sample(400), Rule(promote_after=300), None),
        (sample(2_000), Rule(promote_after=300), "promote"),
        (sample(2_000), Rule(), None),
        (sample(2_000, 60), Rule(errors=False, promote_after=300), None),
    ],
)
def test_the_step(candidate: Sample, rule: Rule, step: str | None) -> None:
    """Beside a stable version with 0.5 % failures: worse beyond doubt is rolled back, and only what is surely no worse is
    promoted.
    """
    stable = sample(4_000, 20)
    found = decide(seen(stable, candidate, rule), stable, candidate, rule)
    assert (found and found.step) == step
    assert found is None or ("%" in found.reason or "2000 attempts" in found.reason)


def test_nothing_to_compare_with_decides_nothing() -> None:
    """Where the stable version answered nobody, a failing version is not known to be worse."""
    assert decide(seen(Sample(), sample(50, 50), Rule()), Sample(), sample(50, 50), Rule()) is None


def test_more_failures_than_matter_are_needed() -> None:
    """Evidence of half a percent more is no reason to roll back."""
    stable, candidate = sample(200_000, 200), sample(200_000, 1_200)
    evidence = seen(stable, candidate, Rule(ttft_worse=None))
    assert evidence.alarming(Rule()) == ["failures"]
    assert decide(evidence, stable, candidate, Rule()) is None


@pytest.mark.parametrize(("share", "is_promoted"), [(0.02, False), (0.01, True)])
def test_promotion_may_be_looked_at_again_and_again(share: float, is_promoted: bool) -> None:
    """Beside a stable version with 1 % failures, looked at each 20 attempts: one just at its margin is not promoted in 40 of 40
    trials, a sound one in all.
    """
    rule = Rule(promote_after=300, ttft_worse=None, tpot_worse=None)
    for trial in range(40):
        draws = random.Random(trial)
        failed = stable_failed = attempts = 0
        found = None
        while found is None and attempts < 12_000:
            attempts += 20
            failed += sum(draws.random() < share for _ in range(20))
            stable_failed += sum(draws.random() < 0.01 for _ in range(80))
            stable = Sample(attempts=4 * attempts, failed=stable_failed)
            found = decide(Evidence(), stable, Sample(attempts=attempts, failed=failed), rule)
        assert (found is not None) == is_promoted, trial


def test_slow_tokens_are_not_promoted() -> None:
    """First tokens in time do not promote a version whose further tokens take twice as long."""

    def times(mean_s: float) -> Sample:
        draws = random.Random(1)
        said = tuple(sorted(draws.gammavariate(4, mean_s / 4) for _ in range(2_000)))
        return Sample(attempts=2_000, ttft_s=sample(2_000).ttft_s, tpot_s=said)

    rule = Rule(promote_after=300)
    assert decide(Evidence(), times(0.02), times(0.02), rule) is not None
    assert decide(Evidence(), times(0.02), times(0.04), rule) is None
