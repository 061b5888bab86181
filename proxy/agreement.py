"""Agreement: which two cheap targets are asked in place of a dear one, where a program can tell whether their answers say the same. Pure.

Two cheap answers that say the same are rarely wrong together, and two that differ show that the prompt is hard. So where `auto` would
choose a dear target, two cheaper ones that would each lose too much are asked beside each other: what they agree on is the answer, and
where they do not agree the dear one is asked as planned. A pair is asked only where both hold, each by the worse assumption:

- it keeps the minimum quality, though two wrong answers always said the same: q = ab + (1 - ab - (1-a)(1-b)) p, where a, b and p are the
  chances of the two and of the planned target, is at least what the plan had to keep;
- it costs less, though two wrong answers never said the same: c_a + c_b + (1 - ab s) c_p < c_p, where s is how often such answers of the
  team agreed, beside how often they were expected to.

How much two models' mistakes have in common is not known beforehand: on four-way multiple choice 60 of 100 questions that both get wrong
get the same wrong answer (Kim et al., Correlated Errors in Large Language Models, ICML 2025).
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

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
    share: float = 1.0,
    wait_s: float = math.inf,
) -> Pair | None:
    """Returns the pair of least expected cost that keeps the minimum and costs less than the planned target; None without one.

    All three must have a measured or published chance for the prompt: what is declared is no chance.
    """
    planned = route.candidates[0]
    if planned.reason in _CHOSEN_OTHERWISE or facts.loop.steps:
        return None
    if route.reference_adequate is None or route.tolerance is None:
        return None
    right, price = planned.adequate, planned.margin_nanousd
    if right is None or price is None:
        return None
    # Where nothing reaches the minimum, the planned one is the best there is, and that is what is kept.
    least = min(route.reference_adequate - route.tolerance, right)
    options = sorted(_options(route, right, price), key=lambda each: (each.cost, each.target_id))[:MAX_OPTIONS]
    best, chosen = float(price), None
    for at, one in enumerate(options):
        for other in options[at + 1 :]:
            both = one.adequate * other.adequate
            cost = one.cost + other.cost + (1 - both * share) * price
            if (
                cost < best
                and one.adequate != other.adequate
                and expected_quality(one.adequate, other.adequate, right) >= least
            ):
                best, chosen = cost, (one, other, both)
    if chosen is None:
        return None
    first, second = sorted(chosen[:2], key=lambda each: -each.adequate)
    return Pair(
        asked=asked,
        first=candidate_of(catalog.targets[first.target_id], facts, prediction, "agreement"),
        second=candidate_of(catalog.targets[second.target_id], facts, prediction, "agreement"),
        agrees=chosen[2],
        wait_s=wait_s,
    )


def expected_quality(one: float, other: float, planned: float) -> float:
    """The chance of a right answer where two are asked first, from the chances of the three: two wrong ones are taken to agree."""
    both = one * other
    return both + (1 - both - (1 - one) * (1 - other)) * planned


def _options(route: RoutePlan, planned_adequate: float, price: int) -> Iterable[_Option]:
    """The targets that could serve the request for less than half as much, each by its cheapest name.

    One model under two names agrees with itself, which says nothing; it has one chance, too.
    """
    told = [(each.target.target_id, each.adequate, each.margin_nanousd) for each in route.candidates[1:]]
    told += [
        (each.target_id, each.adequate, each.margin_nanousd) for each in route.rejected if each.obstacle == "too-hard"
    ]
    for target_id, adequate, cost in told:
        if adequate is not None and cost is not None and 2 * cost < price and adequate != planned_adequate:
            yield _Option(target_id, adequate, cost)
