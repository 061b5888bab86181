"""Agreement: which two cheap targets are asked first, where a program can tell whether their answers say the same. Pure.

Two cheap answers that say the same are rarely wrong together, and two that differ show that the prompt is hard. So two are asked beside each
other: what they agree on is the answer, and where they differ a better target is asked. That has two uses:

- *instead*: `auto` chose a dear target. It is asked only where the two differ; that costs less at the same minimum.
- *check*, where that is wanted: `auto` chose a cheap target, on the classifier's word. A second one is asked beside it, and where they differ the
  baseline model, which would have cost more than all that is expected to.

Either is asked only where it keeps the minimum and costs less than the better target alone, by the rule of `classifier/pairs.py`, and not where
a team's answers of this form have shown to agree too seldom for that.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from classifier.pairs import PART_OF_COST, expected_cost, expected_quality
from classifier.prediction import Prediction
from providers.catalog import Catalog
from proxy.answers.comparable import AskedForm
from proxy.policy import Candidate, Facts, RoutePlan, candidate_of

MAX_OPTIONS: Final = 8
"""The cheapest targets that pairs are made of."""
MAX_RATES: Final = 4_096
_PRIOR: Final = 4.0
"""Expected agreements that a team's own weigh against."""
_KEEP: Final = 0.98
"""What is left of earlier observations with each new one: some fifty of them count."""
_TRIED_AGAIN: Final = 32
"""Where agreement stopped paying, every so many requests it is tried all the same, as prompts change."""
_CHOSEN_OTHERWISE: Final = frozenset({"holdout", "same-turn", "struggle", "degraded"})
"""Reasons of plans that do not follow from the minimum quality and the price."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two targets that are asked beside each other."""

    asked: AskedForm
    first: Candidate
    """The one that is more likely right: its answer is given when both agree."""
    second: Candidate
    agrees: float
    """The chance that both are right, and so agree."""
    wait_s: float
    """The most seconds that both are waited for."""
    then: RoutePlan | None = None
    """The plan for where they differ; None for the one that there is."""
    alone: str = ""
    """The target whose answer is given where the other one has none in time, as the plan chose it; empty where neither is good enough."""


class AgreementRates:
    """How often answers agreed, by team and form, beside how often they were expected to. Bounded: the least recently used goes first."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], tuple[float, float, int]] = OrderedDict()

    def share(self, team_id: str, form: str) -> float:
        """Returns what the chance of agreement is multiplied with; 1 with every so many requests, however rare it was."""
        seen = self._seen.get((team_id, form))
        if seen is None:
            return 1.0
        expected, agreed, asked = seen
        self._put(team_id, form, (expected, agreed, asked + 1))
        return 1.0 if (asked + 1) % _TRIED_AGAIN == 0 else min(1.0, (agreed + _PRIOR) / (expected + _PRIOR))

    def note(self, team_id: str, form: str, expected: float, *, agreed: bool) -> None:
        """Adds one comparison."""
        before, right, asked = self._seen.get((team_id, form), (0.0, 0.0, 0))
        self._put(team_id, form, (before * _KEEP + expected, right * _KEEP + agreed, asked))

    def _put(self, team_id: str, form: str, seen: tuple[float, float, int]) -> None:
        self._seen[team_id, form] = seen
        self._seen.move_to_end((team_id, form))
        if len(self._seen) > MAX_RATES:
            self._seen.popitem(last=False)


class _Option(msgspec.Struct, frozen=True):
    target_id: str
    adequate: float
    cost: int


def pair_for(
    asked: AskedForm,
    route: RoutePlan,
    facts: Facts,
    prediction: Prediction,
    catalog: Catalog,
    *,
    reference: str | None = None,
    checks: bool = False,
    most_wrong: float = 1.0,
    share: float = 1.0,
    wait_s: float = math.inf,
) -> Pair | None:
    """Returns the pair of least expected cost that keeps the minimum and costs less than the better target; None without one.

    `reference` is the baseline model; with `checks` a cheap choice of the plan is checked, too. All must have a measured or published chance
    for the prompt: what is declared is no chance. `most_wrong` is the greatest chance that both are wrong.
    """
    planned = route.candidates[0]
    if planned.reason in _CHOSEN_OTHERWISE or facts.loop.steps or route.reference_adequate is None:
        return None
    then: RoutePlan | None = None
    chosen = _choose(route, planned, share, most_wrong)
    if chosen is None and checks:
        better = _better(route, reference)
        if better is not planned:
            chosen = _choose(route, better, share, most_wrong)
            others = [each for each in route.candidates if each is not better]
            first = msgspec.structs.replace(better, reason="escalated")
            then = msgspec.structs.replace(route, candidates=(first, *others))
    if chosen is None:
        return None
    likelier, other = sorted(chosen, key=lambda each: -each.adequate)
    return Pair(
        asked=asked,
        first=candidate_of(catalog.targets[likelier.target_id], facts, prediction, "agreement"),
        second=candidate_of(catalog.targets[other.target_id], facts, prediction, "agreement"),
        agrees=likelier.adequate * other.adequate,
        wait_s=wait_s,
        then=then,
        alone="" if then is None else planned.target.target_id,
    )


def _better(route: RoutePlan, reference: str | None) -> Candidate:
    """The baseline model, or else the candidate that is likeliest right."""
    named = [each for each in route.candidates if each.target.target_id == reference]
    return named[0] if named else max(route.candidates, key=lambda each: each.adequate or 0.0)


def _choose(route: RoutePlan, better: Candidate, share: float, most_wrong: float) -> tuple[_Option, _Option] | None:
    """The pair of least expected cost in place of `better`."""
    right, price = better.adequate, better.margin_nanousd
    if right is None or price is None or route.reference_adequate is None or route.tolerance is None:
        return None
    # Where nothing reaches the minimum, the planned one is the best there is, and that is what is kept.
    least = min(route.reference_adequate - route.tolerance, right)
    options = sorted(_options(route, better, right, price), key=lambda each: (each.cost, each.target_id))[:MAX_OPTIONS]
    best, chosen = float(price), None
    for at, one in enumerate(options):
        for other in options[at + 1 :]:
            cost = expected_cost(float(one.cost + other.cost), one.adequate * other.adequate * share, float(price))
            keeps = expected_quality(one.adequate, other.adequate, right) >= least
            keeps = keeps and (1 - one.adequate) * (1 - other.adequate) <= most_wrong
            if cost < best and one.adequate != other.adequate and keeps:
                best, chosen = cost, (one, other)
    return chosen


def _options(route: RoutePlan, better: Candidate, right: float, price: int) -> Iterable[_Option]:
    """The targets that could serve the request and cost little beside the better one.

    One model under two names agrees with itself, which says nothing; it has one chance, too.
    """
    told = [
        (each.target.target_id, each.adequate, each.margin_nanousd) for each in route.candidates if each is not better
    ]
    told += [
        (each.target_id, each.adequate, each.margin_nanousd) for each in route.rejected if each.obstacle == "too-hard"
    ]
    for target_id, adequate, cost in told:
        if adequate is not None and cost is not None and cost < PART_OF_COST * price and adequate != right:
            yield _Option(target_id, adequate, cost)
