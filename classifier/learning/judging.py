"""Quality of probabilities on held-out rows, with bootstrap intervals of a change."""

from typing import Final

import msgspec
import numpy as np

from classifier.learning.labels import Floats, Integers, losses, probability

_BINS: Final = 10
_RESAMPLES: Final = 300
_INTERVAL: Final = (2.5, 97.5)
_MAX_CELLS: Final = 4_000_000
"""Resamples times rows held at once; more rows get fewer resamples, and need fewer."""
_MIN_RESAMPLES: Final = 40


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of one target's probabilities. The first three are better when lower, the last when higher."""

    log_loss: float
    brier: float
    ece: float
    """Expected calibration error, in ten bins of equal width."""
    pair_accuracy: float
    """Area under the ROC curve: how often an adequate answer was rated above an inadequate one; 0.5 is chance."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of the same rows before and after; `low` and `high` bound after - before, a 95 % bootstrap interval."""

    before: Measures
    after: Measures
    low: Measures
    high: Measures


# In quotes throughout: naming it loads numpy.random, 2 MB that a process does without which only reads what was learned.
def compare(before: Floats, after: Floats, adequate: Floats, weights: Floats, rng: "np.random.Generator") -> Change:
    """Compare two vectors of logits for the same verdicts."""
    rows = len(adequate)
    resamples = max(_MIN_RESAMPLES, min(_RESAMPLES, _MAX_CELLS // max(rows, 1)))
    drawn = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples) * weights
    differences = _measure_all(after, adequate, drawn) - _measure_all(before, adequate, drawn)
    low, high = np.nanpercentile(differences, _INTERVAL, axis=1)
    return Change(
        before=_as_measures(_measure_all(before, adequate, weights[None])[:, 0]),
        after=_as_measures(_measure_all(after, adequate, weights[None])[:, 0]),
        low=_as_measures(low),
        high=_as_measures(high),
    )


def _as_measures(values: Floats) -> Measures:
    log_loss, brier, ece, pair_accuracy = values.tolist()
    return Measures(log_loss=log_loss, brier=brier, ece=ece, pair_accuracy=pair_accuracy)


def _measure_all(logits: Floats, adequate: Floats, weights: Floats) -> Floats:
    """Return (4, resamples): the measures for each row of weights."""
    chances = probability(logits)
    total = weights.sum(axis=1)
    # A resample of a few rows could miss all that count.
    total[total == 0] = np.nan
    return np.stack(
        [
            weights @ losses(logits, adequate) / total,
            weights @ (chances - adequate) ** 2 / total,
            _calibration_error(chances, adequate, weights) / total,
            _pair_accuracy(chances, adequate, weights),
        ]
    )


def _calibration_error(chances: Floats, adequate: Floats, weights: Floats) -> Floats:
    bins = np.minimum((chances * _BINS).astype(np.intp), _BINS - 1)
    members = np.eye(_BINS)[bins]
    errors: Floats = np.abs(weights @ (members * (chances - adequate)[:, None])).sum(axis=1)
    return errors


def _pair_accuracy(chances: Floats, adequate: Floats, weights: Floats) -> Floats:
    """Return the area under the ROC curve, with ties as halves; 0.5 where there is only one class."""
    order = np.argsort(chances, kind="stable")
    starts: Integers = np.flatnonzero(np.r_[True, np.diff(chances[order]) > 0])
    ordered = weights[:, order]
    good = np.add.reduceat(ordered * adequate[order], starts, axis=1)
    bad = np.add.reduceat(ordered * (1 - adequate[order]), starts, axis=1)
    below = np.cumsum(bad, axis=1) - bad / 2
    pairs = good.sum(axis=1) * bad.sum(axis=1)
    found: Floats = np.where(pairs > 0, (good * below).sum(axis=1) / np.where(pairs > 0, pairs, 1), 0.5)
    return found
