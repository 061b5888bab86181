"""The rule that rolls back or promotes."""

import random

import pytest

from selfhosted.rollouts.comparison import Sample
from selfhosted.rollouts.rule import decide
from selfhosted.rollouts.versions import Rule


def sample(attempts: int, failed: int = 0, mean_s: float = 0.2) -> Sample:
    draws = random.Random(attempts)
    return Sample(
        attempts=attempts,
        failed=failed,
        ttft_s=tuple(sorted(draws.gammavariate(4, mean_s / 4) for _ in range(attempts - failed))),
    )


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
        (sample(40, 0, 0.6), Rule(), None),
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
    found = decide(sample(4_000, 20), candidate, rule)
    assert (found and found.step) == step
    assert found is None or ("%" in found.reason or "2000 attempts" in found.reason)


def test_nothing_to_compare_with_decides_nothing() -> None:
    """Where the stable version answered nobody, a failing version is not known to be worse."""
    assert decide(Sample(), sample(50, 50), Rule()) is None


def test_looking_again_and_again_does_not_roll_a_sound_version_back() -> None:
    """One that fails as often as the other is looked at after every ten attempts, 100 times, in 30 trials."""
    draws = random.Random(3)
    backs = 0
    for _ in range(30):
        ours = theirs = 0
        for count in range(10, 1_001, 10):
            ours += sum(draws.random() < 0.02 for _ in range(10))
            theirs += sum(draws.random() < 0.02 for _ in range(40))
            if decide(Sample(attempts=4 * count, failed=theirs), Sample(attempts=count, failed=ours), Rule()):
                backs += 1
                break
    assert backs <= 3
