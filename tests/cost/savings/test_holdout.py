"""The draw of the two arms, and the saving measured from them."""

import math
import random

import pytest

from cost.savings.holdout import ArmSums, arm_of, measured


def test_arms_are_equal_and_as_large_as_asked() -> None:
    """Of many requests each arm gets the configured share."""
    drawn = [arm_of(f"req_{number}", 0.1) for number in range(20_000)]
    for arm in ("holdout", "control"):
        assert drawn.count(arm) == pytest.approx(2_000, abs=150)


def test_a_request_stays_in_its_arm() -> None:
    """The draw hangs on the id alone, and a larger share keeps who was held out before."""
    ids = [f"req_{number}" for number in range(2_000)]
    small = {each for each in ids if arm_of(each, 0.05) == "holdout"}
    assert small == {each for each in ids if arm_of(each, 0.05) == "holdout"}
    assert small < {each for each in ids if arm_of(each, 0.2) == "holdout"}


@pytest.mark.parametrize("share", [0.0, -1.0])
def test_without_a_share_nobody_is_drawn(share: float) -> None:
    """The experiment is off unless it was asked for."""
    assert {arm_of(f"req_{number}", share) for number in range(500)} == {""}


def test_at_the_most_every_request_is_in_an_arm() -> None:
    """Half and half is all there is; more than that is cut to it."""
    for share in (0.5, 0.9):
        assert {arm_of(f"req_{number}", share) for number in range(500)} == {"holdout", "control"}


def sums(costs: list[int]) -> ArmSums:
    return ArmSums(requests=len(costs), cost_nanousd=sum(costs), squares=float(sum(cost * cost for cost in costs)))


def test_a_saving_computed_by_hand() -> None:
    """Means of 200 and 80; both arms' relative variances 10_000/39 / 40_000 and 1_600/39 / 6_400, each for 40."""
    found = measured(sums([100, 300] * 20), sums([40, 120] * 20))
    assert found is not None
    assert found.saving == pytest.approx(0.6)
    # (100² · 40/39) / 40 / 200² = 1/156 on both sides, so the error of the logarithm is the root of 1/78.
    error = math.sqrt(1 / 78)
    assert found.low == pytest.approx(1 - 0.4 * math.exp(1.959964 * error), rel=1e-6)
    assert found.high == pytest.approx(1 - 0.4 * math.exp(-1.959964 * error), rel=1e-6)


def test_what_is_spent_beside_requests_is_the_controls() -> None:
    """Idle GPUs of 70 a request make 80 into 150, so the saving is 25 %; how sure it is hangs on the requests alone."""
    found = measured(sums([100, 300] * 20), sums([40, 120] * 20), 70)
    assert found is not None
    assert found.saving == pytest.approx(0.25)
    # 1/156 for the holdout; the control's variance of 1600 · 40/39 / 40 by 150².
    error = math.sqrt(1 / 156 + 1600 / 39 / 150**2)
    assert found.low == pytest.approx(1 - 0.75 * math.exp(1.959964 * error), rel=1e-6)
    assert measured(sums([100] * 40), sums([10] * 40), -10) is None


@pytest.mark.parametrize(
    ("holdout", "control"),
    [([100] * 29, [100] * 500), ([100] * 500, [100] * 29), ([0] * 50, [10] * 50), ([10] * 50, [0] * 50)],
)
def test_too_little_is_not_a_measurement(holdout: list[int], control: list[int]) -> None:
    """A small arm, or one that cost nothing, claims nothing."""
    assert measured(sums(holdout), sums(control)) is None


def test_the_interval_holds_the_truth_about_95_times_in_100() -> None:
    """Skewed costs, as those of requests are: 400 experiments of 300 requests an arm."""
    rng = random.Random(7)
    truth = 1 - 0.35
    hits = 0
    for _ in range(400):
        holdout = [int(1e6 * rng.lognormvariate(0.0, 0.8)) for _ in range(300)]
        control = [int(0.35e6 * rng.lognormvariate(0.0, 0.8)) for _ in range(300)]
        found = measured(sums(holdout), sums(control))
        assert found is not None
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.98


def test_who_looks_every_day_is_misled_more_often_than_who_looks_once() -> None:
    """The interval is for one look, such as a month's close: of months that save just what is wanted, looked at on each of 30 days, one in
    five says once that it is more; at their ends one in fifty. So nothing acts by it, and a verdict is of a whole range.
    """
    rng, any_day, last_day = random.Random(11), 0, 0
    months = 150
    for _ in range(months):
        holdout: list[int] = []
        control: list[int] = []
        above = False
        for _ in range(30):
            holdout += [int(1e6 * rng.lognormvariate(0.0, 0.8)) for _ in range(40)]
            control += [int(0.6e6 * rng.lognormvariate(0.0, 0.8)) for _ in range(40)]
            found = measured(sums(holdout), sums(control))
            assert found is not None
            last = found.low > 0.4
            above = above or last
        any_day += above
        last_day += last
    assert last_day <= 0.05 * months
    assert any_day <= 0.25 * months
