"""Two cheap answers before a dear one: their quality and cost on known outcomes, beside single models, `auto` and the oracle.

The outcomes tell who was right, not what was said. Two right answers say the same, a right and a wrong one do not; of two wrong ones it is
not known. So every figure is told for three shares of such prompts on which both say the same: all, three fifths (as measured on questions
with four options: Kim et al., Correlated Errors in Large Language Models, ICML 2025), and none. By chance alone it would be one of k - 1
for k options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import (
    Choices,
    Columns,
    Floats,
    bounded,
    choose,
    most_lost,
    singles,
    willingness_for,
)
from classifier.pairs import Pairs, choose_pairs

Integers = NDArray[np.int64]
Strings = NDArray[np.str_]

SAME_WRONG: Final = (1.0, 0.6, 0.0)
"""The shares of prompts which both get wrong on which both say the same."""
FLOORS: Final = (0.9, 0.95, 0.98, 0.99, 1.0)
"""Minimum qualities."""
FEWEST_ROWS: Final = 100
_RIGHT: Final = 0.5
_SIGMAS: Final = 1.96


class Spot(msgspec.Struct, frozen=True):
    """Mean quality, and cost as a share of the reference's."""

    quality: float
    cost: float


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Two cheap answers first; every tuple is for each of SAME_WRONG."""

    two: float
    """The share of prompts for which two are asked."""
    better: tuple[float, ...]
    """The share for which the better target is asked after them."""
    spots: tuple[Spot, ...]
    gained: tuple[float, ...]
    """Quality above that of `auto`."""
    gained_error: tuple[float, ...]
    """Half of the 95 % interval of it, from the number of prompts."""


class Cascaded(msgspec.Struct, frozen=True, kw_only=True):
    """One minimum quality: `auto` as it is, and with two cheap answers first."""

    floor: float
    auto: Spot
    asked: Asked
    """Two first, where that is worth more than the plan's own choice."""
    unasked: Asked
    """The same as lines of batches are asked without anybody's opting in."""


class CascadeMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is told of one set of targets. Costs are shares of the reference's."""

    split: str
    sources: list[str]
    targets: list[str]
    reference: str
    n: int
    single: tuple[Spot, ...]
    """Each target alone, in the order of `targets`."""
    oracle: Spot
    """The cheapest right answer of each prompt; the cheapest of all where none is."""
    always: tuple[Spot, ...]
    """The two cheapest first for every prompt, whatever the classifier says, then the reference; for each of SAME_WRONG."""
    rows: tuple[Cascaded, ...]


def judge_cascades(
    sets: Sequence[tuple[Sequence[str], str]],
    scores: Mapping[str, Floats],
    adequate: Mapping[str, Floats],
    cost_of: Callable[[str, Integers], Floats],
    foretold_cost: Callable[[str, Integers], Floats],
    sources: Strings,
    split: str,
) -> list[CascadeMeasure]:
    """Measure each set of targets, with the reference of each, on the prompts that all of them answered; none where
    there are too few.

    `scores` and `cost_of` are real, `adequate` and `foretold_cost` what the classifier says of prompts that it was not trained on; NaN where
    there is nothing.
    """
    found = []
    for targets, reference in sets:
        if not set(targets) <= scores.keys() & adequate.keys():
            continue
        true, said = (np.column_stack([table[name] for name in targets]) for table in (scores, adequate))
        rows = np.flatnonzero(np.isfinite(true + said).all(axis=1))
        if len(rows) < FEWEST_ROWS:
            continue
        at = list(targets).index(reference)
        choices = Choices(
            adequate=said[rows],
            cost=np.column_stack([cost_of(name, rows) for name in targets]),
            margin=np.column_stack([foretold_cost(name, rows) for name in targets]),
            reference=said[rows, at],
            weights=np.ones(len(rows)),
            outcome=true[rows],
            reference_outcome=true[rows, at],
        )
        named = np.unique(sources[rows]).tolist()
        found.append(measure_cascade(choices, targets, reference, split=split, sources=named))
    return found


def measure_cascade(
    choices: Choices,
    targets: Sequence[str],
    reference: str,
    *,
    split: str = "",
    sources: Sequence[str] = (),
    floors: Sequence[float] = FLOORS,
) -> CascadeMeasure:
    """Measure cascades on prompts whose every target has an outcome. `margin` is the cost that is foretold, where that
    is another.
    """
    assert choices.outcome is not None  # noqa: S101  Without outcomes there is nothing to measure.
    reference_at = list(targets).index(reference)
    whole = float(choices.share @ choices.cost[:, reference_at])
    cost, quality = singles(choices)
    return CascadeMeasure(
        split=split,
        sources=list(sources),
        targets=list(targets),
        reference=reference,
        n=len(choices.weights),
        single=tuple(Spot(float(q), float(c) / whole) for q, c in zip(quality, cost, strict=True)),
        oracle=_oracle(choices, choices.outcome, whole),
        always=_always(choices, choices.outcome, reference_at, whole),
        rows=tuple(_cascaded(choices, choices.outcome, floor, reference_at, whole) for floor in floors),
    )


def _oracle(choices: Choices, outcome: Floats, whole: float) -> Spot:
    rows = np.arange(len(outcome))
    best = outcome >= outcome.max(axis=1, keepdims=True)
    chosen = np.where(best, choices.cost, np.inf).argmin(axis=1)
    return Spot(float(choices.share @ outcome[rows, chosen]), float(choices.share @ choices.cost[rows, chosen]) / whole)


def _always(choices: Choices, outcome: Floats, reference: int, whole: float) -> tuple[Spot, ...]:
    cost, _ = singles(choices)
    first, second = (np.full(len(outcome), each) for each in [at for at in np.argsort(cost) if at != reference][:2])
    planned = np.full(len(outcome), reference)
    found = (_asked(choices, outcome, planned, Pairs(first, second, planned), same) for same in SAME_WRONG)
    return tuple(Spot(float(choices.share @ q), float(choices.share @ c) / whole) for q, c, _ in found)


def _cascaded(choices: Choices, outcome: Floats, floor: float, reference: int, whole: float) -> Cascaded:
    # Neither outcomes nor costs are known beforehand.
    foreseen = msgspec.structs.replace(
        choices,
        outcome=None,
        reference_outcome=None,
        cost=choices.compared,
        margin=None,
        reference_cost=float(choices.share @ choices.compared[:, reference]),
    )
    willingness, most = willingness_for(foreseen, floor).willingness, most_lost(floor)
    planned = choose(bounded(choices.adequate, choices.reference, most), choices.order, willingness)
    asked, unasked = (
        choose_pairs(choices.adequate, choices.order, planned, willingness, choices.reference, most, unasked=each)
        for each in (False, True)
    )
    rows = np.arange(len(planned))
    return Cascaded(
        floor=floor,
        auto=Spot(
            float(choices.share @ outcome[rows, planned]), float(choices.share @ choices.cost[rows, planned]) / whole
        ),
        asked=_told(choices, outcome, planned, asked, whole),
        unasked=_told(choices, outcome, planned, unasked, whole),
    )


def _told(choices: Choices, outcome: Floats, planned: Columns, pairs: Pairs, whole: float) -> Asked:
    alone = outcome[np.arange(len(planned)), planned]
    # Where no pair pays, the plan's own choice answers.
    third = np.where(pairs.used, pairs.third, planned)
    spots, further_shares, gained, errors = [], [], [], []
    for same in SAME_WRONG:
        quality, cost, further = _asked(choices, outcome, third, pairs, same)
        spots.append(Spot(float(choices.share @ quality), float(choices.share @ cost) / whole))
        further_shares.append(float(choices.share @ further))
        rest = quality - alone
        mean = float(choices.share @ rest)
        gained.append(mean)
        errors.append(_SIGMAS * float(np.sqrt(np.sum((choices.share * (rest - mean)) ** 2))))
    return Asked(
        two=float(choices.share @ pairs.used),
        better=tuple(further_shares),
        spots=tuple(spots),
        gained=tuple(gained),
        gained_error=tuple(errors),
    )


def _asked(
    choices: Choices, outcome: Floats, third: Columns, pairs: Pairs, same: float
) -> tuple[Floats, Floats, Floats]:
    """Return (n,) quality and cost of each prompt, and the share of its cases in which the third target is asked after
    the two. `same` is the share of shared mistakes that are the same mistake.
    """
    rows, used = np.arange(len(third)), pairs.used
    alone, price = outcome[rows, third], choices.cost[rows, third]
    one, other = (outcome[rows, each] > _RIGHT for each in (pairs.first, pairs.second))
    spent = choices.cost[rows, pairs.first] + choices.cost[rows, pairs.second]
    further = np.where(one != other, 1.0, np.where(one, 0.0, 1.0 - same))
    quality = np.where(used, np.where(one & other, 1.0, 0.0) + further * alone, alone)
    cost = np.where(used, spent + further * price, price)
    return quality, cost, np.where(used, further, 0.0)


def recorded(found: CascadeMeasure) -> dict[str, Any]:
    """Return a measure as the manifest keeps it."""
    plain: dict[str, Any] = _rounded(msgspec.to_builtins(found))
    return plain


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _spot(spot: Spot) -> str:
    return f"{spot.quality:.4f} at {spot.cost:.3f}"


def _asked_spots(asked: Asked) -> str:
    return " | ".join(
        f"{_spot(spot)} ({gain:+.4f} ±{error:.4f})"
        for spot, gain, error in zip(asked.spots, asked.gained, asked.gained_error, strict=True)
    )


def cascade_table(found: Sequence[CascadeMeasure]) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of a table for people."""
    shares = ", ".join(f"{share:.0%}" for share in SAME_WRONG)
    head = ["split", "targets", "n", "who answers", "quality", "asked of two"]
    head.append(f"two first, if {shares} of shared mistakes are the same (against auto)")
    rows = []
    for each in found:
        about = [each.split, f"{len(each.targets)}, {each.reference}", str(each.n)]
        alone = zip(each.targets, each.single, strict=True)
        rows += [
            [*about, name, _spot(spot), "-", "-"] for name, spot in (*alone, ("the cheapest right one", each.oracle))
        ]
        always = " | ".join(map(_spot, each.always))
        rows.append([*about, "the two cheapest, then the reference", "-", "100%", always])
        for row in each.rows:
            who = f"auto, minimum {row.floor:.0%}"
            for what, asked in (("two first", row.asked), ("two first, unasked", row.unasked)):
                rows.append([*about, f"{who}; {what}", _spot(row.auto), f"{asked.two:.0%}", _asked_spots(asked)])
    return head, rows
