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
