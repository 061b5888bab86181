"""The cost-quality curve of `auto` over a sample of prompts: the quality kept and the cost, for each price of quality.

The rule is that of `proxy/plan/route_plan.py`: each prompt goes to the target with the greatest net benefit, that is

    willingness to pay · P(adequate) - cost

(the net-benefit rule of health economics; Stinnett and Mullahy 1998). The willingness is what one more adequate answer may
cost. Of all ways to choose that spend as much none is expected to give more adequate answers (Everett 1963), so by the
chances that it is told the rule is never below a mixture of single targets. A minimum quality becomes the least willingness
that reaches it.

As the willingness rises, a prompt's choice moves up its own lower convex hull of cost over chance, and changes only at the
slopes of that hull; so the whole curve comes exactly from one sort of them.
"""

import functools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]

LEAST_LEAD: Final = 0.02
"""The least gain of routing, as a share of all answers, over targets that are drawn at random for the same money. A lower minimum
is held at the point of this gain: below, a fixed mixture would do nearly as well.

The gain that happens is a little smaller than the one that is expected: on held-out folds .0195 for .02, and .01 or more in
94 of 100 samples of 1,272 prompts.
"""
NO_LEAD: Final = 0.012
"""The gain up to which a low minimum is not held anywhere. Between this and a little more than LEAST_LEAD it is held at ever
more, so that a slightly other sample changes little.
"""
LOSS_BOUND: Final = 3.0
"""The most that one prompt may be expected to lose against the reference, as a multiple of the average loss that a minimum
allows. An average alone lets all that is hard be lost where most is easy.
"""
ALIKE: Final = 0.05
"""Chances this near to the reference's are taken to be the same, as the classifier is no surer itself where outcomes of such prompts
are known. Otherwise a dear model would be asked for what is easy, as soon as the answer is short and the last points of chance are cheap.
On held-out folds it costs little: 101.4 % of the baseline model's quality for 101.8, at the same spend.
"""
_ALIKE_OF_LOSS: Final = 2 / 3
"""And no more than this part of what one prompt may lose, so that a minimum of 1 tells all chances apart."""
_ROUNDING: Final = 1e-9
"""Slack of comparisons: sums over thousands of prompts, and slopes, differ in the last digits."""
_BEYOND: Final = 1.001
"""A step beyond the willingness at which a choice changes, for there both sides are equal."""


class Choices(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The targets open to each of n prompts: one column for each of T targets, in the order of their ids.

    `margin` is the figure by which a target is compared, where that is not its cost. `rank` is the rule's cost; it is
    the margin unless routing weights change it. `outcome` is each target's real score on each prompt: with it the curve
    shows the quality kept, without it the quality expected.
    """

    adequate: Floats
    """(n, T): the probability that the target's answer is adequate; -inf where the target cannot take the prompt."""
    cost: Floats
    """(n, T), in any unit; a willingness is in the same."""
    reference: Floats
    """(n,): the probability that the reference's answer is adequate."""
    weights: Floats
    """(n,): number of requests that each prompt stands for."""
    reference_cost: float | None = None
    """The mean cost of a request at the reference; None where it is not known."""
    margin: Floats | None = None
    rank: Floats | None = None
    work: Floats | None = None
    """(n, T): the part of a target's capacity that each prompt takes, in any unit."""
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
        """(n, T): the figures by which targets are compared, in the cost's unit."""
        return self.cost if self.margin is None else self.margin

    @functools.cached_property
    def order(self) -> Floats:
        """(n, T): the rule's costs."""
        return self.compared if self.rank is None else self.rank

    @functools.cached_property
    def curve(self) -> "Curve":
        """The exact curve over every willingness."""
        return curve(self)

    @functools.cached_property
    def lead(self) -> Floats:
        """The lead of each step of the curve over the best mixture of single targets for the same money."""
        return _lead(self)

    @functools.cached_property
    def open(self) -> Columns:
        """The columns that the rule may choose for some prompt: those that no other one beats on all of them."""
        return _unbeaten(self.adequate, self.order)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The sample at one willingness. `cost`, `margin` and `work` are means of a request, the last one by column; `shares`
    are shares of requests by column.
    """

    willingness: float
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
    """Every willingness from 0 at which a choice changes, rising, with the quality, cost and margin from there on."""

    willingness: Floats
    quality: Floats
    cost: Floats
    margin: Floats

    def just_above(self, at: int) -> float:
        """Return a willingness between this step and the next."""
        here = float(self.willingness[at])
        if at + 1 == len(self.willingness):
            return here * _BEYOND
        return (here + float(self.willingness[at + 1])) / 2


def choose(adequate: Floats, rank: Floats, willingness: float) -> Columns:
    """Return (n,): the column of the greatest net benefit for each prompt; the first of equals."""
    able = np.isfinite(adequate)
    net = np.where(able, willingness * np.where(able, adequate, 0.0) - rank, -np.inf)
    return np.asarray(net.argmax(axis=1))


def _unbeaten(adequate: Floats, rank: Floats) -> Columns:
    """Return the columns that no other one beats: as likely and as cheap on every prompt, and the first of equals. Of hundreds
    of models a few are left, and what is chosen stays the same.
    """
    chances, costs = np.ascontiguousarray(adequate.T), np.ascontiguousarray(rank.T)
    kept: list[int] = []
    for column in np.lexsort((np.arange(len(costs)), costs.sum(axis=1))).tolist():
        chance, cost = chances[column], costs[column]
        for other in kept:
            as_cheap = costs[other] <= cost if other < column else costs[other] < cost
            if as_cheap.all() and (chances[other] >= chance).all():
                break
        else:
            kept.append(column)
    return np.array(sorted(kept), dtype=np.intp)


def curve(choices: Choices) -> Curve:
    """Return the exact curve. A prompt begins with its cheapest target, and goes on to whichever costs least for each bit of
    chance.
    """
    open_columns = choices.open
    adequate, rank = choices.adequate[:, open_columns], choices.order[:, open_columns]
    able = np.isfinite(adequate)
    rows = np.arange(len(adequate))
    # Of equally cheap ones the better.
    cheap = np.where(able, rank, np.inf)
    lowest = cheap == cheap.min(axis=1, keepdims=True)
    first = np.where(lowest, adequate, -np.inf).argmax(axis=1)
    now, steps = first, []
    for _ in range(adequate.shape[1] - 1):
        gain = np.where(able, adequate, -np.inf) - adequate[rows, now][:, None]
        better = gain > 0
        slope = np.where(better, (rank - rank[rows, now][:, None]) / np.where(better, gain, 1.0), np.inf)
        least = slope.min(axis=1)
        open_ = np.flatnonzero(np.isfinite(least))
        if not len(open_):
            break
        # Of those on one line the farthest: the others would only be passed through.
        then = np.where(slope == least[:, None], gain, -np.inf).argmax(axis=1)
        steps.append((open_, now[open_], then[open_], least[open_]))
        now = now.copy()
        now[open_] = then[open_]
    row, old, new, at = _joined(steps)
    first, old, new = open_columns[first], open_columns[old], open_columns[new]
    order = at.argsort(kind="stable")
    willingness = np.concatenate(([0.0], at[order]))
    # Of steps at the same willingness only the last one's sums are true; slopes are rounded, so nearly the same is the same.
    last = np.flatnonzero(np.append(np.diff(willingness) > _ROUNDING * willingness[1:], True))

    def sums(value: Floats) -> Floats:
        start = choices.share @ value[rows, first]
        changes = choices.share[row] * (value[row, new] - value[row, old])
        return np.asarray(start + np.concatenate(([0.0], np.cumsum(changes[order]))))[last]

    cost = sums(choices.cost)
    return Curve(
        willingness=willingness[last],
        quality=sums(choices.worth),
        cost=cost,
        margin=cost if choices.margin is None else sums(choices.margin),
    )


def _joined(steps: Sequence[tuple[Columns, Columns, Columns, Floats]]) -> tuple[Columns, Columns, Columns, Floats]:
    if not steps:
        none = np.zeros(0, dtype=np.intp)
        return none, none, none, np.zeros(0)
    row, old, new, at = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    return row, old, new, at


def most_lost(floor: float) -> float:
    """Return the most that one prompt may be expected to lose against the reference at a floor, as a difference of chances."""
    return LOSS_BOUND * max(0.0, 1.0 - floor)


def alike(most: float) -> float:
    """Return the distance from the reference's chance that counts as the same, where one prompt may lose `most`."""
    return min(ALIKE, _ALIKE_OF_LOSS * most)


def likened(chance: Floats, reference: Floats, most: float) -> Floats:
    """Return (n, T): chances as they are compared, the reference's in place of what is alike."""
    near = abs(chance - reference[:, None]) <= alike(most)
    return np.asarray(np.where(near, reference[:, None], chance))


def least_chance(adequate: Floats, reference: Floats, most: float) -> Floats:
    """Return (n,): the least chance that each prompt may be left with, where it may lose `most`; the best of a prompt
    always has it.
    """
    return np.asarray(np.minimum(reference - most, adequate.max(axis=1)) - _ROUNDING)


def bounded(adequate: Floats, reference: Floats, most: float) -> Floats:
    """Return `adequate` as targets are compared by it: without those that would lose more than `most` of a prompt, where the best
    of a prompt always stays, and with the reference's chance in place of what is alike.
    """
    least = least_chance(adequate, reference, most)
    return np.asarray(np.where(adequate >= least[:, None], likened(adequate, reference, most), -np.inf))


def bounded_choice(choices: Choices, floor: float, willingness: float) -> Columns:
    """Return (n,): the column chosen for each prompt at one willingness, where no prompt may lose more than the floor lets it."""
    kept = choices.open
    adequate = bounded(choices.adequate[:, kept], choices.reference, most_lost(floor))
    return np.asarray(kept[choose(adequate, choices.order[:, kept], willingness)])


def bounded_point(choices: Choices, floor: float, willingness: float) -> Point:
    """Return the quality, cost and shares of that choice."""
    return point_of(choices, bounded_choice(choices, floor, willingness), willingness)


def point_at(choices: Choices, willingness: float) -> Point:
    """Return the quality, cost and shares of the sample at one willingness."""
    kept = choices.open
    chosen = kept[choose(choices.adequate[:, kept], choices.order[:, kept], willingness)]
    return point_of(choices, chosen, willingness)


def point_of(choices: Choices, chosen: Columns, willingness: float) -> Point:
    """Return the quality, cost and shares of the sample where these columns are chosen at a willingness."""
    rows = np.arange(len(chosen))
    worth = choices.worth[rows, chosen]
    quality = float(choices.share @ worth)
    whole = choices.reference_quality
    # Where the reference gets nothing right there is nothing to lose.
    kept = quality / whole if whole > 0 else 1.0
    rest = choices.share * (worth - kept * choices.reference_worth)
    return Point(
        willingness=float(willingness),
        quality=quality,
        kept=kept,
        kept_error=float(np.sqrt(rest @ rest)) / whole if whole > 0 else 0.0,
        cost=float(choices.share @ choices.cost[rows, chosen]),
        margin=float(choices.share @ choices.compared[rows, chosen]),
        shares=_by_column(choices, chosen, choices.share),
        work=() if choices.work is None else _by_column(choices, chosen, choices.share * choices.work[rows, chosen]),
    )


def _by_column(choices: Choices, chosen: Columns, values: Floats) -> tuple[float, ...]:
    """Sum the prompts' values by the column that was chosen for them."""
    return tuple(np.bincount(chosen, weights=values, minlength=choices.adequate.shape[1]).tolist())


def attainable(choices: Choices) -> float:
    """Return the quality of which a minimum is a share: the best for the cost of the reference.

    That is the reference's own quality at least; where its cost is not known, it is that alone.
    """
    most = choices.reference_quality
    if choices.reference_cost is not None:
        found = choices.curve
        affordable = found.quality[found.cost <= choices.reference_cost * (1 + _ROUNDING)]
        most = max(most, float(affordable.max(initial=most)))
    return most


def willingness_for(choices: Choices, floor: float, whole: float | None = None) -> Point:
    """Return the point of the least willingness that reaches `floor` of the attainable quality, and at which routing leads by
    LEAST_LEAD over a mixture of single targets, where it can.

    A floor of 1 is the best there is, whatever it costs; so is one that nothing reaches (the reference is not among the
    columns). `whole` is the attainable quality, where it is known already.
    """
    found = choices.curve
    goal = floor * (attainable(choices) if whole is None else whole)
    most = float(found.quality.max())
    at = int(np.argmax(found.quality >= (most if floor >= 1 else min(goal, most)) - _ROUNDING))
    lead = choices.lead
    wanted = min(LEAST_LEAD, 2 * (float(lead.max()) - NO_LEAD))
    if wanted > 0:
        at = max(at, int(np.argmax(lead >= wanted)))
    return point_at(choices, found.just_above(at))


def _lead(choices: Choices) -> Floats:
    """Return the lead of each step of the curve over the best mixture of single targets for the same money."""
    found = choices.curve
    alone = choices.share @ choices.worth
    able = np.isfinite(alone)
    if not able.any():
        return np.zeros(len(found.quality))
    cost = (choices.share @ choices.compared)[able]
    # Several targets, each where it is cheapest, may cost less than any alone.
    return np.asarray(found.quality - random_mix(cost, alone[able], np.maximum(found.margin, cost.min())))


def singles(choices: Choices) -> tuple[Floats, Floats]:
    """Return (T,) mean cost and (T,) mean quality of each target when it gets every prompt."""
    return np.asarray(choices.share @ choices.cost), np.asarray(choices.share @ choices.worth)


def random_mix(cost: Floats, quality: Floats, at: Floats) -> Floats:
    """Return the best quality at given costs when targets are drawn at random, blind to the prompt: the upper convex hull."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(zip(cost.tolist(), quality.tolist(), strict=True), key=lambda spot: (spot[0], -spot[1])):
        if hull and y <= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return np.interp(at, [x for x, _ in hull], [y for _, y in hull], left=0.0)


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the slope between two points: quality gained for each unit of cost."""
    width = other[0] - one[0]
    return (other[1] - one[1]) / width if width > 0 else np.inf


def area(cost: Floats, quality: Floats, low: float, high: float) -> float:
    """Return the mean quality over the costs from `low` to `high`: the area under the curve, divided by its width.

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
