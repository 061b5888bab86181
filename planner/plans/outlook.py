"""A cautious and a hopeful plan for the same question, and what decides between them."""

from typing import Any

import msgspec

from cost.shown import percent
from planner.plans.efficiency import EFFICIENCIES, Reach
from planner.plans.models import KvPrecision
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Candidate, Plan, Question, plan

_FACTORS = {
    "prefill": "a prompt's operations",
    "decode": "an answer's operations",
    "kv_read": "reading the cache",
    "fp8_kv_read": "reading the FP8 cache",
}


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the same question with an engine as NVIDIA publishes its own."""

    hopeful: Plan
    layout: str
    """The hopeful plan's division of the model."""
    hopeful_rate: float
    """Requests per second of one such replica within the targets."""
    cautious_rate: float | None
    """The same by the cautious plan; None where that replica cannot meet the targets at all."""
    differences: tuple[str, ...]
    """Factors in which the two differ."""

    @property
    def deciding(self) -> str:
        """The measurement that decides which of the two to buy."""
        cautious = (
            "cannot meet the targets at all" if self.cautious_rate is None else f"carries {self.cautious_rate:.3g}"
        )
        return (
            f"one replica of {self.layout} decides: the hopeful plan is right if it carries {self.hopeful_rate:.3g} requests/s "
            f"within the targets; by the cautious one it {cautious}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the hopeful plan as plain values, and what decides between the two."""
        return {**self.hopeful.as_json(), "deciding": self.deciding}


def outlook_of(question: Question, cautious: Plan) -> Outlook | None:
    """Return the hopeful plan beside a cautious one; None where the question was hopeful itself, measured, or hope does not help."""
    if question.efficiency.hopeful or question.tokens_per_gpu is not None:
        return None
    better, gpu = EFFICIENCIES["ceiling"], question.gpu.name
    if gpu not in better.reaches and gpu not in better.like:
        return None
    try:
        hopeful = plan(msgspec.structs.replace(question, efficiency=better, margin=0.0))
    except PlanRefused:
        return None
    chosen = _of(hopeful, hopeful)
    same = _of(cautious, hopeful)
    return Outlook(
        hopeful=hopeful,
        layout=chosen.layout,
        hopeful_rate=chosen.rate,
        cautious_rate=None if same.obstacle is not None else same.rate,
        differences=(
            f"every step {percent(cautious.margin, 0)} longer, for what the fit is off, or as the roofline says",
            *_differences(question.efficiency.reach(gpu), better.reach(gpu), cautious.kv_precision),
        ),
    )


def _of(found: Plan, wanted: Plan) -> Candidate:
    """Return the candidate of that plan's division; the found one's own where another one was not tried."""
    first, second = ((each.tp, each.pp, each.dp) for each in (wanted, found))

    def rank(each: Candidate) -> tuple[bool, bool]:
        division = (each.tp, each.pp, each.dp)
        return division != first, division != second

    return min(found.candidates, key=rank)


def _differences(cautious: Reach, hopeful: Reach, kv_precision: KvPrecision) -> tuple[str, ...]:
    other = "kv_read" if kv_precision == "fp8" else "fp8_kv_read"
    pairs = {name: (getattr(cautious, name), getattr(hopeful, name)) for name in _FACTORS if name != other}
    return tuple(
        f"{_FACTORS[name]}: {percent(low, 0)} or {percent(high, 0)} of the data sheet"
        for name, (low, high) in pairs.items()
        if low != high
    )
