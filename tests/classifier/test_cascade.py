"""What two cheap answers keep and cost on known outcomes."""

import numpy as np
import pytest

from classifier.frontier import Choices, Floats
from classifier.pairs import choose_pairs, expected_cost, expected_quality
from classifier.training.cascade import (
    SAME_WRONG,
    Integers,
    cascade_table,
    judge_cascades,
    measure_cascade,
    recorded,
)


def choices(n: int = 4_000, seed: int = 1) -> Choices:
    """Two cheap targets and a dear one that is right more often; chances are true, and right answers independent."""
    random = np.random.default_rng(seed)
    ease = random.normal(size=n)
    adequate = np.column_stack([1 / (1 + np.exp(-(bias + ease))) for bias in (1.2, 1.3, 2.0)])
    outcome = (random.random(adequate.shape) < adequate).astype(float)
    cost = np.broadcast_to(np.array([1.0, 2.0, 20.0]), adequate.shape)
    return Choices(
        adequate=adequate,
        cost=cost,
        reference=adequate[:, 2],
        weights=np.ones(n),
        outcome=outcome,
        reference_outcome=outcome[:, 2],
    )


def test_two_first_keep_the_quality_and_cost_less() -> None:
    """Where chances are true it keeps what the plan keeps, within noise, at less cost, for whatever both get wrong alike."""
    found = measure_cascade(choices(), ["a", "b", "dear"], "dear", floors=(None,))
    (row,) = found.rows
    told = row.instead
    assert told.two > 0.5
    for spot, gain, error in zip(told.spots, told.gained, told.gained_error, strict=True):
        assert spot.cost < 0.8 * row.auto.cost
        assert gain > -error - 0.002
        assert spot.quality == pytest.approx(row.auto.quality + gain)


def test_a_cheap_choice_is_checked_at_a_lower_minimum() -> None:
    """Where the plan chooses the cheap ones, nothing stands in for a dear one, and a check gains more than it loses."""
    found = measure_cascade(choices(), ["a", "b", "dear"], "dear", floors=(0.9,))
    (row,) = found.rows
    assert row.checked.two > row.instead.two
    assert min(row.checked.gained) > max(row.checked.gained_error)
    assert all(spot.cost < 1.0 for spot in row.checked.spots)


def test_figures_are_bounds_of_what_is_not_known() -> None:
    """The more shared mistakes are the same, the less is kept, and the less it costs, as the dear target is asked less."""
    found = measure_cascade(choices(), ["a", "b", "dear"], "dear")
    for told in (each for row in found.rows for each in (row.instead, row.unasked, row.checked)):
        assert list(told.spots) == sorted(told.spots, key=lambda spot: spot.quality)
        assert [spot.cost for spot in told.spots] == sorted(spot.cost for spot in told.spots)
        assert list(told.better) == sorted(told.better)
    assert all(row.unasked.two <= row.instead.two for row in found.rows)
    assert SAME_WRONG == (1.0, 0.6, 0.0)
    assert all(spot.quality <= found.oracle.quality + 1e-9 for spot in found.single)
    assert found.single[2].cost == pytest.approx(1.0)


def test_a_hand_computed_case() -> None:
    """Both right, one right, none right, with the dear one right each time."""
    outcome = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    case = Choices(
        adequate=np.tile([0.8, 0.85, 0.9], (3, 1)),
        cost=np.tile([1.0, 2.0, 20.0], (3, 1)),
        reference=np.full(3, 0.9),
        weights=np.ones(3),
        outcome=outcome,
        reference_outcome=outcome[:, 2],
    )
    found = measure_cascade(case, ["a", "b", "dear"], "dear", floors=(None,))
    (row,) = found.rows
    told = row.instead
    assert told.two == 1.0
    assert [round(spot.quality, 9) for spot in told.spots] == [round(2 / 3, 9), round((2 + 0.4) / 3, 9), 1.0]
    assert [round(spot.cost, 9) for spot in told.spots] == [round(x, 9) for x in (29 / 60, 37 / 60, 49 / 60)]
    assert told.better == pytest.approx((1 / 3, 1.4 / 3, 2 / 3))
    assert found.always == told.spots == row.checked.spots


def test_the_rule_is_that_of_single_prompts() -> None:
    """Each prompt's pair is the cheapest that keeps enough and costs less, found by trying all."""
    random = np.random.default_rng(3)
    adequate, cost = random.uniform(0.1, 0.99, (200, 4)), random.integers(1, 60, (200, 4)).astype(float)
    planned, reference = random.integers(0, 4, 200), random.uniform(0.3, 0.99, 200)
    found = choose_pairs(adequate, cost, planned, reference, 0.02)
    for row in range(200):
        right, price = adequate[row, planned[row]], cost[row, planned[row]]
        paying = {
            (one, other): expected_cost(
                cost[row, one] + cost[row, other], adequate[row, one] * adequate[row, other], price
            )
            for one in range(4)
            for other in range(one + 1, 4)
            if planned[row] not in {one, other}
            and max(cost[row, one], cost[row, other]) < price / 2
            and expected_quality(adequate[row, one], adequate[row, other], right) >= min(reference[row] - 0.02, right)
        }
        paying = {pair: spent for pair, spent in paying.items() if spent < price}
        if not paying:
            assert not found.used[row]
            continue
        pair = tuple(sorted((int(found.first[row]), int(found.second[row]))))
        assert paying[pair] == pytest.approx(min(paying.values()))  # type: ignore[index]
        assert adequate[row, found.first[row]] >= adequate[row, found.second[row]]


def test_only_prompts_that_all_answered_are_judged() -> None:
    """Too few of them give no figure, and what is recorded is plain and rounded."""
    case = choices(300)
    assert case.outcome is not None
    names = ("a", "b", "dear")
    scores = {name: case.outcome[:, at].copy() for at, name in enumerate(names)}
    adequate = {name: case.adequate[:, at].copy() for at, name in enumerate(names)}
    scores["a"][:150] = np.nan
    sources = np.array(["one"] * 150 + ["two"] * 150)

    def cost_of(name: str, rows: Integers) -> Floats:
        return np.full(len(rows), {"a": 1.0, "b": 2.0, "dear": 20.0}[name])

    (found,) = judge_cascades([(names, "dear"), (("a", "unknown"), "a")], scores, adequate, cost_of, sources, "10-fold")
    assert (found.n, found.sources, found.split) == (150, ["two"], "10-fold")
    plain = recorded(found)
    assert plain["rows"][0]["auto"].keys() == {"quality", "cost"}
    assert plain["n"] == 150
    head, rows = cascade_table([found])
    assert all(len(row) == len(head) for row in rows)
    scores["a"][:250] = np.nan
    assert judge_cascades([(names, "dear")], scores, adequate, cost_of, sources, "10-fold") == []
