"""The four measures, against what they are defined as."""

import numpy as np
import pytest

from classifier.learning.judging import compare
from classifier.learning.labels import Floats, probability


def naive_pairs(chances: Floats, adequate: Floats) -> float:
    good, bad = chances[adequate == 1], chances[adequate == 0]
    return float(np.mean([(g > b) + (g == b) / 2 for g in good for b in bad]))


def drawn(rows: int = 200) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=rows).round(1)
    return logits, (rng.random(rows) < probability(logits)).astype(float)


def test_measures_are_what_they_are_defined_as() -> None:
    """Brier score, pair accuracy with ties as halves, calibration error in ten bins."""
    logits, adequate = drawn()
    found = compare(logits, logits, adequate, np.ones(200), np.random.default_rng(0)).before
    chances = probability(logits)
    bins = (chances * 10).astype(int)
    error = sum(abs((chances - adequate)[bins == each].sum()) for each in range(10)) / 200
    assert found.brier == pytest.approx(((chances - adequate) ** 2).mean())
    assert found.pair_accuracy == pytest.approx(naive_pairs(chances, adequate))
    assert found.ece == pytest.approx(error)


def test_a_change_is_bounded_by_its_interval_and_no_change_is_none() -> None:
    """The interval of a real gain excludes 0; that of no change is 0."""
    logits, adequate = drawn()
    better = compare(np.full(200, 2.0), logits, adequate, np.ones(200), np.random.default_rng(0))
    assert better.low.log_loss < better.after.log_loss - better.before.log_loss < better.high.log_loss < 0
    assert better.before.pair_accuracy == 0.5
    assert better.low.pair_accuracy > 0
    same = compare(logits, logits, adequate, np.ones(200), np.random.default_rng(0))
    assert (same.low, same.high) == (same.low, same.low)


def test_weights_count_as_copies() -> None:
    """A row of weight 3 measures as three rows."""
    logits, adequate = drawn(40)
    weights = np.ones(40)
    weights[:10] = 3
    order = np.r_[np.repeat(np.arange(10), 3), np.arange(10, 40)]
    weighed = compare(logits, logits, adequate, weights, np.random.default_rng(0)).after
    copied = compare(logits[order], logits[order], adequate[order], np.ones(60), np.random.default_rng(0)).after
    for name in weighed.__struct_fields__:
        assert getattr(weighed, name) == pytest.approx(getattr(copied, name))


@pytest.mark.parametrize("adequate", [0.0, 1.0])
def test_one_class_and_one_row_have_measures(adequate: float) -> None:
    """Nothing is undefined: pairs that do not exist are a coin's."""
    for rows in (1, 30):
        change = compare(
            np.zeros(rows), np.ones(rows), np.full(rows, adequate), np.ones(rows), np.random.default_rng(0)
        )
        assert change.after.pair_accuracy == 0.5
        assert np.isfinite([change.low.log_loss, change.high.log_loss]).all()
