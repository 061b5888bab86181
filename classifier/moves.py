"""Moves of requests between targets, once the choice is made differently.

The same sample of prompts is chosen for twice. What comes out is relative to what each target has now, so that it can be
applied to a real bill and a real mix: a prompt whose choice is the same stays where it really is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import Columns, Floats

FEWEST: Final = 20
"""Prompts below which a target's own group says nothing; all prompts are taken in their place."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One way to choose for a sample: T targets, and n of its prompts."""

    names: tuple[str, ...]
    """The T targets."""
    chosen: Columns
    """(n,): the column chosen for each prompt."""
    cost: Floats
    """(n, T): the booked cost."""
    compared: Floats
    """(n, T): the marginal cost of one more request."""
    weights: Floats
    """(n,)"""
    taken: NDArray[np.bool_]
    """Indices of these n prompts in the sample."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one target after the change. Amounts are means of a request, in the unit of the costs."""

    shares: dict[str, float]
    """Shares by the target they go to, itself included; they sum up to 1."""
    cost_now: float
    cost_then: float
    cost_error: float
    """The standard error of `cost_then`, given `cost_now`, from the number of prompts."""
    added_then: float
    full_then: float
    """The cost where our own pools have no room."""


def moves(now: Choice, then: Choice, full: Choice, of: Collection[str] | None = None) -> dict[str, Move]:
    """Return the move of each target that may be chosen now, or of these alone. `full` chooses among the targets of `then`, on
    the same prompts.
    """
    both = now.taken & then.taken
    old, new = both[now.taken], both[then.taken]
    if not both.any():
        return {}
    names = sorted({*now.names, *then.names})
    number = {name: place for place, name in enumerate(names)}
    before = _numbers(now, number)[old]
    after = _Outcome(then, new, before, number)
    when_full = _Outcome(full, new, before, number)
    weights, cost = now.weights[old], now.cost[old]
    found = {}
    for column, name in enumerate(now.names):
        if of is not None and name not in of:
            continue
        group = before == number[name]
        if group.sum() < FEWEST:
            group = np.ones(len(before), dtype=bool)
        found[name] = _move(names, number[name], cost[group, column], after, when_full, group, weights[group])
    return found


def _numbers(choice: Choice, number: Mapping[str, int]) -> Columns:
    """Return (n,): the number of the target chosen for each prompt."""
    return np.asarray(np.array([number[name] for name in choice.names], dtype=np.intp)[choice.chosen])


class _Outcome:
    """The prompts' targets and costs after the change, for those whose choice changes."""

    def __init__(self, choice: Choice, rows: NDArray[np.bool_], before: Columns, number: Mapping[str, int]) -> None:
        self.targets = _numbers(choice, number)[rows]
        self.changed = np.asarray(self.targets != before)
        spot = (np.flatnonzero(rows), choice.chosen[rows])
        self.cost = choice.cost[spot]
        self.compared = choice.compared[spot]
        self._column = {number[name]: column for column, name in enumerate(choice.names)}
        self._all = choice.compared
        self._rows = spot[0]

    def of(self, target: int, stays: Floats, group: NDArray[np.bool_], *, compared: bool = False) -> Floats:
        """Return the cost of each prompt of a group at a target: `stays` where its choice is the same."""
        changed = self.compared if compared else self.cost
        if compared and target in self._column:
            stays = self._all[self._rows[group], self._column[target]]
        return np.asarray(np.where(self.changed[group], changed[group], stays))


def _move(
    names: Sequence[str],
    target: int,
    now: Floats,
    after: _Outcome,
    full: _Outcome,
    group: NDArray[np.bool_],
    weights: Floats,
) -> Move:
    share = weights / weights.sum()
    then = after.of(target, now, group)
    mean_now, mean_then = float(share @ now), float(share @ then)
    ratio = mean_then / mean_now if mean_now > 0 else 0.0
    rest = share * (then - ratio * now)
    ends = np.where(after.changed[group], after.targets[group], target)
    return Move(
        shares={names[each]: float(share[ends == each].sum()) for each in np.unique(ends).tolist()},
        cost_now=mean_now,
        cost_then=mean_then,
        cost_error=float(np.sqrt(rest @ rest)),
        added_then=float(share @ after.of(target, now, group, compared=True)),
        full_then=float(share @ full.of(target, now, group)),
    )
