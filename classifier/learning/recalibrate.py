"""Refitting of targets' abilities to verdicts on own traffic. Pure: rows in, a proposal out.

A target's row is fitted as a logistic regression whose prior is the row that it has, so that a few labels move its
level, some hundred its slope, and only many its direction. The reported measures are taken on the newest requests,
which that fit did not see; the proposed rows are then fitted to everything.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec
import numpy as np

from classifier.learning.groups import GroupTable, assign, learn_groups
from classifier.learning.judging import Change, compare
from classifier.learning.labels import (
    Bools,
    Floats,
    Labels,
    Outcome,
    held_out,
    logits_of,
    losses,
    one_a_request,
    probability,
    read_labels,
)
from classifier.tuning import Ability, Group, Tuning

MIN_LABELS: Final = 30
"""Least labels of a target, to be split into a part to fit and a part to judge by."""
HELD_OUT_SHARE: Final = 0.3

# After so many labels the fit stands halfway between the prior and what the labels alone would say. The level of a
# house's own traffic differs most from the training data and is one number; the direction is many numbers.
_LEVEL_LABELS: Final = 20.0
_SLOPE_LABELS: Final = 50.0
_DIRECTION_LABELS: Final = 150.0
_POOLED_STRENGTH: Final = 0.3
"""Strength of a prior that is only guessed from targets of similar capability."""
_INFORMATION: Final = 0.2
"""Fisher information of a label about a logit, p · (1 - p), where p is neither near 0 nor near 1."""

_SAME_LENGTH: Final = 0.02
"""Difference of log lengths that is not worth a new version."""
_MAX_STEPS: Final = 50
_MAX_HALVINGS: Final = 20
_SMALL_STEP: Final = 1e-8
_MIN_DEVIATION: Final = 1e-6
_CAPABILITY_WIDTH: Final = 0.15
"""Width of the kernel over capabilities within which targets inform each other's guess."""
_MIN_CHANCE, _MAX_CHANCE = 0.5, 0.95
"""Assumed adequacy of targets of capability 0 and 1 when nothing is known."""

TargetVerdict = Literal["better", "worse", "too-few"]


class TooFewLabels(Exception):
    """No target has enough labels to be refitted. `counts` has the labels by target."""

    def __init__(self, counts: Mapping[str, int], dropped: Mapping[str, int]) -> None:
        told = ", ".join(f"{target_id} {count}" for target_id, count in sorted(counts.items())) or "none at all"
        odd = "".join(f"; {count} left out: {reason}" for reason, count in sorted(dropped.items()))
        super().__init__(f"no target has {MIN_LABELS} usable verdicts yet (there are: {told}{odd})")
        self.counts = dict(counts)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The state before a refit. `loads` is the number of loads that the artifact computes of a prompt."""

    artifact: str
    loads: int
    abilities: Mapping[str, Ability] = {}
    """The artifact's rows, by target id as configured."""
    capabilities: Mapping[str, float] = {}
    """The declared capability of the targets that have one, for those without a row."""
    tuning: Tuning | None = None
    """The tuning in use. One that was fitted to another artifact is ignored."""


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """One target's part of a proposal. `change` is None where there were too few labels to judge."""

    target_id: str
    verdict: TargetVerdict
    is_new: bool
    """True for a target that had no row; its `before` is a guess from its declared capability."""
    labels: int
    held_out: int
    change: Change | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The labels behind a proposal, and its effect on the held-out part."""

    labels: int
    requests: int
    held_out: int
    dropped: dict[str, int]
    targets: list[TargetReport]
    groups: dict[str, int]
    """Number of groups in the proposal, by team."""
    team_id: str | None
    """The team, when only its groups were learned and no target's row."""
    lengths: list[str] = []
    """Targets whose answers' length is that of own traffic, and was another one before."""

    @property
    def improves(self) -> bool:
        """True when any target became better or has another length, so that there is something to accept."""
        return bool(self.lengths) or any(target.verdict == "better" for target in self.targets)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A tuning that could replace the one in use, and its report."""

    tuning: Tuning
    report: Report


def recalibrate(
    outcomes: Iterable[Outcome],
    known: Known,
    *,
    version: int,
    team_id: str | None = None,
    seed: int = 0,
    lengths: Mapping[str, float] = {},
) -> Proposal:
    """Propose a tuning. Raises TooFewLabels, where there are no own `lengths` either.

    `lengths` are log ratios of own answers, by target; they need no verdicts.

    With `team_id` only that team's rows are used and only its groups are learned: one team's verdicts must not move the
    rows that every team's prompts are scored by.
    """
    labels, dropped = read_labels(outcomes, known.loads)
    if team_id is not None:
        labels = labels.where(labels.teams == team_id)
    counts = _counts(labels)
    refitted = [target_id for target_id, count in counts.items() if count >= MIN_LABELS]
    if not refitted and not lengths:
        raise TooFewLabels(counts, dropped)
    old = known.tuning if known.tuning is not None and known.tuning.artifact == known.artifact else None
    start = _starting_rows(known, old, counts)
    usable = labels.where(np.isin(labels.targets, refitted))
    test = held_out(usable, HELD_OUT_SHARE)
    work = _Refit(known, old, start, refitted if team_id is None else [], team_id, seed)
    judged = _judge(work, usable, test, refitted)
    better = [target_id for target_id, change in judged.items() if change.after.log_loss < change.before.log_loss]
    before = old.lengths if old is not None else {}
    tuning = msgspec.structs.replace(work.fitted(usable, version, better), lengths={**before, **lengths})
    report = Report(
        labels=len(labels),
        requests=len(one_a_request(labels)),
        held_out=int(test.sum()),
        dropped=dropped,
        targets=[
            TargetReport(
                target_id=target_id,
                verdict="too-few" if target_id not in judged else "better" if target_id in better else "worse",
                is_new=target_id not in start.measured,
                labels=count,
                held_out=int((usable.targets[test] == target_id).sum()),
                change=judged.get(target_id),
            )
            for target_id, count in counts.items()
        ],
        groups={team: len(groups) for team, groups in tuning.groups.items()},
        team_id=team_id,
        lengths=sorted(name for name, ratio in lengths.items() if abs(ratio - before.get(name, 0.0)) > _SAME_LENGTH),
    )
    return Proposal(tuning=tuning, report=report)


def _counts(labels: Labels) -> dict[str, int]:
    targets, counts = np.unique(labels.targets, return_counts=True)
    return dict(zip(targets.tolist(), counts.tolist(), strict=True))


class _StartingRows(msgspec.Struct, frozen=True):
    """Each target's starting row: `in_use` serves now, `priors` are the rows towards which a fit is shrunk."""

    in_use: dict[str, Ability]
    priors: dict[str, Ability]
    measured: frozenset[str]


def _starting_rows(known: Known, old: Tuning | None, counts: Mapping[str, int]) -> _StartingRows:
    tuned = old.abilities if old is not None else {}
    based = {**known.abilities, **(old.measured if old is not None else {})}
    shipped = {target_id: row for target_id, row in based.items() if len(row.weights) == known.loads}
    measured = {**shipped, **tuned}
    in_use, priors = {}, {}
    for target_id, count in counts.items():
        others = {name: row for name, row in measured.items() if name != target_id}
        guess = pooled_ability(others, known.capabilities, known.capabilities.get(target_id), known.loads)
        in_use[target_id] = measured.get(target_id, guess)
        prior = shipped.get(target_id, guess)
        # The rows behind the last tuning are most likely among these, and count once. Where it rests on more
        # than there are now, they are gone, and the tuning is what is left of them.
        if target_id in tuned and tuned[target_id] != prior and tuned[target_id].verdicts > count:
            prior = tuned[target_id]
        priors[target_id] = prior
    return _StartingRows(in_use, priors, frozenset(measured))


def pooled_ability(
    abilities: Mapping[str, Ability], capabilities: Mapping[str, float], capability: float | None, loads: int
) -> Ability:
    """Return a guess of the row of a target without one, from targets of similar declared capability, or from all where it has
    none.
    """
    near = [
        (1.0 if capability is None else _nearness(capabilities.get(target_id), capability), ability)
        for target_id, ability in abilities.items()
        if len(ability.weights) == loads
    ]
    total = sum(weight for weight, _ in near)
    if total < np.exp(-4):
        if capability is None:
            return Ability(weights=[0.0] * loads, bias=0.0)
        chance = _MIN_CHANCE + (_MAX_CHANCE - _MIN_CHANCE) * min(1.0, max(0.0, capability))
        return Ability(weights=[0.0] * loads, bias=float(np.log(chance / (1 - chance))))
    mean = sum((weight * np.asarray(row.weights) for weight, row in near), np.zeros(loads)) / total
    return Ability(
        weights=mean.tolist(),
        bias=float(sum(weight * row.bias for weight, row in near) / total),
        log_length=float(sum(weight * row.log_length for weight, row in near) / total),
    )


def _nearness(other: float | None, capability: float) -> float:
    """Return the weight of a target in the guess of one with this capability; none without a capability of its own."""
    return 0.0 if other is None else float(np.exp(-(((other - capability) / _CAPABILITY_WIDTH) ** 2)))


class _Refit:
    """The inputs of one refit, which runs twice: once to be judged and once to be proposed."""

    def __init__(
        self,
        known: Known,
        old: Tuning | None,
        start: _StartingRows,
        refitted: list[str],
        team_id: str | None,
        seed: int,
    ) -> None:
        self.known = known
        self.start = start
        self._refitted = refitted
        self._old_abilities = dict(old.abilities) if old is not None else {}
        self.old_groups = dict(old.groups) if old is not None else {}
        self._measured = dict(old.measured) if old is not None else {}
        self._team_id = team_id
        self._seed = seed

    def fitted(self, labels: Labels, version: int, targets: Iterable[str]) -> Tuning:
        """Return a tuning with these targets fitted to these rows; everything else stays as it is."""
        chosen = set(targets)
        fresh = {target_id: self._fit_row(labels, target_id) for target_id in self._refitted if target_id in chosen}
        abilities = {**self.start.in_use, **fresh}
        own = labels.where(np.isin(labels.targets, sorted(chosen)))
        groups = dict(self.old_groups)
        logits = logits_of(own, abilities)
        # One generator a team, so that another team's rows never change this one's groups.
        for team in [self._team_id] if self._team_id is not None else np.unique(own.teams).tolist():
            rows = own.teams == team
            learned = learn_groups(own.where(rows), logits[rows], team, np.random.default_rng([self._seed, 1]))
            before = self.old_groups.get(team, [])
            groups[team] = _with_old_shifts(learned, before, chosen) if learned else without_shifts(before, chosen)
        return Tuning(
            version=version,
            artifact=self.known.artifact,
            abilities={**self._old_abilities, **fresh},
            groups={team: each for team, each in groups.items() if each},
            measured=self._measured,
        )

    def _fit_row(self, labels: Labels, target_id: str) -> Ability:
        prior = self.start.priors[target_id]
        guessed = target_id not in self.start.measured
        rows = labels.where(labels.targets == target_id)
        return fit_ability(rows, prior, strength=_POOLED_STRENGTH if guessed else 1.0)


def without_shifts(groups: Iterable[Group], refitted: Collection[str]) -> list[Group]:
    """Return old groups without the shifts of targets whose row has been refitted."""
    left = [
        msgspec.structs.replace(
            group, shift={name: shift for name, shift in group.shift.items() if name not in refitted}
        )
        for group in groups
    ]
    return [group for group in left if group.shift]


def _with_old_shifts(groups: Iterable[Group], before: list[Group], refitted: set[str]) -> list[Group]:
    """Return the new groups, with the nearest old group's shifts of targets that were not refitted."""
    carried = []
    for group in groups:
        old = assign(np.asarray(group.centre, np.float32), before) if before else None
        others = {name: shift for name, shift in old.shift.items() if name not in refitted} if old is not None else {}
        carried.append(msgspec.structs.replace(group, shift={**others, **group.shift}))
    return carried


def _judge(work: _Refit, labels: Labels, test: Bools, targets: Iterable[str]) -> dict[str, Change]:
    """Return the change on the newest rows by a fit to the older ones, by target."""
    trial = work.fitted(labels.where(~test), 0, targets)
    rows = labels.where(test)
    before = logits_of(rows, work.start.in_use) + shifts(rows, work.old_groups)
    after = logits_of(rows, {**work.start.in_use, **trial.abilities}) + shifts(rows, trial.groups)
    rng = np.random.default_rng([work._seed, 2])  # noqa: SLF001 - the two are one computation
    judged = {}
    for target_id in targets:
        own = rows.targets == target_id
        if own.any():
            judged[target_id] = compare(before[own], after[own], rows.adequate[own], rows.weights[own], rng)
    return judged


def shifts(labels: Labels, groups: Mapping[str, list[Group]]) -> Floats:
    """Return the shift that groups add to each row's logit, found as serving finds it."""
    table = GroupTable(groups)
    added = np.zeros(len(labels))
    for row, (team, target_id) in enumerate(zip(labels.teams.tolist(), labels.targets.tolist(), strict=True)):
        group = table.assign(team, labels.sketches[row].astype(np.float32))
        if group is not None:
            added[row] = group.shift.get(target_id, 0.0)
    return added


def fit_ability(labels: Labels, prior: Ability, *, strength: float = 1.0) -> Ability:
    """Return the most probable row of one target, given its prior row and labels, which are all of this target.

    In coordinates where loads are centred and of one scale, the prior's precision is that of so many labels for the
    level, for the prior's own direction (its slope), and for every other direction.
    """
    centre = labels.loads.mean(axis=0)
    scale = labels.loads.std(axis=0)
    # A load that never moved in these rows says nothing, and must not be divided by.
    still = scale < _MIN_DEVIATION
    scale[still] = 1.0
    inputs = np.c_[np.ones(len(labels)), np.where(still, 0.0, (labels.loads - centre) / scale)]
    row = np.asarray(prior.weights, np.float64)
    mean = np.r_[prior.bias + centre @ row, row * scale]
    precision = _INFORMATION * strength * _prior_precision(mean[1:])
    found = _most_probable(inputs, labels.adequate, labels.weights, mean, precision)
    weights = found[1:] / scale
    return Ability(
        weights=weights.tolist(),
        bias=float(found[0] - centre @ weights),
        log_length=prior.log_length,
        verdicts=len(labels),
        # The level is as unsure as it was before the labels, less what they tell of it.
        reach=prior.reach * math.sqrt(_LEVEL_LABELS * strength / (_LEVEL_LABELS * strength + len(labels))),
    )


def _prior_precision(direction: Floats) -> Floats:
    """Return the prior's precision matrix in units of labels: first the level, then the loads."""
    precision = np.diag(np.r_[_LEVEL_LABELS, np.full(len(direction), _DIRECTION_LABELS)])
    length = float(np.linalg.norm(direction))
    if length > 0:
        along = direction / length
        precision[1:, 1:] -= (_DIRECTION_LABELS - _SLOPE_LABELS) * np.outer(along, along)
    return precision


def _most_probable(inputs: Floats, adequate: Floats, weights: Floats, mean: Floats, precision: Floats) -> Floats:
    """Find the maximum a posteriori by Newton's method on a strictly convex loss; steps that do not lower it are halved."""

    def loss(point: Floats) -> float:
        away = point - mean
        return float(weights @ losses(inputs @ point, adequate) + away @ precision @ away / 2)

    point = mean.copy()
    present = loss(point)
    for _ in range(_MAX_STEPS):
        chances = probability(inputs @ point)
        slope = inputs.T @ (weights * (chances - adequate)) + precision @ (point - mean)
        curvature = (inputs.T * (weights * chances * (1 - chances))) @ inputs + precision
        step = np.linalg.solve(curvature, slope)
        for _ in range(_MAX_HALVINGS):
            reached = loss(point - step)
            if reached <= present:
                break
            step /= 2
        else:
            break
        point = point - step
        done = float(np.abs(step).max()) < _SMALL_STEP
        present = reached
        if done:
            break
    return point
