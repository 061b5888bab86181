"""Item-response theory on a table of outcomes: prompts have loads (factor loadings), models have abilities.

Outcome ≈ level(source, model) + loads(prompt) · ability(model). The factors are found by probabilistic principal
components with missing entries (EM; Tipping and Bishop 1999), and every prompt's outcomes are then described by a few
*loads* in one basis that all sources share. One model's 0 or 1 is mostly noise; the results of thirty models on a
prompt are much less so, and those are what the network is trained on.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LOADS: Final = 16
FACTORS: Final = 12
ROUNDS: Final = 25
LEAST_OUTCOMES: Final = 200
"""Least outcomes of a model that gets an ability of its own."""
OWN_VOICE: Final = 4.0
"""Number of answering models at which their common estimate weighs as much as a single outcome itself."""
_LEAST_SHARE: Final = 0.02
_LEVEL_ROUNDS: Final = 200
_LEVEL_PRIOR: Final = 0.3
_FIRST_NOISE: Final = 0.15
_LEAST_NOISE: Final = 0.01


class Basis(msgspec.Struct, frozen=True):
    """A linear map from loads to outcomes: `mean + loads @ rows` is each model's expected outcome, before calibration."""

    mean: Floats
    """(models,)"""
    rows: Floats
    """(loads, models), orthonormal."""

    def outcomes(self, loads: Floats) -> Floats:
        """Return (prompts, models): expected outcomes."""
        return self.mean + loads @ self.rows

    def loads(self, outcomes: Floats) -> Floats:
        """Return (prompts, loads): the loads that fit these outcomes best."""
        return (outcomes - self.mean) @ self.rows.T


class TrainingTarget(msgspec.Struct, frozen=True):
    """The values that the network is trained to predict: loads (prompts, LOADS) in a basis."""

    basis: Basis
    loads: Floats


def taught_loads(outcomes: Floats, sources: NDArray[np.str_], *, loads: int = LOADS) -> TrainingTarget:
    """Return the loads of every prompt, from its outcomes (prompts, models; NaN where a model was not asked)."""
    level, _ = source_levels(outcomes, sources)
    together = level + shared_part(outcomes - level)
    known = ~np.isnan(outcomes)
    # Where few models answered, their own outcomes say more than what could be inferred from them.
    own = 1 / (1 + known.sum(axis=1, keepdims=True) / OWN_VOICE)
    table = np.where(known, together + own * (np.nan_to_num(outcomes) - together), together)
    weights = equal_sources(sources)
    mean = weights @ table
    _, _, directions = np.linalg.svd(np.sqrt(weights)[:, None] * (table - mean), full_matrices=False)
    basis = Basis(mean, directions[:loads])
    return TrainingTarget(basis, basis.loads(table))


def equal_sources(sources: NDArray[np.str_]) -> Floats:
    """Return the weights that add up to 1 and let every source count the same, however many rows it has."""
    _, which, sizes = np.unique(sources, return_inverse=True, return_counts=True)
    weights: Floats = 1 / (len(sizes) * sizes[which])
    return weights


def source_levels(outcomes: Floats, sources: NDArray[np.str_]) -> tuple[Floats, Floats]:
    """Return (prompts, models): each model's mean in the prompt's source; and the same as (sources, models).

    For a model that was not asked in a source it is extrapolated: on the logit scale, a source has an easiness and a
    model a strength, and the two add up.
    """
    names, which = np.unique(sources, return_inverse=True)
    known = ~np.isnan(outcomes)
    counts = np.stack([known[which == at].sum(axis=0) for at in range(len(names))])
    sums = np.stack([np.nansum(outcomes[which == at], axis=0) for at in range(len(names))])
    share = np.clip(sums / np.maximum(counts, 1), _LEAST_SHARE, 1 - _LEAST_SHARE)
    asked = counts > 0
    logit = np.log(share / (1 - share))
    easiness, strength = np.zeros(len(names)), np.zeros(outcomes.shape[1])
    for _ in range(_LEVEL_ROUNDS):
        easiness = (asked * (logit - strength)).sum(axis=1) / np.maximum(asked.sum(axis=1), 1)
        strength = (asked * (logit - easiness[:, None])).sum(axis=0) / (asked.sum(axis=0) + _LEVEL_PRIOR)
    levels = np.where(asked, share, 1 / (1 + np.exp(-(easiness[:, None] + strength))))
    return levels[which], levels


def shared_part(residuals: Floats, *, factors: int = FACTORS, rounds: int = ROUNDS) -> Floats:
    """Return (prompts, models): the part of the residuals that the models have in common, by `factors` factors."""
    known = ~np.isnan(residuals)
    values = np.where(known, residuals, 0.0)
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    members = [np.flatnonzero(which.ravel() == at) for at in range(len(patterns))]
    models = residuals.shape[1]
    abilities = np.random.default_rng(0).normal(0, 0.1, (models, factors))
    noise = np.full(models, _FIRST_NOISE)
    loads = np.zeros((len(residuals), factors))
    for _ in range(rounds):
        second, first = np.zeros((models, factors, factors)), np.zeros((models, factors))
        error, count = np.zeros(models), np.zeros(models)
        for pattern, rows in zip(patterns, members, strict=True):
            asked = np.flatnonzero(pattern)
            if not len(asked):
                continue
            own = abilities[asked]
            weighed = own / noise[asked, None]
            spread = np.linalg.inv(np.eye(factors) + own.T @ weighed)
            seen = values[np.ix_(rows, asked)]
            found = seen @ weighed @ spread
            loads[rows] = found
            second[asked] += found.T @ found + len(rows) * spread
            first[asked] += seen.T @ found
            error[asked] += ((seen - found @ own.T) ** 2).sum(axis=0)
            error[asked] += len(rows) * np.einsum("mk,kl,ml->m", own, spread, own)
            count[asked] += len(rows)
        abilities = np.linalg.solve(second + np.eye(factors), first[:, :, None])[:, :, 0].astype(np.float64)
        noise = np.clip(error / np.maximum(count, 1), _LEAST_NOISE, 1.0)
    return loads @ abilities.T
