"""On the sample that ships no minimum is dominated: houses such as would stand beside own GPUs, at list prices."""

import itertools

import numpy as np
import pytest

from classifier.frontier import Choices, Point, bounded_point, random_mix, singles, willingness_for
from classifier.onnx_classifier import open_classifier
from proxy.plan.quality_tolerance import FLOORS
from proxy.plan.routing_config import DEFAULT_FLOOR

PRICES = {
    "llama-3-70b-instruct": (0.845, 0.845),
    "claude-3-haiku-20240307": (0.25, 1.25),
    "gpt-4o-mini-2024-07-18": (0.15, 0.60),
    "gpt-4o-2024-05-13": (2.50, 10.0),
    "claude-3-5-sonnet-20240620": (3.0, 15.0),
}
"""US dollars for a million tokens of input and output."""
BASELINE = "gpt-4o-2024-05-13"
HOUSES = {
    "five models": tuple(PRICES),
    "without a small rival": ("llama-3-70b-instruct", BASELINE),
    "without the dearest": ("llama-3-70b-instruct", "gpt-4o-mini-2024-07-18", BASELINE),
}


@pytest.fixture(scope="module", params=HOUSES)
def choices(request: pytest.FixtureRequest) -> Choices:
    names = HOUSES[request.param]
    classifier = open_classifier(abilities={name: name for name in names})
    sample = classifier.sample()
    adequate = np.asarray(classifier.adequacies(sample.vectors, names), dtype=np.float64)
    cost = np.column_stack(
        [sample.input_tokens * PRICES[name][0] + sample.output_tokens * PRICES[name][1] for name in names]
    )
    at = names.index(BASELINE)
    return Choices(
        adequate=adequate,
        cost=cost,
        reference=adequate[:, at],
        weights=sample.weights,
        reference_cost=float(np.average(cost[:, at], weights=sample.weights)),
    )


@pytest.fixture(scope="module")
def points(choices: Choices) -> list[Point]:
    return [served(choices, floor) for floor in FLOORS]


def served(choices: Choices, floor: float) -> Point:
    """The sample as planning would choose for it."""
    return bounded_point(choices, floor, willingness_for(choices, floor).willingness)


def test_quality_and_cost_rise_with_the_minimum(points: list[Point]) -> None:
    """More is asked for, more is paid, and more is had."""
    for one, two in itertools.pairwise(points):
        assert two.quality >= one.quality - 1e-9
        assert two.cost >= one.cost - 1e-6


def test_every_minimum_leads_over_a_mixture(choices: Choices, points: list[Point]) -> None:
    """By a hundredth of all answers; at 1, where the most capable answers nearly everything, it is not below."""
    for floor, point in zip(FLOORS, points, strict=True):
        mixture = random_mix(*singles(choices), np.array([point.cost]))[0]
        assert point.quality - mixture >= (0.01 if floor < 1 else -1e-9)


def test_each_minimum_keeps_its_share_of_the_baselines_quality(points: list[Point]) -> None:
    """Where the models together are better than it alone, of theirs all the more."""
    assert all(point.kept >= floor - 1e-6 for floor, point in zip(FLOORS, points, strict=True))


@pytest.mark.parametrize("choices", ["five models", "without the dearest"], indirect=True)
def test_the_default_keeps_the_baselines_quality_for_less_than_half(choices: Choices) -> None:
    """99 % of it for 45 % of its cost, beside a small model that is nearly as good."""
    found = served(choices, DEFAULT_FLOOR)
    assert choices.reference_cost is not None
    assert found.kept >= 0.99
    assert found.cost <= 0.45 * choices.reference_cost


def test_below_one_nothing_costs_more_than_the_baseline_for_everything(choices: Choices, points: list[Point]) -> None:
    """What a minimum is a share of is to be had for the baseline's money."""
    assert choices.reference_cost is not None
    assert all(point.cost <= choices.reference_cost for floor, point in zip(FLOORS, points, strict=True) if floor < 1)
