"""What two cheap answers keep and cost on known outcomes."""

import functools
from itertools import permutations

import msgspec
import numpy as np
import pytest

from classifier.frontier import Choices, Floats, alike, bounded, choose
from classifier.pairs import MOST_WRONG_UNASKED, choose_pairs
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
    found = measure_cascade(choices(), ["a", "b", "dear"], "dear", floors=(1.0,))
    (row,) = found.rows
    told = row.asked
    assert told.two > 0.5
    for spot, gain, error in zip(told.spots, told.gained, told.gained_error, strict=True):
        assert spot.cost < 0.8 * row.auto.cost
        assert gain > -error - 0.002
        assert spot.quality == pytest.approx(row.auto.quality + gain)


def test_figures_are_bounds_of_what_is_not_known() -> None:
    """The more shared mistakes are the same, the less is kept, and the less it costs, as the dear target is asked less."""
    found = measure_cascade(choices(), ["a", "b", "dear"], "dear")
    for told in (each for row in found.rows for each in (row.asked, row.unasked)):
        assert list(told.spots) == sorted(told.spots, key=lambda spot: spot.quality)
        assert [spot.cost for spot in told.spots] == sorted(spot.cost for spot in told.spots)
        assert list(told.better) == sorted(told.better)
    assert all(row.unasked.two <= row.asked.two for row in found.rows)
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
    found = measure_cascade(case, ["a", "b", "dear"], "dear", floors=(1.0,))
    (row,) = found.rows
    told = row.asked
    assert told.two == 1.0
    assert [round(spot.quality, 9) for spot in told.spots] == [round(2 / 3, 9), round((2 + 0.4) / 3, 9), 1.0]
    assert [round(spot.cost, 9) for spot in told.spots] == [round(x, 9) for x in (29 / 60, 37 / 60, 49 / 60)]
    assert told.better == pytest.approx((1 / 3, 1.4 / 3, 2 / 3))
    assert found.always == told.spots


def test_choices_follow_what_was_foretold() -> None:
    """Whoever is foretold to be dear is not asked for its real price."""
    case = choices(400)
    dear = msgspec.structs.replace(case, margin=case.cost * np.array([30.0, 15.0, 1.0]))
    found, other = (measure_cascade(each, ["a", "b", "dear"], "dear", floors=(1.0,)) for each in (case, dear))
    assert found.rows[0].asked.two > 0.5
    assert other.rows[0].asked.two == 0.0
    assert found.single == other.single


def _compared(chance: float, reference: float, near: float) -> float:
    return reference if abs(chance - reference) <= near else chance


@pytest.mark.parametrize("unasked", [False, True])
def test_the_rule_is_that_of_single_prompts(unasked: bool) -> None:
    """Each prompt's pair is that of the greatest net benefit, found by trying all."""
    random = np.random.default_rng(3)
    adequate, cost = random.uniform(0.8, 0.99, (300, 4)), np.exp(random.uniform(0, 7, (300, 4)))
    willingness, most, reference = 5_000.0, 0.03, random.uniform(0.8, 0.99, 300)
    planned = choose(bounded(adequate, reference, most), cost, willingness)
    found = choose_pairs(adequate, cost, planned, willingness, reference, most, unasked=unasked)
    for row in range(300):
        chance, price, own = adequate[row], cost[row], planned[row]
        worth, asked = {}, min(reference[row] - most, chance.max())
        compared = functools.partial(_compared, reference=reference[row], near=alike(most))
        for one, other, third in permutations(range(4), 3):
            a, b, p = chance[one], chance[other], chance[third]
            quality = min(p, a * b + (a * (1 - b) + b * (1 - a)) * p)
            spent = price[one] + price[other] + (1 - a * b) * price[third]
            may = quality >= asked and p >= chance[own] and a >= b
            if unasked:
                may = may and (1 - a) * (1 - b) <= MOST_WRONG_UNASKED and spent <= price[own]
            if may:
                worth[one, other, third] = willingness * compared(quality) - spent
        now = willingness * compared(chance[own]) - price[own]
        if max(worth.values(), default=-np.inf) <= now:
            assert not found.used[row]
            continue
        assert worth[found.first[row], found.second[row], found.third[row]] == pytest.approx(max(worth.values()))
    assert 0 < found.used.sum() < 300


def test_whom_a_prompt_does_not_fit_is_in_no_pair() -> None:
    """Neither of the two, nor asked after them."""
    case = choices(300)
    adequate = np.column_stack([case.adequate, np.full(300, -np.inf)])
    cost = np.column_stack([case.cost, np.full(300, 0.1)])
    planned, reference = np.full(300, 2), case.reference
    found = choose_pairs(adequate, cost, planned, 1e9, reference, 1.0)
    without = choose_pairs(case.adequate, case.cost, planned, 1e9, reference, 1.0)
    assert without.used.any()
    for one, other in zip(
        (found.first, found.second, found.third), (without.first, without.second, without.third), strict=True
    ):
        assert (one == other).all()


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

    (found,) = judge_cascades(
        [(names, "dear"), (("a", "unknown"), "a")], scores, adequate, cost_of, cost_of, sources, "10-fold"
    )
    assert (found.n, found.sources, found.split) == (150, ["two"], "10-fold")
    plain = recorded(found)
    assert plain["rows"][0]["auto"].keys() == {"quality", "cost"}
    assert plain["n"] == 150
    head, rows = cascade_table([found])
    assert all(len(row) == len(head) for row in rows)
    scores["a"][:250] = np.nan
    assert judge_cascades([(names, "dear")], scores, adequate, cost_of, cost_of, sources, "10-fold") == []
