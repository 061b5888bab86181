"""The cost-quality curve: exact, the same rule at every point, and honest about what cannot be kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.frontier import (
    ALIKE,
    LEAST_LEAD,
    NO_LEAD,
    Choices,
    Floats,
    alike,
    area,
    attainable,
    bounded,
    choose,
    curve,
    most_lost,
    point_at,
    random_mix,
    singles,
    willingness_for,
)


def made_up(seed: int, prompts: int = 60, targets: int = 4, *, coarse: bool = False) -> Choices:
    """Random probabilities and costs; the first column is the reference. Coarse ones tie often."""
    random = np.random.default_rng(seed)
    adequate, cost = random.random((prompts, targets)), random.random((prompts, targets))
    if coarse:
        adequate, cost = adequate.round(1), cost.round(1)
    weights = random.random(prompts) + 0.1
    return Choices(
        adequate=adequate,
        cost=cost,
        reference=adequate[:, 0].copy(),
        weights=weights,
        reference_cost=float(np.average(cost[:, 0], weights=weights)),
    )


seeds = st.integers(0, 10_000)
FLOORS = tuple(round(0.90 + step / 100, 2) for step in range(11))


@pytest.mark.parametrize(
    ("willingness", "expected"),
    [(0.0, [0, 0]), (2.0, [0, 0]), (3.0, [1, 2]), (10.0, [1, 2]), (25.0, [2, 2])],
)
def test_a_prompt_goes_where_the_net_benefit_is_greatest(willingness: float, expected: list[int]) -> None:
    """Each prompt moves to a dearer target exactly when the chance that it gains is worth the price."""
    adequate = np.array([[0.5, 0.85, 0.9], [0.05, 0.2, 0.9]])
    found = choose(adequate, np.array([[1.0, 2.0, 3.0]] * 2), willingness)
    assert found.tolist() == expected


@given(seeds, st.booleans(), st.floats(0.0, 100.0))
def test_columns_that_are_left_out_are_never_chosen(seed: int, coarse: bool, willingness: float) -> None:
    """What another column beats on every prompt is looked at by nobody, and each choice stays as it is."""
    random = np.random.default_rng(seed)
    few = made_up(seed, coarse=coarse)
    cost = few.cost + 0.1
    dearer = cost * random.choice([1.0, 1.2], size=cost.shape[1])
    choices = Choices(
        adequate=np.hstack([few.adequate, few.adequate]),
        cost=np.hstack([dearer, cost]),
        reference=few.reference,
        weights=few.weights,
    )
    assert len(choices.open) <= cost.shape[1]
    kept = choices.open[choose(choices.adequate[:, choices.open], choices.order[:, choices.open], willingness)]
    assert kept.tolist() == choose(choices.adequate, choices.order, willingness).tolist()


def test_of_equal_chances_the_cheapest_is_chosen() -> None:
    """However much a good answer is worth, what gains nothing costs nothing."""
    adequate = np.array([[0.5, 0.5, 0.4]])
    assert choose(adequate, np.array([[3.0, 2.0, 1.0]]), 1e15).tolist() == [1]


@given(seeds, st.booleans())
def test_the_curve_is_the_rule_between_its_steps(seed: int, coarse: bool) -> None:
    """One sort gives what choosing anew at each willingness gives, ties and all, and between its steps nothing changes."""
    choices = made_up(seed, prompts=12, coarse=coarse)
    found = curve(choices)
    assert found.willingness[0] == 0
    assert (np.diff(found.willingness) > 0).all()
    for at, willingness in enumerate(found.willingness):
        end = found.willingness[at + 1] if at + 1 < len(found.willingness) else 2 * willingness + 1
        if end - willingness < 1e-9 * end:
            continue
        for between in (0.01, 0.5, 0.99):
            point = point_at(choices, willingness + between * (end - willingness))
            assert point.quality == pytest.approx(found.quality[at])
            assert point.cost == pytest.approx(found.cost[at])


@given(seeds, st.booleans())
def test_more_willingness_never_buys_less(seed: int, coarse: bool) -> None:
    """Quality and cost rise together, whatever the prompts are."""
    found = curve(made_up(seed, coarse=coarse))
    assert (np.diff(found.quality) > -1e-12).all()
    assert (np.diff(found.cost) > -1e-12).all()


@given(seeds, st.booleans())
def test_quality_and_cost_rise_with_the_minimum(seed: int, coarse: bool) -> None:
    """A stricter minimum never costs less and never gives less."""
    points = [willingness_for(made_up(seed, coarse=coarse), floor) for floor in FLOORS]
    assert (np.diff([point.quality for point in points]) > -1e-12).all()
    assert (np.diff([point.cost for point in points]) > -1e-12).all()


@given(seeds)
def test_nothing_beats_the_curve_for_its_money(seed: int) -> None:
    """Neither a mixture of single targets nor any other way to choose is expected to give more for as much."""
    choices = made_up(seed)
    cost, quality = singles(choices)
    found = choices.curve
    assert (found.quality >= random_mix(cost, quality, found.cost) - 1e-9).all()
    random, rows = np.random.default_rng(seed), np.arange(60)
    picked = random.integers(0, 4, 60)
    other = float(choices.share @ choices.adequate[rows, picked]), float(choices.share @ choices.cost[rows, picked])
    for at, willingness in enumerate(found.willingness):
        assert willingness * found.quality[at] - found.cost[at] >= willingness * other[0] - other[1] - 1e-9


@given(seeds, st.floats(0.3, 0.99))
def test_a_minimum_becomes_the_least_willingness_that_reaches_it(seed: int, floor: float) -> None:
    """It keeps the share of the attainable quality, and of the reference's all the more; less money would not, or would leave
    routing without its lead.
    """
    choices = made_up(seed)
    found, goal = willingness_for(choices, floor), floor * attainable(choices)
    assert found.quality >= goal - 1e-6
    assert found.kept >= floor - 1e-6
    cost, quality = singles(choices)
    for at in np.linspace(0, 20, 101):
        other = point_at(choices, float(at))
        lead = other.quality - random_mix(cost, quality, np.array([max(other.cost, cost.min())]))[0]
        assert other.quality < goal or lead < LEAST_LEAD or other.cost >= found.cost - 1e-9


def test_where_nothing_can_be_told_a_low_minimum_goes_to_the_cheapest() -> None:
    """Chances that say the same of every prompt gain nothing, and then nothing is spent on a lead."""
    size = 1_000
    adequate = np.column_stack([np.full(size, 0.95), np.full(size, 0.9)])
    cost = np.column_stack([np.full(size, 10.0), np.ones(size)])
    choices = Choices(
        adequate=adequate, cost=cost, reference=adequate[:, 0], weights=np.ones(size), reference_cost=10.0
    )
    assert willingness_for(choices, 0.9).shares == pytest.approx((0.0, 1.0))
    assert NO_LEAD < LEAST_LEAD


def test_a_minimum_is_a_share_of_what_the_references_money_buys() -> None:
    """Not of the reference's own quality, where its money buys more. A minimum of 1 is the best, whatever it costs."""
    adequate = np.array([[0.9, 0.6, 0.95], [0.5, 0.8, 0.9]])
    cost = np.array([[2.0, 1.0, 2.5], [2.0, 1.0, 9.0]])
    choices = Choices(adequate=adequate, cost=cost, reference=adequate[:, 0], weights=np.ones(2), reference_cost=2.0)
    assert attainable(choices) == pytest.approx((0.95 + 0.8) / 2)
    found = willingness_for(choices, 0.999)
    assert found.cost <= 2.0
    assert found.quality == pytest.approx(attainable(choices))
    assert willingness_for(choices, 1.0).quality == pytest.approx((0.95 + 0.9) / 2)
    unpriced = Choices(adequate=adequate, cost=cost, reference=adequate[:, 0], weights=np.ones(2))
    assert attainable(unpriced) == pytest.approx(0.7)


def test_a_low_minimum_is_held_where_routing_leads() -> None:
    """Where a cheap target alone would meet every minimum, routing goes on to where it gains over drawing lots."""
    random = np.random.default_rng(2)
    need = random.random(2_000) < 0.1
    adequate = np.column_stack([np.full(2_000, 0.95), np.where(need, 0.4, 0.94)])
    cost = np.column_stack([np.full(2_000, 10.0), np.ones(2_000)])
    choices = Choices(
        adequate=adequate, cost=cost, reference=adequate[:, 0], weights=np.ones(2_000), reference_cost=10.0
    )
    alone = singles(choices)
    assert alone[1][1] > 0.9 * attainable(choices)
    found = willingness_for(choices, 0.9)
    assert found.quality - random_mix(*alone, np.array([found.cost]))[0] >= LEAST_LEAD
    assert found.cost < 0.25 * 10


def test_gains_make_up_for_losses() -> None:
    """A target that is better on one prompt and worse on another keeps the whole quality."""
    adequate = np.array([[0.9, 0.6], [0.5, 0.8]])
    choices = Choices(adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=adequate[:, 0], weights=np.ones(2))
    found = willingness_for(choices, 0.99)
    assert found.shares == (0.5, 0.5)
    assert found.kept == pytest.approx(1.7 / 1.4)


def test_a_floor_out_of_reach_gets_the_most_there_is() -> None:
    """Without the reference among the targets a floor may be beyond all of them."""
    adequate = np.array([[0.5, 0.3], [0.4, 0.2]])
    choices = Choices(
        adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=np.array([0.9, 0.9]), weights=np.ones(2)
    )
    found = willingness_for(choices, 0.95)
    assert found.shares == (1.0, 0.0)
    assert found.kept == pytest.approx(0.5)


def test_a_target_that_cannot_take_a_prompt_is_never_chosen_for_it() -> None:
    """Minus infinity closes a cell, however cheap it is."""
    adequate = np.array([[0.9, -np.inf], [0.9, 0.8]])
    choices = Choices(adequate=adequate, cost=np.array([[2.0, 1.0]] * 2), reference=adequate[:, 0], weights=np.ones(2))
    assert point_at(choices, 0.0).shares == (0.5, 0.5)
    assert curve(choices).cost[0] == pytest.approx(1.5)
    assert curve(choices).cost[-1] == pytest.approx(2.0)


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
    found = point_at(choices, 5.0)
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


def test_no_prompt_loses_more_than_the_bound_of_its_minimum() -> None:
    """The average may be kept by what is easy; what is hard keeps its own bound, and the best of a prompt always stays."""
    adequate = np.array([[0.95, 0.94], [0.90, 0.50], [0.30, 0.20]])
    reference = np.array([0.95, 0.90, 0.60])
    assert most_lost(1.0) == 0.0
    assert most_lost(0.9) > most_lost(0.99) > 0
    open_to = np.isfinite(bounded(adequate, reference, most_lost(0.98)))
    assert open_to.tolist() == [[True, True], [True, False], [True, False]]
    assert np.isfinite(bounded(adequate, reference, 1.0)).all()


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e9), st.integers(0, 1_000))
def test_a_higher_minimum_never_chooses_a_lesser_chance(one: float, two: float, willingness: float, seed: int) -> None:
    """At the same willingness: the bound only shuts out, and ever fewer chances are alike."""
    chances = np.random.default_rng(seed)
    adequate, rank = chances.random((20, 3)), chances.random((20, 3)) * 1e8
    reference = adequate[:, 0]

    def chance(floor: float) -> Floats:
        open_to = bounded(adequate, reference, most_lost(floor))
        return np.asarray(adequate[np.arange(20), choose(open_to, rank, willingness)])

    low, high = sorted((one, two))
    assert (chance(high) >= chance(low) - ALIKE - 1e-9).all()


def test_what_is_nearly_the_references_chance_is_no_reason_to_pay() -> None:
    """Within what the classifier is unsure of the cheapest answers, beyond it what is worth its price; at a minimum of 1 all is told apart."""
    adequate, cost = np.array([[0.93, 0.90], [0.93, 0.86]]), np.array([[0.1, 0.01], [0.1, 0.01]])
    reference = adequate[:, 0]
    assert choose(bounded(adequate, reference, most_lost(0.95)), cost, 1e9).tolist() == [1, 0]
    assert choose(bounded(adequate, reference, most_lost(1.0)), cost, 1e9).tolist() == [0, 0]
    assert alike(most_lost(0.99)) < alike(most_lost(0.98)) < alike(most_lost(0.9)) == ALIKE
