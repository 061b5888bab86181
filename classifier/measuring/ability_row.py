"""A target's row, fitted to scored answers: the one place where measuring meets the classifier's loads.

logit P(adequate) = bias + weights · loads, as in `classifier.tuning`. Pure, and numpy only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.prediction import Prediction, Prompt
from classifier.tuning import Ability

Floats = NDArray[np.float64]

FEWEST: Final = 40
"""Least scored answers to fit a row to."""
FEWEST_OF_EACH: Final = 5
"""Least right ones, and least wrong ones: where all are alike the level may lie anywhere beyond them."""
PLAIN_STRENGTH: Final = 0.3
"""The C of a plain logistic regression, for a classifier without known rows."""
MISFIT: Final = 0.015
"""Standard deviation of what lies between a model's true mean and its row's, however many questions were asked: loads do
not tell all of a prompt. Measured by leaving models out (docs/measuring.md).
"""
MOST_SHIFT: Final = 1.0
"""The most logits that a row is moved to be on the scale of the known ones."""
_MAX_STEPS: Final = 60
_SMALL_STEP: Final = 1e-9
_MAX_LOGIT: Final = 30.0
_DRAWS: Final = 2_000
_LEAST_KNOWN: Final = 10


class TooFewAnswers(Exception):
    """There is too little to fit a row to. The message says what to do."""


class WeighsPrompts(Protocol):
    """A trained classifier, as far as measuring needs it."""

    @property
    def loads(self) -> int: ...

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction: ...


class Prior(msgspec.Struct, frozen=True):
    """The belief about a row before anything was asked: a normal distribution over (bias, weights)."""

    mean: Floats
    precision: Floats


class Row(msgspec.Struct, frozen=True):
    """A fitted row, and how sure it is."""

    values: Floats
    """The bias, then a weight for each load."""
    covariance: Floats
    answers: int

    def ability(self, log_length: float = 0.0) -> Ability:
        """Return the row as a tuning keeps it."""
        return Ability(
            weights=[round(value, 5) for value in self.values[1:].tolist()],
            bias=round(float(self.values[0]), 5),
            log_length=log_length,
            verdicts=self.answers,
        )


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def loads_of(classifier: WeighsPrompts, prompts: Iterable[Prompt]) -> Floats:
    """Return (n, loads) of prompts, as requests' abilities meet them."""
    vectors = [np.frombuffer(classifier.classify(prompt).vector, "<f2")[: classifier.loads] for prompt in prompts]
    return np.array(vectors, np.float64).reshape(len(vectors), classifier.loads)


def plain_prior(loads: int, strength: float = PLAIN_STRENGTH) -> Prior:
    """Return the prior of a logistic regression with L2: weights near 0, a level that is free."""
    return Prior(np.zeros(loads + 1), np.diag(np.r_[1e-4, np.full(loads, 1 / strength)]))


def prior_of(known: Mapping[str, Ability], loads: int) -> Prior:
    """Return the prior that the rows of known models give: a new model is likely to be one of their kind.

    Their spread is shrunk halfway towards its own diagonal, for a few dozen rows say little of how loads go together, and
    doubled, for a new model need not be of the old kind. With hardly any known rows it is the plain one.
    """
    rows = np.array([[row.bias, *row.weights] for row in known.values() if len(row.weights) == loads], np.float64)
    if len(rows) < _LEAST_KNOWN:
        return plain_prior(loads)
    spread = np.cov(rows, rowvar=False)
    diagonal = np.diag(np.diag(spread))
    wide = 2 * (0.5 * spread + 0.5 * diagonal + 0.01 * np.eye(loads + 1))
    precision = np.linalg.inv(wide).astype(np.float64)
    return Prior(rows.mean(axis=0), precision)


def fit_row(loads: Floats, right: Floats, prior: Prior) -> Row:
    """Return the most probable row for answers (1 right, 0 wrong) on prompts with these loads, by Newton's method."""
    inputs = np.c_[np.ones(len(loads)), loads]
    row = prior.mean.copy()
    hessian = prior.precision
    for _ in range(_MAX_STEPS):
        said = _logistic(inputs @ row)
        gradient = inputs.T @ (said - right) + prior.precision @ (row - prior.mean)
        hessian = (inputs * (said * (1 - said))[:, None]).T @ inputs + prior.precision
        step = np.linalg.solve(hessian, gradient)
        # The loss is convex; a full step may still leap over its bottom where chances are near 0 or 1.
        row = row - step * min(1.0, 5.0 / max(1e-12, float(np.abs(inputs @ step).max(initial=0.0))))
        if float(np.abs(step).max()) < _SMALL_STEP:
            break
    covariance = np.linalg.inv(hessian).astype(np.float64)
    return Row(row, covariance, len(loads))


def checked_fit(loads: Floats, right: Floats, prior: Prior) -> Row:
    """Fit a row as `fit_row` does. Raises TooFewAnswers where so few answers, or such one-sided ones, place nobody."""
    count, rights = len(right), int(right.sum())
    if count < FEWEST:
        raise TooFewAnswers(f"{count} scored answers are too few to place a model; {FEWEST} are needed, 200 are good")
    if min(rights, count - rights) < FEWEST_OF_EACH:
        raise TooFewAnswers(
            f"{rights} of {count} answers are right: so one-sided they do not tell how far beyond them the model is; "
            + (
                "look at the unparsed answers, or declare a low `capability`"
                if rights < FEWEST_OF_EACH
                else "ask more questions"
            )
        )
    return fit_row(loads, right, prior)


def known_shift(known: Mapping[str, Ability], outcomes: Mapping[str, Floats], loads: Floats) -> float:
    """Return the logits by which the known models' rows fall short of those models' results on these very questions.

    The rows that ship were fitted to many other prompts, and read a few points low or high on a choice of questions. A new
    row is compared with them, so it is put on their scale. `outcomes` has 1, 0 or NaN for each question, by model.
    """
    logits: list[Floats] = []
    right: list[Floats] = []
    for name, told in outcomes.items():
        row = known.get(name)
        if row is not None and len(row.weights) == loads.shape[1]:
            there = ~np.isnan(told)
            logits.append(row.bias + loads[there] @ np.array(row.weights))
            right.append(told[there])
    if sum(map(len, right)) < FEWEST:
        return 0.0
    said, true = np.concatenate(logits), np.concatenate(right)
    shift = 0.0
    for _ in range(_MAX_STEPS):
        chance = _logistic(said + shift)
        step = float((chance - true).sum() / max(1e-9, (chance * (1 - chance)).sum()))
        shift -= float(np.clip(step, -1.0, 1.0))
        if abs(step) < _SMALL_STEP:
            break
    return float(np.clip(shift, -MOST_SHIFT, MOST_SHIFT))


def shifted(row: Row, logits: float) -> Row:
    """Return the row with another level."""
    return Row(np.r_[row.values[0] + logits, row.values[1:]], row.covariance, row.answers)


def chances(row: Floats, loads: Floats) -> Floats:
    """Return the chance of an adequate answer on prompts with these loads."""
    return _logistic(row[0] + loads @ row[1:])


def mean_chance(row: Row, loads: Floats, weights: Floats, *, seed: int = 0) -> Interval:
    """Return the weighted mean chance over prompts with these loads. Its interval has the row's own uncertainty, and what no row
    can tell.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal(row.values, row.covariance, _DRAWS, method="svd")
    share = weights / weights.sum()
    means = _logistic(np.c_[np.ones(len(loads)), loads] @ drawn.T).T @ share
    low, high = np.quantile(means + rng.normal(0, MISFIT, _DRAWS), [0.025, 0.975])
    return Interval(float(chances(row.values, loads) @ share), max(0.0, float(low)), min(1.0, float(high)))


def mean_chances(abilities: Mapping[str, Ability], loads: Floats, weights: Floats) -> dict[str, float]:
    """Return the weighted mean chance of each known model."""
    share = weights / weights.sum()
    rows = {name: np.r_[row.bias, row.weights] for name, row in abilities.items() if len(row.weights) == loads.shape[1]}
    return {name: float(chances(row, loads) @ share) for name, row in rows.items()}


def share_right(right: int, count: int) -> Interval:
    """Return a share with its Wilson interval."""
    if count == 0:
        return Interval(0.0, 0.0, 1.0)
    z = 1.96
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    return Interval(share, max(0.0, middle - reach), min(1.0, middle + reach))


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile; None of nothing."""
    return float(np.quantile(np.array(values), share)) if values else None


def _logistic(logits: Any) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(logits, -_MAX_LOGIT, _MAX_LOGIT)))
    return found
