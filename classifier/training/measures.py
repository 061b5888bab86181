"""Measures of a router: exact, with ties in expectation, and with bootstrap intervals. Knows no model and no file.

PGR(c) is the share of the strong model's lead that is won when the share c of the prompts goes to it; APGR is its
integral; CPT(x) the smallest c in percent with PGR(c) >= x (RouteLLM, arXiv 2406.18665). A constant score is exactly
the random router (0.5).
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import (
    Choices,
    area,
    bounded,
    bounded_point,
    choose,
    most_lost,
    random_mix,
    singles,
    willingness_for,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BOOTSTRAPS: Final = 500
MIXED_BOOTSTRAPS: Final = 100
BINS: Final = 10
CHUNK_CELLS: Final = 4_000_000
"""Numbers held at once while drawing bootstrap samples."""
NEVER: Final = 1e-6
TINY: Final = 1e-12


def curve(score: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """Return (c, PGR(c)) with one knot for each distinct score."""
    order = np.argsort(-score, kind="stable")
    ends = _block_ends(score[order])
    return np.r_[0.0, ends / len(score)], np.r_[0.0, np.cumsum(gain[order])[ends - 1]] / gain.sum()


def _block_ends(ordered: Floats) -> Integers:
    """Return the index after each block of equal scores."""
    ends: Integers = np.r_[np.flatnonzero(np.diff(ordered)) + 1, len(ordered)].astype(np.int64)
    return ends


def apgr(score: Floats, gain: Floats) -> float:
    """Return the integral of PGR over c, 0.5 for a random router."""
    calls, won = curve(score, gain)
    return float(np.trapezoid(won, calls))


def cpt(share: float, score: Floats, gain: Floats) -> float:
    """Return the smallest percentage of calls to the strong model at which PGR reaches `share`."""
    calls, won = curve(score, gain)
    at = int(np.argmax(won >= share - TINY))
    if at == 0:
        return 0.0
    part = (share - won[at - 1]) / (won[at] - won[at - 1])
    return float(100 * (calls[at - 1] + part * (calls[at] - calls[at - 1])))


def bootstrap_apgr(score: Floats, gain: Floats, seed: int, draws: int = BOOTSTRAPS) -> Floats:
    """Return the APGR of each bootstrap sample; a sample in which the strong model gains nothing has none.

    A sample is the count of each prompt in it, so the prompts are sorted once and not once a sample.
    """
    order = np.argsort(-score, kind="stable")
    ordered, ends = gain[order], _block_ends(score[order])
    chance, size = np.random.default_rng(seed), len(gain)
    found: list[Floats] = []
    at_once = max(1, CHUNK_CELLS // size)
    for first in range(0, draws, at_once):
        count = min(at_once, draws - first)
        drawn = chance.integers(0, size, (count, size)) + size * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)
        calls = np.cumsum(times, axis=1)[:, ends - 1] / size
        won = np.cumsum(times * ordered, axis=1)[:, ends - 1]
        total = won[:, -1]
        calls, won = (np.hstack([np.zeros((count, 1)), part]) for part in (calls, won))
        area = ((won[:, 1:] + won[:, :-1]) / 2 * np.diff(calls, axis=1)).sum(axis=1)
        found.append(area[total > 0] / total[total > 0])
    return np.concatenate(found)


class Measured(msgspec.Struct, frozen=True):
    """APGR with its 95 % interval, and CPT, of one pair."""

    n: int
    apgr: float
    low: float
    high: float
    cpt50: float
    cpt80: float


def measured(score: Floats, gain: Floats, seed: int) -> Measured:
    """Return the APGR with its 95 % bootstrap interval, and the two CPTs."""
    drawn = bootstrap_apgr(score, gain, seed)
    exact = apgr(score, gain)
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (exact, exact)
    cuts = (cpt(0.5, score, gain), cpt(0.8, score, gain))
    return Measured(
        len(gain), *(round(float(value), 4) for value in (exact, low, high)), *(round(value, 1) for value in cuts)
    )


class TradeOff(msgspec.Struct, frozen=True):
    """Cost saved and quality kept, as shares of the strong model alone; one knot for each distinct score."""

    saving: Floats
    quality: Floats

    def saving_at(self, floor: float) -> float:
        """Return the largest saving that keeps the share `floor` of the strong model's quality; NaN when nothing keeps it."""
        enough = self.quality >= floor - TINY
        best = float(self.saving[enough].max()) if enough.any() else float("nan")
        crossing = np.flatnonzero(enough[1:] != enough[:-1])
        rise = self.quality[crossing + 1] - self.quality[crossing]
        part = (floor - self.quality[crossing]) / np.where(rise == 0, 1, rise)
        at = self.saving[crossing] + part * (self.saving[crossing + 1] - self.saving[crossing])
        return float(max(best, at.max())) if len(at) else best

    def quality_at(self, saving: float) -> float:
        """Return the share of the strong model's quality kept at this saving; NaN outside of what can be saved."""
        if not self.saving.min() <= saving <= self.saving.max():
            return float("nan")
        order = np.argsort(self.saving, kind="stable")
        return float(np.interp(saving, self.saving[order], self.quality[order]))


def traded(score: Floats, weak: Floats, strong: Floats, weak_cost: Floats, strong_cost: Floats) -> TradeOff:
    """Return the trade-off when prompts go to the strong model in the order of their scores, from none of them to all."""
    order = np.argsort(-score, kind="stable")
    ends = _block_ends(score[order])

    def mixed(low: Floats, high: Floats) -> Floats:
        moved = np.cumsum((high - low)[order])[ends - 1]
        sums: Floats = np.r_[0.0, moved] + low.sum()
        return sums

    cost, quality = mixed(weak_cost, strong_cost), mixed(weak, strong)
    return TradeOff(1 - cost / strong_cost.sum(), quality / strong.sum())


def brier(said: Floats, true: Floats) -> float:
    """Return the mean squared error of probabilities (Brier 1950)."""
    return float(np.mean((said - true) ** 2))


def log_loss(said: Floats, true: Floats) -> float:
    """Return the mean log loss, with probabilities bounded by NEVER."""
    sure = np.clip(said, NEVER, 1 - NEVER)
    return float(-np.mean(true * np.log(sure) + (1 - true) * np.log(1 - sure)))


class Bin(msgspec.Struct, frozen=True):
    """One bin of a reliability diagram: mean probability said, and mean true score."""

    n: int
    said: float
    true: float
    low: float
    high: float
    """`low` and `high`: 95 % Wilson interval of the true share."""


def reliability(said: Floats, true: Floats, bins: int = BINS) -> list[Bin]:
    """Return bins of equal mass, in rising order; prompts of equal probability are always in one bin."""
    order = np.argsort(said, kind="stable")
    # A cut in the middle of equal probabilities moves to their end.
    ends = _block_ends(said[order])
    wanted = np.linspace(0, len(said), min(bins, len(said)) + 1)[1:]
    cuts = np.unique(ends[np.minimum(np.searchsorted(ends, wanted - 0.5), len(ends) - 1)])
    parts = np.split(order, cuts[:-1])
    return [_bin(said[rows], true[rows]) for rows in parts]


def _bin(said: Floats, true: Floats) -> Bin:
    n, share, z = len(true), float(true.mean()), 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return Bin(n, float(said.mean()), share, max(0.0, middle - half), min(1.0, middle + half))


def ece(said: Floats, true: Floats, bins: int = BINS) -> float:
    """Return the expected calibration error over bins of equal mass."""
    found = reliability(said, true, bins)
    return sum(each.n * abs(each.said - each.true) for each in found) / len(said)


class Calibrated(msgspec.Struct, frozen=True):
    """Calibration of one model's probabilities."""

    n: int
    brier: float
    log_loss: float
    ece: float
    base_brier: float
    """Brier score of always saying the mean, which probabilities have to beat."""
    bins: list[Bin]


def calibration(said: Floats, true: Floats) -> Calibrated:
    """Return all calibration measures of these probabilities."""
    base = float(np.mean((true - true.mean()) ** 2))
    return Calibrated(
        len(said), brier(said, true), log_loss(said, true), ece(said, true), base, reliability(said, true)
    )


class Platt(msgspec.Struct, frozen=True):
    """Platt scaling: logit of the new probability = slope · logit of the old one + shift."""

    slope: float
    shift: float

    def __call__(self, said: Floats) -> Floats:
        mended: Floats = 1 / (1 + np.exp(-(self.slope * logit(said) + self.shift)))
        return mended


def logit(share: Floats) -> Floats:
    """Return log(p / (1 - p)), with p bounded by NEVER."""
    sure = np.clip(share, NEVER, 1 - NEVER)
    odds: Floats = np.log(sure / (1 - sure))
    return odds


def platt(said: Floats, true: Floats, *, prior: float = 10.0) -> Platt:
    """Fit Platt scaling by Newton's method, with (1, 0) as a prior worth `prior` prompts; without labels it changes
    nothing.
    """
    design = np.column_stack([logit(said), np.ones(len(said))])
    start = np.array([1.0, 0.0])
    weights = start.copy()
    for _ in range(50):
        share = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (share - true) + prior / 4 * (weights - start)
        bend = (design * (share * (1 - share))[:, None]).T @ design + prior / 4 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        weights -= np.clip(step, -1, 1)
        if abs(step).max() < 1e-9:
            break
    # A negative slope would turn the order round, which is no calibration.
    return Platt(max(float(weights[0]), 0.05), float(weights[1]))


class Mixed(msgspec.Struct, frozen=True):
    """Several targets at once: the router's cost-quality curve, each target alone, and a random choice of targets."""

    targets: list[str]
    reference: str
    n: int
    cost: Floats
    """The router's mean cost of a prompt along the curve, rising; in the unit of the costs given."""
    quality: Floats
    single_cost: Floats
    single_quality: Floats
    oracle: float
    """Quality where each prompt goes to a target that gets it right, if there is one."""
    area: float
    """Mean quality over the costs from the cheapest target to the dearest."""
    area_low: float
    area_high: float
    random_area: float
    least_lead: float
    """The smallest lead in quality over the random mix, between the cheapest and the dearest target."""


class TargetTable(msgspec.Struct, frozen=True):
    """The chances and costs of n prompts and T targets, as they are foretold and as they came out.

    Columns are in the order of the names; costs in any unit.
    """

    names: list[str]
    adequate: Floats
    """(n, T): P(adequate)."""
    foretold: Floats
    """(n, T): the cost by the expected length of the answer."""
    score: Floats
    cost: Floats

    def choices(self, reference: str, weights: Floats, *, known: bool = False) -> Choices:
        """Return the choices of these prompts by the forecasts; with `known`, charged and scored by the outcomes."""
        at = self.names.index(reference)
        share = weights / weights.sum()
        cost = self.cost if known else self.foretold
        return Choices(
            adequate=self.adequate,
            cost=cost,
            reference=self.adequate[:, at],
            weights=weights,
            reference_cost=float(share @ cost[:, at]),
            rank=self.foretold,
            outcome=self.score if known else None,
            reference_outcome=self.score[:, at] if known else None,
        )

    def __getitem__(self, rows: Integers) -> "TargetTable":
        parts = (self.adequate[rows], self.foretold[rows], self.score[rows], self.cost[rows])
        return TargetTable(self.names, *parts)


def mixed(answers: TargetTable, reference: str, seed: int) -> Mixed:
    """Return the router's curve over every willingness to pay, with a bootstrap interval over prompts for its area."""
    size = len(answers.score)
    choices = answers.choices(reference, np.ones(size), known=True)
    exact = choices.curve
    cost, quality = singles(choices)
    low, high = float(cost.min()), float(cost.max())
    chance, areas = np.random.default_rng(seed), []
    for _ in range(MIXED_BOOTSTRAPS):
        times = np.bincount(chance.integers(0, size, size), minlength=size).astype(np.float64)
        drawn = answers.choices(reference, times, known=True)
        alone, right = singles(drawn)
        # The interval is of the lead over the random mix of the same draw: prompts that are hard for all move both.
        own = area(drawn.curve.cost, drawn.curve.quality, low, high)
        areas.append(own - _random_area(alone, right, low, high))
    random_area = _random_area(cost, quality, low, high)
    grid = np.linspace(low, high, 201)
    order = np.argsort(exact.cost, kind="stable")
    best = np.interp(grid, exact.cost[order], np.maximum.accumulate(exact.quality[order]))
    lead_low, lead_high = np.percentile(areas, [2.5, 97.5])
    return Mixed(
        targets=answers.names,
        reference=reference,
        n=size,
        cost=exact.cost[order],
        quality=exact.quality[order],
        single_cost=cost,
        single_quality=quality,
        oracle=float(answers.score.max(axis=1).mean()),
        area=area(exact.cost, exact.quality, low, high),
        area_low=random_area + float(lead_low),
        area_high=random_area + float(lead_high),
        random_area=random_area,
        least_lead=float((best - random_mix(cost, quality, grid))[1:].min()),
    )


def _random_area(cost: Floats, quality: Floats, low: float, high: float) -> float:
    grid = np.linspace(low, high, 401)
    return float(random_mix(cost, quality, grid).mean())


class FloorOutcome(msgspec.Struct, frozen=True):
    """A minimum quality, what was foretold for it without labels, and what it really gave on prompts of other folds.

    Each with a 95 % interval over prompts.
    """

    floor: float
    willingness: float
    """Willingness to pay of the middle fold, in the unit of the costs."""
    promised: float
    kept: float
    low: float
    high: float
    quality: float
    cost: float
    saving: float
    lead: float
    """Quality above the best mixture of single targets that costs as much."""
    lead_low: float
    lead_high: float
    way: float
    """The part of the way from the best single target's quality to the oracle's; below 0 it is short of that target's."""
    way_low: float
    way_high: float


JUDGED_FOLDS: Final = 5
SAMPLED: Final = 2_000
"""Prompts that a willingness is computed on, as many as the sample that ships has."""


def promises(
    answers: TargetTable,
    reference: str,
    floors: Sequence[float],
    groups: Integers,
    weights: Floats,
    seed: int,
) -> list[FloorOutcome]:
    """Return the outcome of each floor on a sample of four fifths of the prompts, drawn by their weights as the shipped
    sample is, and what that gives on the last fifth. Prompts of one group are on one side.
    """
    size, chance = len(answers.score), np.random.default_rng(seed)
    _, group = np.unique(groups, return_inverse=True)
    fold = chance.permutation(int(group.max()) + 1)[group] % JUDGED_FOLDS
    picked = np.zeros((len(floors), size), np.int64)
    willing, promised = np.zeros((len(floors), JUDGED_FOLDS)), np.zeros((len(floors), JUDGED_FOLDS))
    for number in range(JUDGED_FOLDS):
        others, own = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        share = weights[others] / weights[others].sum()
        drawn = chance.choice(others, min(SAMPLED, len(others)), replace=False, p=share)
        foretold = answers[drawn].choices(reference, np.ones(len(drawn)))
        for at, floor in enumerate(floors):
            point = willingness_for(foretold, floor)
            kept = bounded_point(foretold, floor, point.willingness).kept
            willing[at, number], promised[at, number] = point.willingness, kept
            chances = answers.adequate[own]
            open_to = bounded(chances, chances[:, answers.names.index(reference)], most_lost(floor))
            picked[at, own] = choose(open_to, answers.foretold[own], point.willingness)
    draws = [np.bincount(chance.integers(0, size, size), minlength=size) / size for _ in range(BOOTSTRAPS)]
    happened = [np.ones(size) / size, *draws]
    found = []
    for at, floor in enumerate(floors):
        rows = np.array([_happened(answers, reference, picked[at], share) for share in happened])
        low, high = np.percentile(rows[1:], [2.5, 97.5], axis=0)
        quality, cost, kept, saving, lead, way = rows[0]
        found.append(
            FloorOutcome(
                *(
                    float(number)
                    for number in (floor, np.median(willing[at]), promised[at].mean(), kept, low[2], high[2])
                ),
                *(float(number) for number in (quality, cost, saving, lead, low[4], high[4], way, low[5], high[5])),
            )
        )
    return found


def _happened(answers: TargetTable, reference: str, picked: Integers, share: Floats) -> tuple[float, ...]:
    """Return the quality, cost, quality kept, cost saved, lead over a mixture, and the part of the way to the oracle."""
    rows, at = np.arange(len(picked)), answers.names.index(reference)
    alone, price = share @ answers.score, share @ answers.cost
    quality, cost = float(share @ answers.score[rows, picked]), float(share @ answers.cost[rows, picked])
    mixture = float(random_mix(price, alone, np.array([max(cost, float(price.min()))]))[0])
    best, oracle = float(alone.max()), float(share @ answers.score.max(axis=1))
    way = (quality - best) / max(oracle - best, TINY)
    return quality, cost, quality / max(float(alone[at]), TINY), 1 - cost / float(price[at]), quality - mixture, way
