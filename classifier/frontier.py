"""The cost-quality curve of `auto` over a sample of prompts: the quality kept and the cost, for each tolerance.

The rule is that of `proxy/policy.py`: of the targets whose loss against the reference is at most the tolerance the
cheapest is chosen; where there is none, the one most likely to be adequate. As the tolerance grows, a prompt's choice
changes only at its own losses, so the whole curve comes exactly from one sort of them.
"""

import functools
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]

_ROUNDING: Final = 1e-9
"""Slack of comparisons with a floor: sums over thousands of prompts differ in the last digits."""


class Choices(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The targets open to each of n prompts: one column for each of T targets, in the order of their ids.

    `margin` is what a target is compared by, where that is not its cost. `rank` orders a prompt's targets, cheapest
    first; it is the margin unless routing weights change it. `outcome` is each target's real score on each prompt: with
    it the curve shows the quality kept, without it the quality expected.
    """

    adequate: Floats
    """(n, T): the probability that the target's answer is adequate; -inf where the target cannot take the prompt."""
    cost: Floats
    """(n, T), in any unit."""
    reference: Floats
    """(n,): the probability that the reference's answer is adequate."""
    weights: Floats
    """(n,): number of requests that each prompt stands for."""
    margin: Floats | None = None
    rank: Floats | None = None
    work: Floats | None = None
    """(n, T): what each prompt takes of a target's capacity, in any unit."""
    outcome: Floats | None = None
    reference_outcome: Floats | None = None

    @functools.cached_property
    def share(self) -> Floats:
        """(n,): the weights as shares of their sum."""
        return np.asarray(self.weights / self.weights.sum())

    @functools.cached_property
    def worth(self) -> Floats:
        """(n, T): the quality of each answer, its outcome where known and its probability otherwise."""
        return self.adequate if self.outcome is None else self.outcome

    @property
    def reference_worth(self) -> Floats:
        """(n,): the quality of the reference's answers, in the same sense."""
        return self.reference if self.reference_outcome is None else self.reference_outcome

    @functools.cached_property
    def reference_quality(self) -> float:
        """The reference's weighted mean quality."""
        return float(self.share @ self.reference_worth)

    @functools.cached_property
    def compared(self) -> Floats:
        """(n, T): what targets are compared by, in the cost's unit."""
        return self.cost if self.margin is None else self.margin

    @functools.cached_property
    def order(self) -> Floats:
        """(n, T): the values that order a prompt's targets, lowest first."""
        return self.compared if self.rank is None else self.rank

    @functools.cached_property
    def curve(self) -> "Curve":
        """The exact curve over every tolerance."""
        return curve(self)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The sample at one tolerance. `cost`, `margin` and `work` are means of a request, the last one by column; `shares`
    are shares of requests by column.
    """

    tolerance: float
    quality: float
    kept: float
    """Quality as a share of the reference's; 1 where the reference's is 0."""
    kept_error: float
    """Standard error of `kept` from the sample's size; errors of the probabilities are not in it."""
    cost: float
    margin: float
    shares: tuple[float, ...]
    work: tuple[float, ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Every tolerance from 0 to 1 at which a choice changes, rising, with the quality, cost and margin from there on."""

    tolerance: Floats
    quality: Floats
    cost: Floats
    margin: Floats


def choose(adequate: Floats, rank: Floats, reference: Floats, tolerance: float) -> Columns:
    """(n,): the column chosen for each prompt; the first of equals."""
    capable = reference[:, None] - adequate <= tolerance
    best = adequate == adequate.max(axis=1, keepdims=True)
    open_to = np.where(capable.any(axis=1, keepdims=True), capable, best)
    return np.asarray(np.where(open_to, rank, np.inf).argmin(axis=1))


def curve(choices: Choices) -> Curve:
    """The exact curve: a prompt's choices are the ever cheaper targets that come up in the order of their losses."""
    by_place = choices.order.argsort(axis=1, kind="stable")
    place = np.empty_like(by_place)
    np.put_along_axis(place, by_place, np.arange(by_place.shape[1])[None, :], axis=1)
    by_loss = np.lexsort((place, -choices.adequate), axis=-1)
    cheapest = np.minimum.accumulate(np.take_along_axis(place, by_loss, axis=1), axis=1)
    chosen = np.take_along_axis(by_place, cheapest, axis=1)
    loss = np.take_along_axis(choices.reference[:, None] - choices.adequate, by_loss, axis=1)
    row, step = np.nonzero((cheapest[:, 1:] < cheapest[:, :-1]) & np.isfinite(loss[:, 1:]))
    # Losses below 0 are tolerated by every tolerance there is, so those steps belong to the start.
    at = np.maximum(loss[row, step + 1], 0.0)
    old, new = chosen[row, step], chosen[row, step + 1]
    rows = np.arange(len(chosen))
    order = at.argsort(kind="stable")
    tolerance = np.concatenate(([0.0], at[order]))
    # Of steps at the same tolerance only the last one's sums are true.
    last = np.flatnonzero(np.append(np.diff(tolerance) > 0, True))

    def sums(value: Floats) -> Floats:
        start = choices.share @ value[rows, chosen[:, 0]]
        steps = choices.share[row] * (value[row, new] - value[row, old])
        return np.asarray(start + np.concatenate(([0.0], np.cumsum(steps[order]))))[last]

    cost = sums(choices.cost)
    return Curve(
        tolerance=tolerance[last],
        quality=sums(choices.worth),
        cost=cost,
        margin=cost if choices.margin is None else sums(choices.margin),
    )


def point_at(choices: Choices, tolerance: float) -> Point:
    """Quality, cost and shares of the sample at one tolerance."""
    chosen = choose(choices.adequate, choices.order, choices.reference, tolerance)
    rows = np.arange(len(chosen))
    worth = choices.worth[rows, chosen]
    quality = float(choices.share @ worth)
    whole = choices.reference_quality
    # Where the reference gets nothing right there is nothing to lose.
    kept = quality / whole if whole > 0 else 1.0
    rest = choices.share * (worth - kept * choices.reference_worth)
    return Point(
        tolerance=float(tolerance),
        quality=quality,
        kept=kept,
        kept_error=float(np.sqrt(rest @ rest)) / whole if whole > 0 else 0.0,
        cost=float(choices.share @ choices.cost[rows, chosen]),
        margin=float(choices.share @ choices.compared[rows, chosen]),
        shares=_by_column(choices, chosen, choices.share),
        work=() if choices.work is None else _by_column(choices, chosen, choices.share * choices.work[rows, chosen]),
    )


def _by_column(choices: Choices, chosen: Columns, values: Floats) -> tuple[float, ...]:
    """Sums of the prompts' values by the column that was chosen for them."""
    return tuple(np.bincount(chosen, weights=values, minlength=choices.adequate.shape[1]).tolist())


def tolerance_for(choices: Choices, floor: float) -> Point:
    """The cheapest tolerance that keeps `floor` of the reference's quality, by what targets are compared by.

    Losses and gains count alike: a target that beats the reference on one prompt makes up for a loss on another. Where
    no tolerance keeps the floor (the reference is not among the columns) it is the one that keeps most.
    """
    found = choices.curve
    enough = found.quality >= floor * choices.reference_quality - _ROUNDING
    if not enough.any():
        enough = found.quality >= found.quality.max() - _ROUNDING
    return point_at(choices, float(found.tolerance[np.where(enough, found.margin, np.inf).argmin()]))


def singles(choices: Choices) -> tuple[Floats, Floats]:
    """(T,) mean cost and (T,) mean quality of each target when it gets every prompt."""
    return np.asarray(choices.share @ choices.cost), np.asarray(choices.share @ choices.worth)


def random_mix(cost: Floats, quality: Floats, at: Floats) -> Floats:
    """The best quality at given costs when targets are drawn at random, blind to the prompt: the upper convex hull."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(zip(cost.tolist(), quality.tolist(), strict=True), key=lambda spot: (spot[0], -spot[1])):
        if hull and y <= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return np.interp(at, [x for x, _ in hull], [y for _, y in hull], left=0.0)


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Slope between two points: quality gained for each unit of cost."""
    width = other[0] - one[0]
    return (other[1] - one[1]) / width if width > 0 else np.inf


def area(cost: Floats, quality: Floats, low: float, high: float) -> float:
    """The mean quality over the costs from `low` to `high`: the area under the curve, divided by its width.

    Between two points one may draw at random, so the curve is straight there; above the dearest point's cost it stays
    level, below the cheapest point's cost it is 0.
    """
    order = np.lexsort((quality, cost))
    x, y = cost[order], np.maximum.accumulate(quality[order])
    if high <= low:
        return float(np.interp(low, x, y, left=0.0))
    start = min(max(low, float(x[0])), high)
    grid = np.concatenate(([start], x[(x > start) & (x < high)], [high]))
    return float(np.trapezoid(np.interp(grid, x, y, left=0.0), grid) / (high - low))
