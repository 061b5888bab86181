"""How good probabilities are on rows that they were not fitted to, with bootstrap intervals of a change."""

from typing import Final

import msgspec
import numpy as np

from classifier.learning.labels import Floats, Integers, losses, probability

_BINS: Final = 10
_RESAMPLES: Final = 300
_INTERVAL: Final = (2.5, 97.5)
_MOST_CELLS: Final = 4_000_000
"""Resamples times rows held at once; more rows get fewer resamples, and need fewer."""
_FEWEST_RESAMPLES: Final = 40


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one target's probabilities. The first three are better when lower, the last when higher."""

    log_loss: float
    brier: float
    ece: float
    """Expected calibration error, in ten bins of equal width."""
    pair_accuracy: float
    """Of an adequate and an inadequate answer, how often the adequate one was rated higher; 0.5 is a coin."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The same rows before and after; `low` and `high` bound the difference after - before in 95 of 100 resamples."""

    before: Measures
    after: Measures
    low: Measures
    high: Measures


def compare(before: Floats, after: Floats, adequate: Floats, weights: Floats, rng: np.random.Generator) -> Change:
    """Two rows of logits for the same verdicts."""
    rows = len(adequate)
    resamples = max(_FEWEST_RESAMPLES, min(_RESAMPLES, _MOST_CELLS // max(rows, 1)))
    drawn = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples) * weights
    differences = _measured(after, adequate, drawn) - _measured(before, adequate, drawn)
    low, high = np.nanpercentile(differences, _INTERVAL, axis=1)
    return Change(
        before=_named(_measured(before, adequate, weights[None])[:, 0]),
        after=_named(_measured(after, adequate, weights[None])[:, 0]),
        low=_named(low),
        high=_named(high),
    )


def _named(values: Floats) -> Measures:
    log_loss, brier, ece, pair_accuracy = values.tolist()
    return Measures(log_loss=log_loss, brier=brier, ece=ece, pair_accuracy=pair_accuracy)


def _measured(logits: Floats, adequate: Floats, weights: Floats) -> Floats:
    """The four measures, a column for each row of weights."""
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
    """The area under the ROC curve, with ties as halves; a coin where there is only one class."""
    order = np.argsort(chances, kind="stable")
    starts: Integers = np.flatnonzero(np.r_[True, np.diff(chances[order]) > 0])
    ordered = weights[:, order]
    good = np.add.reduceat(ordered * adequate[order], starts, axis=1)
    bad = np.add.reduceat(ordered * (1 - adequate[order]), starts, axis=1)
    below = np.cumsum(bad, axis=1) - bad / 2
    pairs = good.sum(axis=1) * bad.sum(axis=1)
    found: Floats = np.where(pairs > 0, (good * below).sum(axis=1) / np.where(pairs > 0, pairs, 1), 0.5)
    return found
