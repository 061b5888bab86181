"""The evidence of targets' quality, and the choice of those that may answer a prompt because of it. Pure.

A target is known by its row in the classifier's table, which predicts the chance of an adequate answer to each prompt,
or by the capability that its operator declared. A target with neither is unknown, and then:

- it is never preferred to a known target, whatever it costs;
- the baseline model alone may be trusted without being known, because its operator names it as the reference of quality:
  it answers prompts that no known target is good enough for, unless a known one is dearer;
- of unknown targets the baseline model comes first, then the dearest: a price is the only other known fact.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from classifier.known_models import known_model
from classifier.manifest import Manifest
from classifier.tuning import Ability
from providers.catalog import Catalog
from providers.target import Target

Evidence = Literal["measured", "published", "extrapolated", "declared", "none"]
"""The kinds of evidence of a target's quality: outcomes of its own answers, its published scores, those of a model
better than all models with outcomes, its operator's word, or none.
"""
EVIDENCE_WORDS: Final[Mapping[Evidence, str]] = {
    "measured": "measured",
    "published": "by published scores",
    "extrapolated": "by published scores, extrapolated",
    "declared": "not measured, declared",
    "none": "not measured",
}
"""The words for people, the same everywhere."""
_SUREST_FIRST: Final[tuple[Evidence, ...]] = ("measured", "published", "extrapolated", "declared", "none")
UNMEASURED: Final[frozenset[Evidence]] = frozenset({"declared", "none"})
PUBLISHED: Final[frozenset[Evidence]] = frozenset({"published", "extrapolated"})
NO_EVIDENCE: Final[Mapping[str, Evidence]] = {}

Standing = Literal["good-enough", "too-weak", "unknown"]
"""The standing of a target for one prompt."""
_STAND_IN_LOSS: Final = 0.03
"""The loss that a prompt may have where the baseline model has no row: as much as the usual minimum quality of 0.97
allows on average.
"""
_UNKNOWN: Final = -1.0
"""The strength of an unknown target: below all known ones."""


@runtime_checkable
class Rows(Protocol):
    """A trained classifier; the heuristic has no rows."""

    @property
    def rows(self) -> Mapping[str, Ability]:
        """The rows in use by target id, shipped or learned."""
        ...


@runtime_checkable
class Manifested(Protocol):
    """A trained classifier with all the rows that it has."""

    @property
    def manifest(self) -> Manifest: ...


def evidence_of(target: Target, classifier: object) -> Evidence:
    """Return the evidence of a target's quality, by the classifier in use."""
    row = classifier.rows.get(target.target_id) if isinstance(classifier, Rows) else None
    return "declared" if row is None and target.capability is not None else _of_row(row)


def _of_row(row: Ability | None) -> Evidence:
    if row is None:
        return "none"
    if row.basis == "outcomes":
        return "measured"
    return "extrapolated" if row.extrapolated else "published"


def evidence_of_name(name: str, catalog: Catalog, classifier: object) -> Evidence:
    """Return the evidence of a target without an entry of its own, by its id: a wildcard stands for it, or it was
    configured once and is a known model's name.
    """
    target = catalog.named(name)
    model = known_model([name]) if target is None else None
    row = target.ability if target is not None else None if model is None else model.row
    if not isinstance(classifier, Manifested):
        return "none"
    return _of_row(classifier.manifest.abilities.get(row or ""))


def evidence_by_target(targets: Iterable[Target], classifier: object) -> dict[str, Evidence]:
    """Return the evidence of each target by its id."""
    return {target.target_id: evidence_of(target, classifier) for target in targets}


def grounds(evidence: Mapping[str, Evidence], reference: str | None) -> dict[str, Evidence]:
    """Return the evidence that a choice of each target rests on, by its id: it is compared with the baseline model,
    so the less sure of the two counts.
    """
    baseline: Evidence = "measured" if reference is None else evidence.get(reference, "none")
    return {
        target_id: own if target_id == reference else less_sure(own, baseline) for target_id, own in evidence.items()
    }


def less_sure(one: Evidence, other: Evidence) -> Evidence:
    """Return the less sure of the two."""
    return max(one, other, key=_SUREST_FIRST.index)


def measuring_hint(target_id: str) -> str:
    """Return the sentence that tells how to measure a target."""
    return f"`weighbridge classifier measure {target_id}` measures it in minutes; `ability: NAME` says which known model it is"


class Judged(msgspec.Struct, frozen=True, gc=False):
    """A target's standing, and its strength in comparison: more is better."""

    standing: Standing
    strength: float


_UNJUDGED: Final = Judged("unknown", _UNKNOWN)


class Reference(msgspec.Struct, frozen=True, gc=False):
    """The figures that targets are compared with for one prompt."""

    complexity: float
    reference: float | None
    """The P(adequate) of the baseline model or its stand-in; None where no target has a row."""
    least: float | None
    """The P(adequate) that the prompt asks for; None where no target has a row."""
    shift: float = 0.0
    """The amount that is added to every declared capability."""

    def judge(self, adequate: float | None, declared: float | None) -> Judged:
        """Judge a target by its P(adequate), else by its declared capability. A target that is declared capable of
        the prompt loses nothing against the baseline model, by its operator's word.
        """
        reference, least = self.reference, self.least
        if adequate is not None and least is not None:
            return Judged("good-enough" if adequate >= least else "too-weak", adequate)
        if declared is None:
            return _UNJUDGED
        if self.complexity <= declared + self.shift:
            return Judged("good-enough", declared if reference is None else reference)
        return Judged("too-weak", declared if reference is None else min(declared, reference))


def stand_in_asks(best_known: float, most_lost: float = 1.0) -> float:
    """Return the P(adequate) that a prompt asks for where the baseline model has no row: it is taken to be as good as
    the best of all known models, and no prompt may lose more than a little against that, nor more than `most_lost`.
    """
    return best_known - min(_STAND_IN_LOSS, most_lost)


def trust_baseline(costs_of_known: Iterable[float], cost: float) -> bool:
    """Return True when an unknown baseline model answers a prompt that no known target is good enough for: when none
    of those is dearer.
    """
    return all(known <= cost for known in costs_of_known)


TRUSTED: Final = Judged("unknown", math.inf)
"""The baseline model where it is unknown and trusted."""


def trust_order(judged: Judged, cost: float, *, spares: bool) -> tuple[float, float]:
    """Return the sort key of targets that are not good enough, the most trusted first: the known by strength, then by
    least cost; the unknown by most cost, or by least where a spent budget `spares`.
    """
    if judged.standing == "unknown" and not spares:
        return -judged.strength, -cost
    return -judged.strength, cost


def evidence_notes(evidence: Mapping[str, Evidence], *, trained: bool) -> Iterator[str]:
    """Yield sentences about targets that were not measured, with the remedy; none where all were. `trained` is False
    where the plain rule classifies.
    """
    by: dict[Evidence, list[str]] = {}
    for target_id, each in evidence.items():
        by.setdefault(each, []).append(target_id)
    if unknown := by.get("none"):
        yield (
            f"Not measured, and nothing else is known of how good they are: {', '.join(unknown)}. `auto` prefers every known model to "
            f"them, and of them it asks the baseline model first, then the dearest. {_mending(unknown[0], trained=trained)}"
        )
    if declared := by.get("declared"):
        yield (
            f"Not measured, so chosen by declared capability alone: {', '.join(declared)}. "
            f"{_mending(declared[0], trained=trained)}"
        )
    if published := [*by.get("published", ()), *by.get("extrapolated", ())]:
        beyond = by.get("extrapolated", ())
        told = (
            ""
            if not beyond
            else " (extrapolated)"
            if len(beyond) == len(published)
            else f" ({', '.join(beyond)}: extrapolated)"
        )
        yield (
            f"Known by published scores alone: {', '.join(published)}{told}. "
            f"To measure one takes minutes: `weighbridge classifier measure {published[0]}`."
        )


def _mending(target_id: str, *, trained: bool) -> str:
    if not trained:
        return "The plain rule knows no models: declare `capability`, or let the trained classifier weigh prompts."
    return f"{measuring_hint(target_id)}."
