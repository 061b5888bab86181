"""Measures of a router: exact, with ties in expectation, and with bootstrap intervals. Knows no model and no file.

PGR(c) is the share of the strong model's lead that is won when the share c of the prompts goes to it; APGR is its
integral; CPT(x) the smallest c in percent with PGR(c) >= x (RouteLLM, arXiv 2406.18665). A constant score is exactly
the random router (0.5).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import Choices, area, choose, random_mix, singles, tolerance_for

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
    """(c, PGR(c)) with one knot for each distinct score."""
    order = np.argsort(-score, kind="stable")
    ends = _block_ends(score[order])
    return np.r_[0.0, ends / len(score)], np.r_[0.0, np.cumsum(gain[order])[ends - 1]] / gain.sum()


def _block_ends(ordered: Floats) -> Integers:
    """The index after each block of equal scores."""
    ends: Integers = np.r_[np.flatnonzero(np.diff(ordered)) + 1, len(ordered)].astype(np.int64)
    return ends


def apgr(score: Floats, gain: Floats) -> float:
    """The integral of PGR over c, 0.5 for a random router."""
    calls, won = curve(score, gain)
    return float(np.trapezoid(won, calls))


def cpt(share: float, score: Floats, gain: Floats) -> float:
    """The smallest percentage of calls to the strong model at which PGR reaches `share`."""
    calls, won = curve(score, gain)
    at = int(np.argmax(won >= share - TINY))
    if at == 0:
        return 0.0
    part = (share - won[at - 1]) / (won[at] - won[at - 1])
    return float(100 * (calls[at - 1] + part * (calls[at] - calls[at - 1])))


def bootstrap_apgr(score: Floats, gain: Floats, seed: int, draws: int = BOOTSTRAPS) -> Floats:
    """APGR of each bootstrap sample; a sample in which the strong model gains nothing has none.

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
    """APGR with its 95 % bootstrap interval, and the two CPTs."""
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
        """The largest saving that keeps the share `floor` of the strong model's quality; NaN when nothing keeps it."""
        enough = self.quality >= floor - TINY
        best = float(self.saving[enough].max()) if enough.any() else float("nan")
        crossing = np.flatnonzero(enough[1:] != enough[:-1])
        rise = self.quality[crossing + 1] - self.quality[crossing]
        part = (floor - self.quality[crossing]) / np.where(rise == 0, 1, rise)
        at = self.saving[crossing] + part * (self.saving[crossing + 1] - self.saving[crossing])
        return float(max(best, at.max())) if len(at) else best

    def quality_at(self, saving: float) -> float:
        """The share of the strong model's quality kept at this saving; NaN outside of what can be saved."""
        if not self.saving.min() <= saving <= self.saving.max():
            return float("nan")
        order = np.argsort(self.saving, kind="stable")
        return float(np.interp(saving, self.saving[order], self.quality[order]))


def traded(score: Floats, weak: Floats, strong: Floats, weak_cost: Floats, strong_cost: Floats) -> TradeOff:
    """The trade-off when prompts go to the strong model in the order of their scores, from none of them to all."""
    order = np.argsort(-score, kind="stable")
    ends = _block_ends(score[order])

    def mixed(low: Floats, high: Floats) -> Floats:
        moved = np.cumsum((high - low)[order])[ends - 1]
        sums: Floats = np.r_[0.0, moved] + low.sum()
        return sums

    cost, quality = mixed(weak_cost, strong_cost), mixed(weak, strong)
    return TradeOff(1 - cost / strong_cost.sum(), quality / strong.sum())


def brier(said: Floats, true: Floats) -> float:
    """The mean squared error of probabilities (Brier 1950)."""
    return float(np.mean((said - true) ** 2))


def log_loss(said: Floats, true: Floats) -> float:
    """The mean log loss, with probabilities bounded by NEVER."""
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
    """Bins of equal mass, in rising order; prompts of equal probability are always in one bin."""
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
    """Expected calibration error over bins of equal mass."""
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
    """All calibration measures of these probabilities."""
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
    """log(p / (1 - p)), with p bounded by NEVER."""
    sure = np.clip(share, NEVER, 1 - NEVER)
    odds: Floats = np.log(sure / (1 - sure))
    return odds


def platt(said: Floats, true: Floats, *, prior: float = 10.0) -> Platt:
    """Platt scaling by Newton's method, with (1, 0) as a prior worth `prior` prompts; without labels it changes
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
    area: float
    """Mean quality over the costs from the cheapest target to the dearest."""
    area_low: float
    area_high: float
    random_area: float
    least_lead: float
    """The smallest lead in quality over the random mix, between the cheapest and the dearest target."""


def choices_of(
    adequate: Mapping[str, Floats],
    scores: Mapping[str, Floats] | None,
    costs: Mapping[str, Floats],
    reference: str,
    weights: Floats,
) -> Choices:
    """Choices with columns in the order of the names. Targets are ranked by their mean cost and charged their real one."""
    names = sorted(costs)
    said = np.column_stack([adequate[name] for name in names])
    cost = np.column_stack([costs[name] for name in names])
    return Choices(
        adequate=said,
        cost=cost,
        reference=adequate[reference],
        weights=weights,
        rank=np.broadcast_to(weights @ cost / weights.sum(), cost.shape),
        outcome=None if scores is None else np.column_stack([scores[name] for name in names]),
        reference_outcome=None if scores is None else scores[reference],
    )


def mixed(
    adequate: Mapping[str, Floats], scores: Mapping[str, Floats], costs: Mapping[str, Floats], reference: str, seed: int
) -> Mixed:
    """The router's curve over every tolerance, with a bootstrap interval over prompts for its area."""
    size = len(scores[reference])
    choices = choices_of(adequate, scores, costs, reference, np.ones(size))
    exact = choices.curve
    cost, quality = singles(choices)
    low, high = float(cost.min()), float(cost.max())
    chance, areas = np.random.default_rng(seed), []
    for _ in range(MIXED_BOOTSTRAPS):
        times = np.bincount(chance.integers(0, size, size), minlength=size).astype(np.float64)
        drawn = choices_of(adequate, scores, costs, reference, times)
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
        targets=sorted(costs),
        reference=reference,
        n=size,
        cost=exact.cost[order],
        quality=exact.quality[order],
        single_cost=cost,
        single_quality=quality,
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
    """A quality floor, the quality predicted for it without labels, and the quality and saving it really gave."""

    floor: float
    tolerance: float
    promised: float
    kept: float
    low: float
    high: float
    saving: float


def promises(
    adequate: Mapping[str, Floats],
    scores: Mapping[str, Floats],
    costs: Mapping[str, Floats],
    reference: str,
    floors: Sequence[float],
    seed: int,
) -> list[FloorOutcome]:
    """For each floor, the tolerance predicted to keep it, and the real outcome at that tolerance."""
    size = len(scores[reference])
    foretold = choices_of(adequate, None, costs, reference, np.ones(size))
    happened = choices_of(adequate, scores, costs, reference, np.ones(size))
    chance, rows, found = np.random.default_rng(seed), np.arange(size), []
    drawn = chance.integers(0, size, (BOOTSTRAPS, size))
    true = scores[reference]
    for floor in floors:
        promised = tolerance_for(foretold, floor)
        picked = choose(happened.adequate, happened.order, happened.reference, promised.tolerance)
        got = np.column_stack([scores[name] for name in sorted(costs)])[rows, picked]
        kept = got[drawn].sum(axis=1) / np.maximum(true[drawn].sum(axis=1), TINY)
        low, high = np.percentile(kept, [2.5, 97.5])
        saving = 1 - happened.cost[rows, picked].sum() / costs[reference].sum()
        numbers = (floor, promised.tolerance, promised.kept, got.sum() / true.sum(), low, high, saving)
        found.append(FloorOutcome(*(float(number) for number in numbers)))
    return found
