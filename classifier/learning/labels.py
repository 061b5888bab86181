"""Stored outcomes as arrays of labels; unusable ones are left out and counted."""

import math
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.tuning import SKETCH, Ability

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.intp]
Names = NDArray[np.str_]

MAX_LABELS: Final = 50_000
"""Newest labels that are used; more would not change a few dozen numbers a target."""
_BYTES_A_NUMBER: Final = 2
_MAX_LOGIT: Final = 30.0
"""Bound of logits: beyond it a probability is 0 or 1 in every digit."""


class Outcome(Protocol):
    """One target's verdict on one request, as the store returns it."""

    @property
    def request_id(self) -> str: ...
    @property
    def team_id(self) -> str: ...
    @property
    def target_id(self) -> str: ...
    @property
    def vector(self) -> bytes: ...
    @property
    def adequate(self) -> float: ...
    @property
    def weight(self) -> float: ...
    @property
    def at_us(self) -> int: ...


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length, one row for each verdict: the prompt's loads and sketch, its origin, and the verdict."""

    loads: Floats
    sketches: Floats
    adequate: Floats
    weights: Floats
    at_us: NDArray[np.int64]
    requests: Names
    teams: Names
    targets: Names

    def __len__(self) -> int:
        return len(self.adequate)

    def where(self, chosen: Bools | Integers) -> "Labels":
        """Return the selected rows."""
        return Labels(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})


def read_labels(outcomes: Iterable[Outcome], loads: int) -> tuple[Labels, dict[str, int]]:
    """Return the usable rows, oldest first, and the number left out by reason. A vector has `loads` numbers before its sketch."""
    dropped: dict[str, int] = {}
    kept: list[Outcome] = []
    for outcome in outcomes:
        reason = _drop_reason(outcome, loads)
        if reason is None:
            kept.append(outcome)
        else:
            dropped[reason] = dropped.get(reason, 0) + 1
    kept.sort(key=lambda each: (each.at_us, each.request_id, each.target_id))
    if len(kept) > MAX_LABELS:
        dropped["beyond the limit"] = len(kept) - MAX_LABELS
        del kept[:-MAX_LABELS]
    vectors = np.frombuffer(b"".join(each.vector for each in kept), "<f2").astype(np.float64)
    vectors = vectors.reshape(len(kept), loads + SKETCH)
    finite: Bools = np.asarray(np.isfinite(vectors).all(axis=1))
    if not finite.all():
        dropped["vector is not finite"] = int((~finite).sum())
    labels = Labels(
        loads=vectors[:, :loads],
        sketches=vectors[:, loads:],
        adequate=np.array([each.adequate for each in kept], np.float64),
        weights=np.array([each.weight for each in kept], np.float64),
        at_us=np.array([each.at_us for each in kept], np.int64),
        requests=np.array([each.request_id for each in kept], np.str_),
        teams=np.array([each.team_id for each in kept], np.str_),
        targets=np.array([each.target_id for each in kept], np.str_),
    )
    return labels.where(finite), dropped


def _drop_reason(outcome: Outcome, loads: int) -> str | None:
    if len(outcome.vector) != (loads + SKETCH) * _BYTES_A_NUMBER:
        return "vector of another model"
    if not 0 <= outcome.adequate <= 1:
        return "verdict outside 0 to 1"
    if not (math.isfinite(outcome.weight) and outcome.weight > 0):
        return "weight is not positive"
    return None


def probability(logits: Floats) -> Floats:
    """Return the logistic function, never exactly 0 or 1."""
    chances: Floats = 1 / (1 + np.exp(-np.clip(logits, -_MAX_LOGIT, _MAX_LOGIT)))
    return chances


def logits_of(labels: Labels, abilities: Mapping[str, Ability]) -> Floats:
    """Return each row's logit by its target's ability. Raises KeyError for a target without one."""
    logits = np.zeros(len(labels))
    for target_id in np.unique(labels.targets).tolist():
        rows = labels.targets == target_id
        ability = abilities[target_id]
        logits[rows] = ability.bias + labels.loads[rows] @ np.asarray(ability.weights, np.float64)
    return logits


def losses(logits: Floats, adequate: Floats) -> Floats:
    """Return each row's log loss; a verdict between 0 and 1 counts as a mixture of both."""
    bounded = np.clip(logits, -_MAX_LOGIT, _MAX_LOGIT)
    each: Floats = np.logaddexp(0, bounded) - adequate * bounded
    return each


def held_out(labels: Labels, share: float) -> Bools:
    """Mark the newest `share` of requests: a refit is judged on requests after those it saw, as it will be used."""
    # A request's rows, of several targets or signals, stand on one side: they are about one and the same prompt.
    requests, first = np.unique(labels.requests, return_index=True)
    newest_first = np.argsort(-labels.at_us[first], kind="stable")
    chosen = requests[newest_first[: max(1, round(len(requests) * share))]] if len(requests) else requests
    return np.isin(labels.requests, chosen)


def one_a_request(labels: Labels) -> Integers:
    """Return the first row of each request, in order."""
    _, first = np.unique(labels.requests, return_index=True)
    return np.sort(first)
