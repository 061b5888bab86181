"""Groups of similar prompts within one team, and what each adds to a target's logit.

A team's applications send prompts cut from a few templates, so its prompts fall into clusters in the space
of sketches, and "which application is this" says more of a prompt than any model trained elsewhere can.
A group's shift is shrunk towards 0, that is towards the model of all prompts, by empirical Bayes: how far
shifts may lie from 0 is itself estimated from the team's verdicts, and where groups do not differ it is nil.
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
"""Fewer do not make a group."""
MIN_TEAM_PROMPTS: Final = 100
"""With fewer the groups of real prompts (`classifier/training/learning_curve.py`) lowered the loss and spoilt the order
of two targets by chance."""

_COUNTS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_CLUSTERED: Final = 2_000
"""Prompts that centres are found from; they do not get better from more."""
_MAX_ROUNDS: Final = 15
_STARTS: Final = 2
_FOLDS: Final = 4
_SPREADS: Final = (0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.2)
"""Standard deviations of shifts that are tried: 0.1 is next to nothing, at 2.2 an even chance becomes nine in ten."""
_NEWTON_ROUNDS: Final = 12
_SMALL_STEP: Final = 1e-4
_LONGEST_STEP: Final = 2.0
_LEAST_GAIN_ERRORS: Final = 1.5
"""Groups are kept when what they gain on rows not used for them is beyond so many standard errors."""
_LEAST_SHIFT: Final = 0.02
_REACH_PERCENTILE: Final = 2.0
_LEAST_REACH: Final = 0.2
"""Prompts of unlike words have a likeness of 0 ± 0.125 with SKETCH numbers."""

Sketch = NDArray[np.float32]


class GroupTable:
    """Every team's groups, laid out so that finding a prompt's group takes one product of a small matrix."""

    def __init__(self, groups: Mapping[str, Sequence[Group]]) -> None:
        self._teams = {team_id: (_matrix(each), tuple(each)) for team_id, each in groups.items() if each}

    def assign(self, team_id: str, sketch: Sketch) -> Group | None:
        """The group whose centre is most like the prompt, or None when even that one is unlike it."""
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
    """The same for one prompt, without a table."""
    return GroupTable({"": groups}).assign("", sketch)


def _matrix(groups: Sequence[Group]) -> NDArray[np.float32]:
    centres = np.array([group.centre for group in groups], np.float32)
    if centres.shape[1:] != (SKETCH,):
        raise ValueError(f"a group's centre has {SKETCH} numbers")
    return centres


class _Clusters(msgspec.Struct, frozen=True):
    """Unit vectors, and the least likeness that still belongs to each."""

    centres: Floats
    reach: Floats

    def members(self, sketches: Floats) -> Integers:
        """The cluster of each row, -1 where none is near."""
        if not len(self.centres):
            return np.full(len(sketches), -1, np.intp)
        likeness = sketches @ self.centres.T
        nearest = likeness.argmax(axis=1)
        near = likeness[np.arange(len(sketches)), nearest] >= self.reach[nearest]
        return np.where(near, nearest, -1)


def learn_groups(labels: Labels, logits: Floats, team_id: str, rng: np.random.Generator) -> list[Group]:
    """The groups of one team, or none where they would not help. `logits` are the rows' own, without groups.

    Rows are cut into folds by request. How many groups there are is chosen by the loss on rows whose shifts
    were found without them, and so is whether there are any.
    """
    if len(one_a_request(labels)) < MIN_TEAM_PROMPTS:
        return []
    folds = _folds(labels, rng)
    alone = losses(logits, labels.adequate)
    best: tuple[float, _Clusters] | None = None
    for clusters in _candidates(labels, rng):
        shifted = _cross_shifted(labels, logits, clusters.members(labels.sketches), len(clusters.centres), folds)
        gain = labels.weights * (alone - losses(shifted, labels.adequate))
        beyond_chance = float(gain.mean() - _LEAST_GAIN_ERRORS * gain.std() / np.sqrt(len(gain)))
        if beyond_chance > (best[0] if best is not None else 0.0):
            best = beyond_chance, clusters
    return _groups(labels, logits, best[1], team_id) if best is not None else []


def _folds(labels: Labels, rng: np.random.Generator) -> Integers:
    requests, number = np.unique(labels.requests, return_inverse=True)
    drawn = rng.permutation(len(requests)) % _FOLDS
    folds: Integers = drawn[number]
    return folds


def _candidates(labels: Labels, rng: np.random.Generator) -> list[_Clusters]:
    prompts = labels.sketches[one_a_request(labels)]
    if len(prompts) > _MOST_CLUSTERED:
        prompts = prompts[np.sort(rng.choice(len(prompts), _MOST_CLUSTERED, replace=False))]
    most = min(MAX_GROUPS, len(prompts) // MIN_PROMPTS)
    return [clusters(prompts, count, rng) for count in _COUNTS if count <= most]


def clusters(prompts: Floats, count: int, rng: np.random.Generator) -> _Clusters:
    """Spherical k-means, the best of a few seeded starts; clusters of too few prompts are left out."""
    # Half the bytes take half the time, and a sketch has no more digits than this.
    short = prompts.astype(np.float32)
    tried = [_settle(short, _spread_out(short, count, rng)) for _ in range(_STARTS)]
    centres, likeness = max(tried, key=lambda each: float(each[1].max(axis=1).sum()))
    members = likeness.argmax(axis=1)
    kept = [number for number in range(len(centres)) if (members == number).sum() >= MIN_PROMPTS]
    reach = [
        max(_LEAST_REACH, float(np.percentile(likeness[members == number, number], _REACH_PERCENTILE)))
        for number in kept
    ]
    return _Clusters(centres[kept], np.array(reach))


def _spread_out(prompts: Sketch, count: int, rng: np.random.Generator) -> Sketch:
    """Starting centres that lie apart (k-means++)."""
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


def _settle(prompts: Sketch, centres: Sketch) -> tuple[Floats, Floats]:
    members: Integers = np.full(len(prompts), -1, np.intp)
    for _ in range(_MAX_ROUNDS):
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
    """A number for each row's cluster and target together, -1 for rows of no cluster."""
    targets, target = np.unique(labels.targets, return_inverse=True)
    cells: Integers = np.where(members >= 0, target * clusters_count + members, -1)
    return cells, targets.tolist()


def _cross_shifted(labels: Labels, logits: Floats, members: Integers, count: int, folds: Integers) -> Floats:
    """Each row's logit with the shift that the other folds' verdicts give its group."""
    cells, targets = _cells(labels, members, count)
    shifted = logits.copy()
    for fold in range(_FOLDS):
        seen, rest = (folds != fold) & (cells >= 0), (folds == fold) & (cells >= 0)
        found = _shrunk(logits[seen], labels.adequate[seen], labels.weights[seen], cells[seen], count * len(targets))
        shifted[rest] += found[cells[rest]]
    return shifted


def _shrunk(logits: Floats, adequate: Floats, weights: Floats, cells: Integers, count: int) -> Floats:
    """The shift of each cell under the spread of shifts that explains the verdicts best, 0 where none does."""
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
    """The most probable shifts, and how much better than no shifts they explain the verdicts.

    One Newton iteration for all cells at once, from `shift` on; the evidence is Laplace's.
    """
    count = len(shift)
    curvature = np.full(count, precision)
    for _ in range(_NEWTON_ROUNDS):
        chances = probability(logits + shift[cells])
        slope = np.bincount(cells, weights * (adequate - chances), count) - precision * shift
        curvature = np.bincount(cells, weights * chances * (1 - chances), count) + precision
        # The prior keeps the curvature from vanishing; the bound keeps a far start from leaping over the top.
        step = np.clip(slope / curvature, -_LONGEST_STEP, _LONGEST_STEP)
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
    shift = _shrunk(logits[near], labels.adequate[near], labels.weights[near], cells[near], count * len(targets))
    by_target = shift.reshape(len(targets), count)
    verdicts = np.bincount(members[members >= 0], minlength=count)
    groups = [
        Group(
            group_id=_group_id(team_id, found.centres[number]),
            centre=[round(value, 6) for value in found.centres[number].tolist()],
            shift={
                target_id: round(float(value), 6)
                for target_id, value in zip(targets, by_target[:, number], strict=True)
                if abs(value) >= _LEAST_SHIFT
            },
            verdicts=int(verdicts[number]),
            reach=round(float(found.reach[number]), 4),
        )
        for number in range(count)
    ]
    # A group without shifts stays: without it its prompts would fall to its neighbours.
    return groups if any(group.shift for group in groups) else []


def _group_id(team_id: str, centre: Floats) -> str:
    """A name that the same centre always gets; it tells nothing of the prompts."""
    digest = hashlib.blake2b(centre.astype("<f4").tobytes(), key=team_id.encode()[:64], digest_size=4)
    return f"g_{digest.hexdigest()}"
