"""The measures are what their definitions say, found another way: by walking, by drawing, by brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from classifier.training.measures import (
    Floats,
    Platt,
    TargetTable,
    apgr,
    bootstrap_apgr,
    brier,
    calibration,
    cpt,
    curve,
    ece,
    log_loss,
    logit,
    measured,
    mixed,
    platt,
    promises,
    reliability,
    traded,
)
from tests.examples import examples

ROWS = st.lists(
    st.tuples(st.integers(-2, 2), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=7,
)


def columns(rows: list[tuple[int, float, float]]) -> tuple[Floats, Floats, Floats]:
    score, weak, strong = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    assume((strong - weak).sum() > 0)
    return score, weak, strong


def every_order(score: Floats) -> list[tuple[int, ...]]:
    """Each way to send prompts to the strong model that goes by the score: ties stand in every order."""
    return [
        order
        for order in itertools.permutations(range(len(score)))
        if all(score[a] >= score[b] for a, b in itertools.pairwise(order))
    ]


def walked(order: tuple[int, ...], weak: Floats, strong: Floats) -> Floats:
    """PGR after 0, 1, … calls to the strong model, from mean qualities as the paper has it."""
    quality = [float(np.mean(weak))]
    answers = weak.copy()
    for row in order:
        answers[row] = strong[row]
        quality.append(float(np.mean(answers)))
    won: Floats = (np.array(quality) - np.mean(weak)) / (np.mean(strong) - np.mean(weak))
    return won


@settings(max_examples=examples(80), deadline=None)
@given(ROWS)
def test_apgr_is_the_mean_over_every_order(rows: list[tuple[int, float, float]]) -> None:
    """APGR is the area under the curve walked prompt by prompt, averaged over every order of tied prompts."""
    score, weak, strong = columns(rows)
    walks = np.mean([walked(order, weak, strong) for order in every_order(score)], axis=0)
    calls = np.linspace(0, 1, len(score) + 1)
    assert apgr(score, strong - weak) == pytest.approx(float(np.trapezoid(walks, calls)))
    at, won = curve(score, strong - weak)
    assert np.interp(calls, at, won) == pytest.approx(walks)


@settings(max_examples=examples(80), deadline=None)
@given(ROWS, st.sampled_from([0.5, 0.8, 1.0]))
def test_cpt_is_the_first_share_of_calls_that_wins_enough(rows: list[tuple[int, float, float]], share: float) -> None:
    """No smaller share of calls wins as much, on a fine grid over the curve."""
    score, weak, strong = columns(rows)
    at, won = curve(score, strong - weak)
    grid = np.union1d(np.linspace(0, 1, 20_001), at)
    found = np.interp(grid, at, won)
    first = grid[np.argmax(found >= share - 1e-9)]
    assert cpt(share, score, strong - weak) / 100 == pytest.approx(first, abs=1e-4)


def test_bootstrap_is_the_definition_on_every_draw() -> None:
    """Each vectorised draw gives what the measure itself gives on the drawn rows."""
    chance = np.random.default_rng(8)
    # In the order of the scores, in which the prompts are drawn.
    score, gain = np.sort(np.round(chance.normal(size=60), 1))[::-1], chance.choice([-1.0, 0.0, 1.0, 1.0], 60)
    drawn = np.random.default_rng(4).integers(0, 60, (50, 60))
    expected = [apgr(score[rows], gain[rows]) for rows in drawn if gain[rows].sum() > 0]
    assert bootstrap_apgr(score, gain, seed=4, draws=50) == pytest.approx(expected)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of a random router the interval holds one half about nineteen times in twenty."""
    chance, held = np.random.default_rng(1), 0
    for seed in range(60):
        gain = chance.choice([-1.0, 0.0, 1.0], 300, p=[0.1, 0.5, 0.4])
        found = measured(chance.normal(size=300), gain, seed)
        held += found.low <= 0.5 <= found.high
    assert held >= 52


def test_savings_are_counted_in_money() -> None:
    """Four prompts by hand: dear prompts weigh more, and a free choice between two knots is a straight line."""
    score = np.array([4.0, 3.0, 2.0, 1.0])
    weak, strong = np.array([0.0, 1.0, 1.0, 1.0]), np.ones(4)
    found = traded(score, weak, strong, np.array([1.0, 1.0, 1.0, 1.0]), np.array([4.0, 4.0, 4.0, 8.0]))
    assert found.saving.tolist() == [0.8, 0.65, 0.5, 0.35, 0.0]
    assert found.quality.tolist() == [0.75, 1.0, 1.0, 1.0, 1.0]
    assert found.saving_at(1.0) == pytest.approx(0.65)
    assert found.saving_at(0.875) == pytest.approx(0.725)
    assert found.saving_at(0.5) == pytest.approx(0.8)
    assert math.isnan(found.saving_at(1.1))
    assert found.quality_at(0.725) == pytest.approx(0.875)
    assert math.isnan(found.quality_at(0.9))


def test_a_true_probability_is_well_calibrated_and_a_bold_one_is_not() -> None:
    """Outcomes drawn from the probabilities leave little error; the same probabilities made bolder leave more."""
    chance = np.random.default_rng(2)
    said = chance.uniform(0.2, 0.9, 20_000)
    true = (chance.random(20_000) < said).astype(float)
    bold = Platt(3.0, 0.5)(said)
    assert ece(said, true) < 0.02 < ece(bold, true)
    assert brier(said, true) < brier(bold, true)
    assert log_loss(said, true) < log_loss(bold, true)
    found = calibration(said, true)
    assert sum(each.n for each in found.bins) == found.n
    assert {each.n for each in found.bins} == {2000}
    assert all(each.low <= each.true <= each.high for each in found.bins)
    assert found.brier < found.base_brier


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.4, 0.4, 0.9]), st.booleans()), min_size=1, max_size=60))
def test_equal_probabilities_share_a_bin(rows: list[tuple[float, bool]]) -> None:
    """Bins hold every prompt once, in rising order, and no probability stands in two of them."""
    said, true = np.array([row[0] for row in rows]), np.array([float(row[1]) for row in rows])
    bins = reliability(said, true)
    assert sum(each.n for each in bins) == len(rows)
    assert all(a.said < b.said for a, b in itertools.pairwise(bins))
    # The error summed bin by bin from the outcomes themselves.
    assert ece(said, true) <= 1


def test_ece_by_hand() -> None:
    """Two bins, each a tenth off, are a tenth off together."""
    said = np.array([0.1] * 10 + [0.9] * 10)
    true = np.array([0.0] * 8 + [1.0] * 2 + [1.0] * 8 + [0.0] * 2)
    assert ece(said, true) == pytest.approx(0.1)


def test_platt_finds_what_bent_the_probabilities() -> None:
    """From many outcomes the slope and shift come out; from few almost nothing is changed."""
    chance = np.random.default_rng(3)
    honest = chance.uniform(0.05, 0.95, 30_000)
    true = (chance.random(30_000) < honest).astype(float)
    # What was said is bent, and mending is its inverse.
    said = Platt(2.0, 0.6)(honest)
    found = platt(said, true)
    assert found.slope == pytest.approx(0.5, abs=0.03)
    assert found.shift == pytest.approx(-0.3, abs=0.05)
    assert found(said) == pytest.approx(honest, abs=0.02)
    few = platt(said[:3], true[:3])
    assert abs(few.slope - 1) < 0.7
    assert logit(Platt(1.0, 0.0)(honest)) == pytest.approx(logit(honest))


def test_platt_never_turns_the_order_round() -> None:
    """Outcomes that contradict the probabilities flatten them and no more."""
    said = np.linspace(0.1, 0.9, 400)
    found = platt(said, (said < 0.5).astype(float))
    assert found.slope > 0


def house(size: int = 800, *, blind: bool = False) -> TargetTable:
    """Three targets whose probabilities are true: a dear strong one, a cheap weak one and one that nobody needs. Where they are
    blind they say the same of every prompt.
    """
    chance = np.random.default_rng(6)
    need = chance.random(size)
    adequate = {"cheap": 0.97 - 0.7 * need, "dear": np.full(size, 0.95), "useless": np.full(size, 0.3)}
    scores = {name: (chance.random(size) < said).astype(float) for name, said in adequate.items()}
    prices = {"cheap": 1.0, "dear": 9.0, "useless": 5.0}
    said = {name: np.full(size, each.mean()) if blind else each for name, each in adequate.items()}
    return TargetTable(
        names=list(adequate),
        adequate=np.column_stack(list(said.values())),
        foretold=np.column_stack([np.full(size, prices[name]) for name in adequate]),
        score=np.column_stack([scores[name] for name in adequate]),
        cost=np.column_stack([prices[name] * chance.uniform(0.5, 1.5, size) for name in adequate]),
    )


def test_knowing_the_prompt_beats_drawing_and_every_single_target() -> None:
    """With true probabilities the curve lies over the random mix, and over the target that nobody needs."""
    found = mixed(house(), "dear", seed=0)
    assert found.area_low > found.random_area
    assert found.area_low <= found.area <= found.area_high
    useless = found.targets.index("useless")
    over = np.interp(found.single_cost[useless], found.cost, found.quality)
    assert over > found.single_quality[useless] + 0.3
    assert (np.diff(found.cost) >= 0).all()
    assert found.oracle >= found.quality.max()


def test_blind_probabilities_gain_nothing_over_drawing() -> None:
    """Probabilities that say the same of every prompt do not beat the random mix."""
    found = mixed(house(blind=True), "dear", seed=0)
    assert found.area == pytest.approx(found.random_area, abs=0.01)


FLOORS = (0.90, 0.95, 0.97, 0.99, 1.0)


def test_true_probabilities_keep_their_promises() -> None:
    """Floors chosen from true probabilities alone are kept within the interval on other prompts; lower floors save more."""
    table = house(4_000)
    found = promises(table, "dear", FLOORS, np.arange(4_000), np.ones(4_000), seed=0)
    for each in found:
        assert each.promised >= each.floor - 1e-9
        assert each.low - 0.01 <= each.promised <= each.high + 0.01
    saved = [each.saving for each in found]
    assert all(one > two for one, two in itertools.pairwise(saved))
    assert saved[-1] >= 0


def test_no_floor_is_dominated_where_the_probabilities_are_true() -> None:
    """On prompts that nothing was computed from, quality and cost rise with the floor, above every mixture of single targets."""
    table = house(4_000)
    found = promises(table, "dear", FLOORS, np.arange(4_000), np.ones(4_000), seed=1)
    assert all(one.quality <= two.quality + 0.005 for one, two in itertools.pairwise(found))
    assert all(one.cost <= two.cost for one, two in itertools.pairwise(found))
    # At the top everything goes to the dear one, and there is nothing to lead over.
    assert all(each.lead >= (0.01 if each.floor < 0.99 else -0.001) for each in found)
    assert found[-1].way > 0
