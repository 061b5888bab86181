"""The fit of a row: right where logistic regression is, modest where there is little, and never sure of more than it saw."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from classifier.measuring.ability_row import (
    FEWEST,
    TooFewAnswers,
    chances,
    checked_fit,
    fit_row,
    known_shift,
    mean_chance,
    plain_prior,
    prior_of,
    quantile,
    share_right,
    shifted,
)
from classifier.tuning import Ability

RNG = np.random.default_rng(3)
LOADS = RNG.normal(size=(300, 4)) * [1.0, 0.5, 0.2, 0.1]
TRUE = np.array([0.4, 1.5, -1.0, 0.5, 0.0])
RIGHT = (RNG.random(300) < chances(TRUE, LOADS)).astype(np.float64)


def test_it_is_logistic_regression() -> None:
    """With the plain prior it finds what scikit-learn does with C = 0.3."""
    theirs = LogisticRegression(C=0.3, tol=1e-10, max_iter=1_000).fit(LOADS, RIGHT)
    ours = fit_row(LOADS, RIGHT, plain_prior(4)).values
    assert ours == pytest.approx(np.r_[theirs.intercept_, theirs.coef_[0]], abs=2e-4)


def test_a_prior_of_known_rows_leads_where_there_are_few_answers() -> None:
    """With ten answers it stays near models of its kind; with three hundred it follows the answers."""
    known = {
        f"m{at}": Ability(weights=(TRUE[1:] + RNG.normal(size=4) * 0.2).tolist(), bias=float(TRUE[0] + RNG.normal()))
        for at in range(30)
    }
    prior = prior_of(known, 4)
    few = [
        np.abs(fit_row(LOADS[:10], RIGHT[:10], each).values[1:] - TRUE[1:]).sum() for each in (prior, plain_prior(4))
    ]
    assert few[0] < few[1]
    assert prior_of({"only": known["m1"]}, 4).mean.tolist() == [0.0] * 5
    assert prior_of({f"w{at}": Ability(weights=[1.0], bias=0.0) for at in range(30)}, 4).mean.tolist() == [0.0] * 5


def test_the_interval_holds_and_narrows() -> None:
    """Of many such samples about nineteen in twenty hold the true mean, and more answers say more."""
    weights = np.ones(300)
    true = float(chances(TRUE, LOADS).mean())
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        right = (rng.random(300) < chances(TRUE, LOADS)).astype(np.float64)
        found = mean_chance(fit_row(LOADS[:120], right[:120], plain_prior(4)), LOADS, weights)
        held += found.low <= true <= found.high
    assert held >= 54
    wide, narrow = (mean_chance(fit_row(LOADS[:n], RIGHT[:n], plain_prior(4)), LOADS, weights) for n in (50, 300))
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.parametrize(
    ("right", "why"),
    [
        ([1.0] * (FEWEST - 1), "too few"),
        ([1.0] * 60, "ask more questions"),
        ([0.0] * 60, "look at the unparsed answers"),
        ([1.0] * 56 + [0.0] * 4, "one-sided"),
    ],
)
def test_too_little_is_refused(right: list[float], why: str) -> None:
    """And what to do is told."""
    with pytest.raises(TooFewAnswers, match=why):
        checked_fit(LOADS[: len(right)], np.array(right), plain_prior(4))


def test_prompts_that_leave_no_doubt() -> None:
    """Answers that loads tell apart without a fault give a finite row."""
    row = fit_row(LOADS * 50, (LOADS[:, 0] > 0).astype(np.float64), plain_prior(4))
    assert np.isfinite(row.values).all()
    assert np.isfinite(row.covariance).all()


def test_a_new_row_is_put_on_the_scale_of_the_known_ones() -> None:
    """Where known rows read half a logit low on these very questions, that is what is found; of nothing, nothing."""
    known = {f"m{at}": Ability(weights=TRUE[1:].tolist(), bias=float(TRUE[0]) - 0.5) for at in range(20)}
    told = {
        name: (np.random.default_rng(at).random(300) < chances(TRUE, LOADS)).astype(np.float64)
        for at, name in enumerate(known)
    }
    assert known_shift(known, told, LOADS) == pytest.approx(0.5, abs=0.08)
    assert known_shift(known, {"other": RIGHT}, LOADS) == 0.0
    assert known_shift(known, {"m1": np.full(300, np.nan)}, LOADS) == 0.0
    assert known_shift(known, {"m1": np.ones(300)}, LOADS) == 1.0
    row = fit_row(LOADS, RIGHT, plain_prior(4))
    assert shifted(row, -0.5).values[0] == pytest.approx(row.values[0] - 0.5)


def test_shares_and_quantiles() -> None:
    """Wilson's interval stays within 0 and 1, and nothing is known of nothing."""
    assert share_right(0, 0).high == 1.0
    assert share_right(10, 10).low == pytest.approx(0.722, abs=0.001)
    assert share_right(0, 10).low == 0.0
    assert quantile([], 0.5) is None
    assert quantile([1.0, 3.0], 0.5) == 2.0
