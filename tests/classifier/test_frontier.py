"""The cost-quality curve: exact, the same rule at every point, and honest about what cannot be kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.frontier import (
    Choices,
    area,
    choose,
    curve,
    point_at,
    random_mix,
    singles,
    tolerance_for,
)


def made_up(seed: int, prompts: int = 60, targets: int = 4, *, coarse: bool = False) -> Choices:
    """Random probabilities and costs; the first column is the reference. Coarse ones tie often."""
    random = np.random.default_rng(seed)
    adequate, cost = random.random((prompts, targets)), random.random((prompts, targets))
    if coarse:
        adequate, cost = adequate.round(1), cost.round(1)
    return Choices(adequate=adequate, cost=cost, reference=adequate[:, 0].copy(), weights=random.random(prompts) + 0.1)


seeds = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [(0.0, [2, 2]), (0.1, [1, 2]), (0.45, [0, 2]), (0.9, [0, 0])],
)
def test_the_cheapest_within_the_tolerance_is_chosen(tolerance: float, expected: list[int]) -> None:
    """Each prompt moves to a cheaper target exactly when its loss is tolerated."""
    adequate = np.array([[0.5, 0.85, 0.9], [0.05, 0.2, 0.9]])
    found = choose(adequate, np.array([[1.0, 2.0, 3.0]] * 2), adequate[:, 2], tolerance)
    assert found.tolist() == expected


def test_where_none_is_capable_the_best_is_chosen_and_of_equals_the_cheapest() -> None:
    """A reference that is not among the columns may leave no capable one."""
    adequate = np.array([[0.5, 0.5, 0.4]])
    assert choose(adequate, np.array([[3.0, 2.0, 1.0]]), np.array([0.9]), 0.1).tolist() == [1]


@given(seeds, st.booleans())
def test_the_curve_is_the_rule_at_every_one_of_its_points(seed: int, coarse: bool) -> None:
    """One sort gives what choosing anew at each tolerance gives, ties and all, and between its points nothing changes."""
    choices = made_up(seed, prompts=12, coarse=coarse)
    found = curve(choices)
    assert found.tolerance[0] == 0
    assert (np.diff(found.tolerance) > 0).all()
    # The last tolerance of each stretch, just before the next one begins.
    ends = np.append(np.nextafter(found.tolerance[1:], 0.0), 1.0)
    for at in (found.tolerance, ends):
        points = [point_at(choices, float(each)) for each in at]
        assert np.allclose([point.quality for point in points], found.quality)
        assert np.allclose([point.cost for point in points], found.cost)


@given(seeds, st.booleans())
def test_a_larger_tolerance_never_costs_more(seed: int, coarse: bool) -> None:
    """Tolerating more only ever moves a prompt to a cheaper target."""
    assert (np.diff(curve(made_up(seed, coarse=coarse)).cost) < 1e-12).all()


@given(seeds, st.floats(0.3, 1.0))
def test_the_tolerance_of_a_floor_is_the_cheapest_that_keeps_it(seed: int, floor: float) -> None:
    """No tolerance on a fine grid keeps the floor for less money."""
    choices = made_up(seed)
    found = tolerance_for(choices, floor)
    assert found.kept >= floor - 1e-6
    for at in np.linspace(0, 1, 101):
        other = point_at(choices, float(at))
        assert other.kept < floor or other.cost >= found.cost - 1e-12


def test_gains_make_up_for_losses() -> None:
    """A target that is better on one prompt and worse on another keeps the whole quality."""
    adequate = np.array([[0.9, 0.6], [0.5, 0.8]])
    choices = Choices(adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=adequate[:, 0], weights=np.ones(2))
    found = tolerance_for(choices, 1.0)
    assert (found.shares, found.cost) == ((0.0, 1.0), 1.0)
    assert found.kept == pytest.approx(1.0)


def test_a_floor_out_of_reach_gets_the_most_there_is() -> None:
    """Without the reference among the targets a floor may be beyond all of them."""
    adequate = np.array([[0.5, 0.3], [0.4, 0.2]])
    choices = Choices(
        adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=np.array([0.9, 0.9]), weights=np.ones(2)
    )
    found = tolerance_for(choices, 0.95)
    assert found.shares == (1.0, 0.0)
    assert found.kept == pytest.approx(0.5)


def test_a_target_that_cannot_take_a_prompt_is_never_chosen_for_it() -> None:
    """Minus infinity closes a cell, whatever is tolerated and however cheap it is."""
    adequate = np.array([[0.9, -np.inf], [0.9, 0.8]])
    choices = Choices(adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=adequate[:, 0], weights=np.ones(2))
    assert point_at(choices, 1.0).shares == (0.5, 0.5)
    assert curve(choices).cost[-1] == pytest.approx(1.5)


def test_outcomes_tell_what_was_kept_and_not_what_was_expected() -> None:
    """Choosing goes by the probabilities, judging by what came of it."""
    adequate = np.array([[0.9, 0.9], [0.9, 0.1]])
    choices = Choices(
        adequate=adequate,
        cost=np.array([[2.0, 1.0]] * 2),
        reference=adequate[:, 0],
        weights=np.ones(2),
        outcome=np.array([[1.0, 0.0], [1.0, 0.0]]),
        reference_outcome=np.array([1.0, 1.0]),
    )
    found = point_at(choices, 0.05)
    assert (found.quality, found.kept, found.shares) == (0.5, 0.5, (0.5, 0.5))


def test_the_rank_chooses_and_the_cost_is_booked() -> None:
    """A routing weight makes a target look cheaper than it is; the curve pays the real price."""
    adequate = np.full((3, 2), 0.9)
    choices = Choices(
        adequate=adequate,
        cost=np.array([[3.0, 2.0]] * 3),
        rank=np.array([[1.5, 2.0]] * 3),
        reference=adequate[:, 0],
        weights=np.ones(3),
    )
    assert point_at(choices, 0.0).cost == pytest.approx(3.0)


def test_weights_count_as_so_many_requests() -> None:
    """A prompt of weight 3 is three prompts."""
    choices = made_up(1, prompts=2)
    weighted = Choices(
        adequate=choices.adequate, cost=choices.cost, reference=choices.reference, weights=np.array([3.0, 1.0])
    )
    rows = [0, 0, 0, 1]
    repeated = Choices(
        adequate=choices.adequate[rows],
        cost=choices.cost[rows],
        reference=choices.reference[rows],
        weights=np.ones(4),
    )
    assert np.allclose(curve(weighted).quality, curve(repeated).quality)
    assert np.allclose(curve(weighted).cost, curve(repeated).cost)


def test_the_sample_error_shrinks_with_the_sample() -> None:
    """Four times the prompts leave half the error."""
    one = made_up(3, prompts=200)
    rows = np.tile(np.arange(200), 4)
    four = Choices(
        adequate=one.adequate[rows], cost=one.cost[rows], reference=one.reference[rows], weights=one.weights[rows]
    )
    assert point_at(four, 0.2).kept_error == pytest.approx(point_at(one, 0.2).kept_error / 2)
    assert point_at(one, 0.2).kept_error > 0


def test_a_random_mix_is_the_upper_hull_of_the_single_targets() -> None:
    """A target below the line between two others is never part of the best blind mix."""
    cost, quality = np.array([1.0, 2.0, 3.0, 2.5]), np.array([0.2, 0.3, 0.8, 0.1])
    assert random_mix(cost, quality, np.array([0.5, 1.0, 2.0, 3.0, 9.0])) == pytest.approx([0, 0.2, 0.5, 0.8, 0.8])


def test_single_targets_get_every_prompt() -> None:
    """Their cost and quality are the columns' weighted means."""
    choices = made_up(5)
    cost, quality = singles(choices)
    assert cost == pytest.approx(np.average(choices.cost, axis=0, weights=choices.weights))
    assert quality == pytest.approx(np.average(choices.adequate, axis=0, weights=choices.weights))


@pytest.mark.parametrize(
    ("cost", "quality", "expected"),
    [
        ([1.0, 3.0], [0.4, 0.8], 0.6),
        ([1.0], [0.5], 0.5),
        ([2.0], [1.0], 0.5),
        ([1.0, 2.0, 3.0], [0.8, 0.1, 0.8], 0.8),
    ],
)
def test_the_area_is_the_mean_quality_that_money_buys(cost: list[float], quality: list[float], expected: float) -> None:
    """Straight between points, flat after the dearest, nothing before the cheapest, and more money never buys less."""
    assert area(np.array(cost), np.array(quality), 1.0, 3.0) == pytest.approx(expected, abs=1e-12)
