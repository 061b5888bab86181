"""Groups of similar prompts within one team, and the shift that each adds to a target's logit.

A team's applications send prompts cut from a few templates, so its prompts fall into clusters in the space of sketches,
and the cluster says more of a prompt than any model trained elsewhere can. A group's shift is shrunk towards 0, that is
towards the model of all prompts, by empirical Bayes: the variance of shifts is itself estimated from the team's
verdicts, and where groups do not differ the shifts are 0.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.learning.labels import Floats, Integers, Labels, losses, one_a_request, probability
from classifier.tuning import SKETCH, Group

MAX_GROUPS: Final = 32
MIN_PROMPTS: Final = 20
"""Least prompts of a group."""
MIN_TEAM_PROMPTS: Final = 100
"""Least prompts of a team that gets groups: with fewer, groups of real prompts
(`classifier/training/learning_curve.py`) lowered the loss but spoilt the order of two targets by chance.
"""

_COUNTS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_MAX_CLUSTERED: Final = 2_000
"""Prompts that centres are computed from at most; more do not improve them."""
_MAX_ITERATIONS: Final = 15
_STARTS: Final = 2
_FOLDS: Final = 4
_SPREADS: Final = (0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)
"""Standard deviations of shifts that are tried: 0.1 is next to nothing, at 2.2 an even chance becomes nine in ten."""
_NEWTON_ITERATIONS: Final = 12
_SMALL_STEP: Final = 1e-4
_MAX_STEP: Final = 2.0
_MIN_GAIN_ERRORS: Final = 1.5
"""Standard errors by which the gain on held-out rows has to exceed 0 for groups to be kept."""
_MIN_SHIFT: Final = 0.02
_REACH_PERCENTILE: Final = 2.0
_MIN_REACH: Final = 0.2
"""Lower bound of a group's reach: unrelated prompts have a cosine similarity of 0 ± 0.125 with SKETCH numbers."""

Sketch = NDArray[np.float32]


class GroupTable:
    """Every team's groups, laid out so that finding a prompt's group is one product of a small matrix."""

    def __init__(self, groups: Mapping[str, Sequence[Group]]) -> None:
        self._teams = {team_id: (_matrix(each), tuple(each)) for team_id, each in groups.items() if each}

    def assign(self, team_id: str, sketch: Sketch) -> Group | None:
        """Return the group whose centre is most similar to the prompt; None when the similarity is below its reach."""
        found = self._teams.get(team_id)
        if found is None:
            return None
        centres, groups = found
        likeness = centres @ sketch
        nearest = int(likeness.argmax())
        group = groups[nearest]
        # Written so that a likeness that is no number is not near.
        return group if likeness[nearest] >= group.reach else None


def assign(sketch: Sketch, groups: Sequence[Group]) -> Group | None:
    """Return the group of one prompt in one list of groups, as `Groups.assign` does."""
    return GroupTable({"": groups}).assign("", sketch)


def _matrix(groups: Sequence[Group]) -> NDArray[np.float32]:
    centres = np.array([group.centre for group in groups], np.float32)
    if centres.shape[1:] != (SKETCH,):
        raise ValueError(f"a group's centre has {SKETCH} numbers")
    return centres


class _Clusters(msgspec.Struct, frozen=True):
    """Unit vectors, each with the least similarity of its members."""

    centres: Floats
    reach: Floats

    def members(self, sketches: Floats) -> Integers:
        """Return the cluster number of each row, -1 where none is near."""
        if not len(self.centres):
            return np.full(len(sketches), -1, np.intp)
        likeness = sketches @ self.centres.T
        nearest = likeness.argmax(axis=1)
        near = likeness[np.arange(len(sketches)), nearest] >= self.reach[nearest]
        return np.where(near, nearest, -1)


# In quotes throughout: naming it loads numpy.random, 2 MB that a process does without which only reads what was learned.
def learn_groups(labels: Labels, logits: Floats, team_id: str, rng: "np.random.Generator") -> list[Group]:
    """Return the groups of one team; none where they would not help. `logits` are the rows' own, without groups.

    The number of groups, and whether there are any, is chosen by cross-validation with folds by request: the loss on
    rows whose shifts were fitted without them.
    """
    if len(one_a_request(labels)) < MIN_TEAM_PROMPTS:
        return []
    folds = _folds(labels, rng)
    alone = losses(logits, labels.adequate)
    best: tuple[float, _Clusters] | None = None
    for clusters in _candidates(labels, rng):
        shifted = _cross_fitted_logits(labels, logits, clusters.members(labels.sketches), len(clusters.centres), folds)
        gain = labels.weights * (alone - losses(shifted, labels.adequate))
        beyond_chance = float(gain.mean() - _MIN_GAIN_ERRORS * gain.std() / np.sqrt(len(gain)))
        if beyond_chance > (best[0] if best is not None else 0.0):
            best = beyond_chance, clusters
    return _groups(labels, logits, best[1], team_id) if best is not None else []


def _folds(labels: Labels, rng: "np.random.Generator") -> Integers:
    requests, number = np.unique(labels.requests, return_inverse=True)
    drawn = rng.permutation(len(requests)) % _FOLDS
    folds: Integers = drawn[number]
    return folds


def _candidates(labels: Labels, rng: "np.random.Generator") -> list[_Clusters]:
    prompts = labels.sketches[one_a_request(labels)]
    if len(prompts) > _MAX_CLUSTERED:
        prompts = prompts[np.sort(rng.choice(len(prompts), _MAX_CLUSTERED, replace=False))]
    most = min(MAX_GROUPS, len(prompts) // MIN_PROMPTS)
    return [clusters(prompts, count, rng) for count in _COUNTS if count <= most]


def clusters(prompts: Floats, count: int, rng: "np.random.Generator") -> _Clusters:
    """Cluster by spherical k-means, the best of a few seeded starts; clusters of fewer than MIN_PROMPTS are left out."""
    # Half the bytes take half the time, and a sketch has no more digits than this.
    short = prompts.astype(np.float32)
    tried = [_converge(short, _starting_centres(short, count, rng)) for _ in range(_STARTS)]
    centres, likeness = max(tried, key=lambda each: float(each[1].max(axis=1).sum()))
    members = likeness.argmax(axis=1)
    kept = [number for number in range(len(centres)) if (members == number).sum() >= MIN_PROMPTS]
    reach = [
        max(_MIN_REACH, float(np.percentile(likeness[members == number, number], _REACH_PERCENTILE))) for number in kept
    ]
    return _Clusters(centres[kept], np.array(reach))


def _starting_centres(prompts: Sketch, count: int, rng: "np.random.Generator") -> Sketch:
    """Choose starting centres by k-means++ (Arthur and Vassilvitskii 2007)."""
    chosen = [int(rng.integers(len(prompts)))]
    apart = 1 - prompts @ prompts[chosen[0]]
    while len(chosen) < count:
        chances = np.clip(apart.astype(np.float64), 0, None) ** 2
        total = chances.sum()
        # All that is left are copies of what was chosen.
        if total <= _SMALL_STEP**2:
            break
        chosen.append(int(rng.choice(len(prompts), p=chances / total)))
        apart = np.minimum(apart, 1 - prompts @ prompts[chosen[-1]])
    return prompts[chosen]


def _converge(prompts: Sketch, centres: Sketch) -> tuple[Floats, Floats]:
    members: Integers = np.full(len(prompts), -1, np.intp)
    for _ in range(_MAX_ITERATIONS):
        nearest = (prompts @ centres.T).argmax(axis=1)
        if (nearest == members).all():
            break
        members = nearest
        sums = np.eye(len(centres), dtype=np.float32)[members].T @ prompts
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        # An empty cluster stays where it was.
        centres = np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), centres)
    return centres.astype(np.float64), (prompts @ centres.T).astype(np.float64)


def _cells(labels: Labels, members: Integers, clusters_count: int) -> tuple[Integers, list[str]]:
    """Return a number for each row's (target, cluster), -1 for rows of no cluster; and the target ids in order."""
    targets, target = np.unique(labels.targets, return_inverse=True)
    cells: Integers = np.where(members >= 0, target * clusters_count + members, -1)
    return cells, targets.tolist()


def _cross_fitted_logits(labels: Labels, logits: Floats, members: Integers, count: int, folds: Integers) -> Floats:
    """Return each row's logit plus its group's shift, as fitted to the other folds' verdicts."""
    cells, targets = _cells(labels, members, count)
    shifted = logits.copy()
    for fold in range(_FOLDS):
        seen, rest = (folds != fold) & (cells >= 0), (folds == fold) & (cells >= 0)
        found = _shrunken_shifts(
            logits[seen], labels.adequate[seen], labels.weights[seen], cells[seen], count * len(targets)
        )
        shifted[rest] += found[cells[rest]]
    return shifted


def _shrunken_shifts(logits: Floats, adequate: Floats, weights: Floats, cells: Integers, count: int) -> Floats:
    """Return the shift of each cell under the standard deviation with the highest evidence; all 0 where none beats no shifts."""
    best_evidence, best = 0.0, np.zeros(count)
    found = best
    for spread in _SPREADS:
        found, evidence = _posterior(logits, adequate, weights, cells, found, 1 / spread**2)
        if evidence > best_evidence:
            best_evidence, best = evidence, found
    return best


def _posterior(
    logits: Floats, adequate: Floats, weights: Floats, cells: Integers, shift: Floats, precision: float
) -> tuple[Floats, float]:
    """Return the most probable shifts, and the log evidence gained over no shifts.

    One Newton iteration for all cells at once, starting at `shift`; the evidence is Laplace's approximation.
    """
    count = len(shift)
    curvature = np.full(count, precision)
    for _ in range(_NEWTON_ITERATIONS):
        chances = probability(logits + shift[cells])
        slope = np.bincount(cells, weights * (adequate - chances), count) - precision * shift
        curvature = np.bincount(cells, weights * chances * (1 - chances), count) + precision
        # The prior keeps the curvature from vanishing; the bound keeps a far start from leaping over the top.
        step = np.clip(slope / curvature, -_MAX_STEP, _MAX_STEP)
        shift = shift + step
        if np.abs(step).max(initial=0.0) < _SMALL_STEP:
            break
    gained = float(weights @ (losses(logits, adequate) - losses(logits + shift[cells], adequate)))
    held = float((precision * shift**2).sum() / 2 + np.log(curvature / precision).sum() / 2)
    return shift, gained - held


def _groups(labels: Labels, logits: Floats, found: _Clusters, team_id: str) -> list[Group]:
    members = found.members(labels.sketches)
    count = len(found.centres)
    cells, targets = _cells(labels, members, count)
    near = cells >= 0
    shift = _shrunken_shifts(
        logits[near], labels.adequate[near], labels.weights[near], cells[near], count * len(targets)
    )
    by_target = shift.reshape(len(targets), count)
    verdicts = np.bincount(members[members >= 0], minlength=count)
    groups = [
        Group(
            group_id=_group_id(team_id, found.centres[number]),
            centre=[round(value, 6) for value in found.centres[number].tolist()],
            shift={
                target_id: round(float(value), 6)
                for target_id, value in zip(targets, by_target[:, number], strict=True)
                if abs(value) >= _MIN_SHIFT
            },
            verdicts=int(verdicts[number]),
            reach=round(float(found.reach[number]), 4),
        )
        for number in range(count)
    ]
    # A group without shifts stays: without it its prompts would fall to its neighbours.
    return groups if any(group.shift for group in groups) else []


def _group_id(team_id: str, centre: Floats) -> str:
    """Return a stable name of a centre, which tells nothing of the prompts."""
    digest = hashlib.blake2b(centre.astype("<f4").tobytes(), key=team_id.encode()[:64], digest_size=4)
    return f"g_{digest.hexdigest()}"
