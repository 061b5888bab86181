"""Agreement: the pair of cheap targets that is asked first, for a request whose answers a program can compare. Pure.

Two cheap answers that say the same are rarely wrong together, and two that differ show that the prompt is hard. So two
targets are asked beside each other: the answer on which they agree is given, and where they differ a better target is
asked. By the rule of `classifier/pairs.py` a pair is asked where it is worth more than the plan's own choice:

- `auto` chose a dear target, which is asked only where the two differ: that costs less;
- `auto` chose a cheap one, on the classifier's word: a better one is asked where another cheap one differs from it, which
  gives more than it costs.

No pair is asked where a team's answers of this form have shown to agree too seldom for that.
"""

import math
from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec
import numpy as np

from classifier.pairs import choose_pairs
from classifier.prediction import Prediction
from providers.catalog import Catalog
from proxy.plan.answer_form import AskedForm
from proxy.plan.route_plan import Candidate, Facts, RoutePlan, candidate_of

MAX_RATES: Final = 4_096
_PRIOR: Final = 4.0
"""Expected agreements that a team's own weigh against."""
_KEEP: Final = 0.98
"""The share of earlier observations that remains with each new one: some fifty of them count."""
_TRIED_AGAIN: Final = 32
"""The number of requests of which one tries agreement where it stopped paying, as prompts change."""
_CHOSEN_OTHERWISE: Final = frozenset({"holdout", "same-turn", "struggle", "degraded"})
"""Reasons of plans that do not follow from the minimum quality and the price."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The two targets that are asked beside each other."""

    asked: AskedForm
    first: Candidate
    """The target that is more likely right: its answer is given when both agree."""
    second: Candidate
    agrees: float
    """The chance that both are right, and so agree."""
    wait_s: float
    """The most seconds that both are waited for."""
    then: RoutePlan | None = None
    """The plan for answers that differ; None for the present one."""
    alone: str = ""
    """The target whose answer is given where the other one has none in time, as the plan chose it; empty where
    neither is good enough.
    """

    def in_words(self, route: RoutePlan) -> str:
        """Return in words the two targets that are asked before the `route`, and the one asked where they differ."""
        third = (self.then or route).candidates[0].target.target_id
        return f"{self.first.target.target_id} and {self.second.target.target_id}, where they differ {third}"


class AgreementRates:
    """The rates of agreement by team and form, beside the expected ones. Bounded: the least recently used goes first."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], tuple[float, float, int]] = OrderedDict()

    def share(self, team_id: str, form: str) -> float:
        """Return the factor of the chance of agreement; 1 with every _TRIED_AGAIN-th request, however rare agreement
        was.
        """
        seen = self._seen.get((team_id, form))
        if seen is None:
            return 1.0
        expected, agreed, asked = seen
        self._put(team_id, form, (expected, agreed, asked + 1))
        return 1.0 if (asked + 1) % _TRIED_AGAIN == 0 else min(1.0, (agreed + _PRIOR) / (expected + _PRIOR))

    def note(self, team_id: str, form: str, expected: float, *, agreed: bool) -> None:
        """Add one comparison."""
        before, right, asked = self._seen.get((team_id, form), (0.0, 0.0, 0))
        self._put(team_id, form, (before * _KEEP + expected, right * _KEEP + agreed, asked))

    def _put(self, team_id: str, form: str, seen: tuple[float, float, int]) -> None:
        self._seen[team_id, form] = seen
        self._seen.move_to_end((team_id, form))
        if len(self._seen) > MAX_RATES:
            self._seen.popitem(last=False)


def pair_for(
    asked: AskedForm,
    route: RoutePlan,
    facts: Facts,
    prediction: Prediction,
    catalog: Catalog,
    *,
    unasked: bool = False,
    share: float = 1.0,
    wait_s: float = math.inf,
) -> Pair | None:
    """Return the pair that is worth more than the plan's choice; None without one. All must have a measured or
    published chance for the prompt: a declared capability is no chance. `unasked` is True without an opt-in, `share`
    is the factor of the chance of agreement.
    """
    planned = route.candidates[0]
    if planned.reason in _CHOSEN_OTHERWISE or facts.loop.steps:
        return None
    if planned.adequate is None or planned.margin_nanousd is None:
        return None
    if route.willing_nanousd is None or route.reference_adequate is None:
        return None
    known = _known(route)
    names = [each.target_id for each in known]
    weights = np.array([catalog.targets[name].routing_weight for name in names])
    adequate = np.array([[each.adequate for each in known]])
    found = choose_pairs(
        adequate,
        np.array([[each.cost for each in known]]) / weights,
        np.array([names.index(planned.target.target_id)]),
        route.willing_nanousd,
        np.array([route.reference_adequate]),
        facts.most_lost,
        unasked=unasked,
        share=share,
    )
    if not found.used[0]:
        return None
    first, second, third = (known[each[0]] for each in (found.first, found.second, found.third))
    then = None if third.target_id == planned.target.target_id else _then(route, third.target_id)
    return Pair(
        asked=asked,
        first=candidate_of(catalog.targets[first.target_id], facts, prediction, "agreement"),
        second=candidate_of(catalog.targets[second.target_id], facts, prediction, "agreement"),
        agrees=first.adequate * second.adequate,
        wait_s=wait_s,
        then=then,
        alone="" if then is None else planned.target.target_id,
    )


class _Known(NamedTuple):
    target_id: str
    adequate: float
    cost: int


def _known(route: RoutePlan) -> list[_Known]:
    """Return the targets that could serve the request, with their chances and the costs they are compared by."""
    told = [(each.target.target_id, each.adequate, each.margin_nanousd) for each in route.candidates]
    weak = (each for each in route.rejected if each.obstacle == "too-hard")
    told += [(each.target_id, each.adequate, each.margin_nanousd) for each in weak]
    # In the order of ids, as the preview has them.
    return [
        _Known(name, chance, cost) for name, chance, cost in sorted(told) if chance is not None and cost is not None
    ]


def _then(route: RoutePlan, target_id: str) -> RoutePlan:
    """Return the plan for answers that differ: that target first."""
    first = next(each for each in route.candidates if each.target.target_id == target_id)
    others = [each for each in route.candidates if each is not first]
    return msgspec.structs.replace(route, candidates=(msgspec.structs.replace(first, reason="escalated"), *others))
