"""What nothing is known of is never preferred to what is known, and what is known is said in one list of words."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pytest

from classifier.prediction import Prediction, TargetPrediction
from classifier.tuning import Ability
from providers.catalog import Catalog
from providers.target import Target
from proxy.plan.escalation_rules import escalation_candidate
from proxy.plan.evidence import (
    EVIDENCE_WORDS,
    Evidence,
    Judged,
    Reference,
    evidence_by_target,
    evidence_notes,
    grounds,
    trust_order,
)
from proxy.plan.marginal_cost import NO_ROOMS, Room, Rooms
from proxy.plan.route_plan import Policy, RoutePlan, held_out, plan
from proxy.plan.session_affinity import TurnChoice
from proxy.plan.tool_loop import ToolLoop
from tests.proxy.plan.test_route_plan import facts, outlook, price, target

EASY: Final = 0.02
HARD: Final = 0.97
CHANCES: Final[Mapping[str, tuple[float, float]]] = {
    # By an easy and by a hard prompt.
    "flagship": (0.95, 0.90),
    "mini": (0.94, 0.50),
}
WILLING: Final = 2e7
"""Two cents for one more adequate answer: worth the flagship's price for the hard prompt, and not for the easy one."""
BEST_KNOWN: Final = (0.96, 0.92)

FLAGSHIP = target("flagship", price=price(5, 5), capability=None)
MINI = target("mini", price=price(0.2, 0.2), capability=None)
SAID_STRONG = target("said-strong", price=price(4, 4), capability=1.0)
SAID_WEAK = target("said-weak", price=price(0.3, 0.3), capability=0.4)
ACME_LARGE = target("acme-large", price=price(10, 10), capability=None)
ACME_SMALL = target("acme-small", price=price(0.1, 0.1), capability=None)


def predicted(complexity: float, *, by_rule: bool = False) -> Prediction:
    """What the trained model says of an easy or a hard prompt, or the plain rule."""
    at = 1 if complexity > 0.5 else 0
    outlooks: dict[str, TargetPrediction] = {name: outlook(both[at]) for name, both in CHANCES.items()}
    return Prediction(
        complexity=complexity,
        source="heuristic" if by_rule else "onnx",
        expected_output_tokens=100,
        outlooks={} if by_rule else outlooks,
        best_known=None if by_rule else BEST_KNOWN[at],
    )


def planned(
    complexity: float,
    *targets: Target,
    reference: str | None = None,
    by_rule: bool = False,
    rooms: Rooms = NO_ROOMS,
    turn: TurnChoice | None = None,
    policy: Policy | None = None,
    **changes: Any,
) -> RoutePlan:
    catalog = Catalog(targets={each.target_id: each for each in targets})
    fleet = {each.target_id: each.deployments for each in targets}
    prediction = predicted(complexity, by_rule=by_rule)
    known = {name: each for name, each in prediction.outlooks.items() if name in catalog.targets}
    prediction = msgspec.structs.replace(
        prediction, outlooks=known, best_known=prediction.best_known if known else None
    )
    rules = msgspec.structs.replace(policy or Policy(), reference=reference)
    return plan(
        facts(**{"willing_nanousd": WILLING, **changes}), prediction, rules, catalog, fleet, rooms=rooms, turn=turn
    )


def first(found: RoutePlan) -> tuple[str, str]:
    return found.candidates[0].target.target_id, found.candidates[0].reason


@pytest.mark.parametrize(
    ("targets", "reference", "easy", "hard"),
    [
        # Known by rows, the baseline model too.
        ((FLAGSHIP, MINI), "flagship", "mini", "flagship"),
        ((FLAGSHIP, MINI), None, "mini", "flagship"),
        ((FLAGSHIP, MINI, ACME_SMALL), "flagship", "mini", "flagship"),
        ((FLAGSHIP, MINI, ACME_LARGE), "flagship", "mini", "flagship"),
        # One known, one unknown: the unknown never gets the harder prompt.
        ((FLAGSHIP, ACME_SMALL), "flagship", "flagship", "flagship"),
        ((FLAGSHIP, ACME_LARGE), "flagship", "flagship", "flagship"),
        ((MINI, ACME_SMALL), "mini", "mini", "mini"),
        ((MINI, ACME_LARGE), "mini", "mini", "mini"),
        ((MINI, ACME_LARGE), None, "mini", "mini"),
        # The baseline model is unknown: it answers what no known one is good enough for, unless a known one is dearer.
        ((MINI, ACME_LARGE), "acme-large", "mini", "acme-large"),
        ((FLAGSHIP, MINI, ACME_LARGE), "acme-large", "mini", "flagship"),
        ((FLAGSHIP, ACME_SMALL), "acme-small", "flagship", "flagship"),
        # Nothing is known of any: the baseline model, else the dearest, whatever the prompt.
        ((ACME_LARGE, ACME_SMALL), "acme-large", "acme-large", "acme-large"),
        ((ACME_LARGE, ACME_SMALL), "acme-small", "acme-small", "acme-small"),
        ((ACME_LARGE, ACME_SMALL), None, "acme-large", "acme-large"),
        ((ACME_LARGE,), None, "acme-large", "acme-large"),
        # Declared: taken at its operator's word, up to what that word says.
        ((SAID_STRONG, SAID_WEAK), None, "said-weak", "said-strong"),
        ((SAID_STRONG, SAID_WEAK), "said-strong", "said-weak", "said-strong"),
        ((SAID_WEAK, ACME_SMALL), None, "said-weak", "said-weak"),
        ((SAID_WEAK, ACME_LARGE), "acme-large", "said-weak", "acme-large"),
        ((SAID_WEAK, FLAGSHIP), "flagship", "said-weak", "flagship"),
        ((SAID_STRONG, MINI), None, "mini", "said-strong"),
        ((SAID_STRONG, MINI), "said-strong", "mini", "said-strong"),
    ],
)
def test_who_answers_what_is_easy_and_what_is_hard(
    targets: tuple[Target, ...], reference: str | None, easy: str, hard: str
) -> None:
    """What is known of the targets and of the baseline model, against the prompt; in whatever order they are written."""
    for complexity, expected in ((EASY, easy), (HARD, hard)):
        for order in (targets, tuple(reversed(targets))):
            assert first(planned(complexity, *order, reference=reference))[0] == expected


@pytest.mark.parametrize(
    ("targets", "reference", "easy", "hard"),
    [
        # The rule knows no models: the baseline model answers, else the dearest.
        ((FLAGSHIP, MINI), "flagship", "flagship", "flagship"),
        ((FLAGSHIP, MINI), None, "flagship", "flagship"),
        ((FLAGSHIP, SAID_WEAK), "flagship", "said-weak", "flagship"),
        ((FLAGSHIP, SAID_WEAK), None, "said-weak", "said-weak"),
        ((SAID_STRONG, SAID_WEAK), None, "said-weak", "said-strong"),
    ],
)
def test_the_plain_rule_sends_nothing_where_it_knows_nothing(
    targets: tuple[Target, ...], reference: str | None, easy: str, hard: str
) -> None:
    """Without the trained model a row is no knowledge; what is declared still is."""
    for complexity, expected in ((EASY, easy), (HARD, hard)):
        assert first(planned(complexity, *targets, reference=reference, by_rule=True))[0] == expected


def test_the_reason_says_that_nothing_is_known() -> None:
    """Neither `most-capable` nor `cheapest-capable` would be true, and what is passed over is told with what mends it."""
    assert first(planned(EASY, ACME_LARGE, ACME_SMALL, reference="acme-large")) == ("acme-large", "baseline")
    assert first(planned(HARD, ACME_LARGE, ACME_SMALL)) == ("acme-large", "dearest")
    found = planned(HARD, FLAGSHIP, ACME_SMALL, reference="flagship")
    (rejected,) = found.rejected
    assert rejected.obstacle == "unknown"
    assert "weighbridge classifier measure acme-small" in rejected.detail


def test_what_nothing_is_known_of_can_stand_in_for_its_like() -> None:
    """Nobody can say that it is the weaker one, so a failure at the first goes on to the next."""
    found = planned(HARD, ACME_LARGE, ACME_SMALL, reference="acme-large")
    assert [each.target.target_id for each in found.candidates] == ["acme-large", "acme-small"]
    assert not found.rejected


def test_an_unknown_baseline_follows_those_that_are_good_enough() -> None:
    """It may answer where they fail, or where their answer is weak; nothing is ever more capable."""
    found = planned(EASY, MINI, ACME_LARGE, reference="acme-large")
    assert [each.target.target_id for each in found.candidates] == ["mini", "acme-large"]
    better = escalation_candidate(found, found.candidates[0], ())
    assert better is not None
    assert better.target.target_id == "acme-large"
    assert escalation_candidate(found, found.candidates[1], ()) is None


def test_an_allowed_part_of_the_models_is_judged_by_the_same_baseline() -> None:
    """A team or an alias that leaves out the baseline model does not make an unknown one known."""
    narrowed = frozenset({"mini", "acme-large"})
    found = planned(HARD, FLAGSHIP, MINI, ACME_LARGE, reference="flagship", allowed_models=narrowed)
    assert first(found)[0] == "mini"
    unknown = frozenset({"acme-large", "acme-small"})
    found = planned(HARD, FLAGSHIP, ACME_SMALL, ACME_LARGE, reference="flagship", allowed_models=unknown)
    assert first(found) == ("acme-large", "dearest")


def test_degrading_asks_the_unknown_last() -> None:
    """After what is known to be too weak."""
    found = planned(HARD, FLAGSHIP, MINI, ACME_LARGE, reference="flagship", policy=Policy(degrade=True))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("flagship", "cheapest-capable"),
        ("mini", "degraded"),
        ("acme-large", "degraded"),
    ]


def test_a_spent_budget_is_not_spent_on_the_dearest() -> None:
    """It lets the gateway choose to save: of the unknown the cheapest, and a known one before them."""
    assert first(planned(HARD, ACME_LARGE, ACME_SMALL, reference="acme-large", spares=True))[0] == "acme-small"
    assert first(planned(HARD, MINI, ACME_LARGE, reference="acme-large", spares=True))[0] == "mini"


def test_our_own_unknown_engines_are_not_preferred_for_their_room() -> None:
    """Idle hours are free, and say nothing of how good the model is."""
    own = target("own", price=price(2, 2), capability=None)
    policy, rooms = Policy(pooled=frozenset({"own"})), Rooms({"own": Room(0.0, 1.0)}, 0.0)
    assert first(planned(EASY, FLAGSHIP, own, reference="flagship", rooms=rooms, policy=policy))[0] == "flagship"
    # Nor are they less dear for it, where nothing else is known.
    assert first(planned(HARD, own, ACME_SMALL, rooms=rooms, policy=policy)) == ("own", "dearest")


def test_a_struggling_loop_is_not_raised_to_what_nothing_is_known_of() -> None:
    """The unknown is never the better one, but for a baseline model that its operator names."""
    loop = ToolLoop(steps=3, raises=1, struggle="repeated-errors")
    turn = TurnChoice({0: "mini"})
    for reference, expected in (("mini", "mini"), ("acme-large", "acme-large")):
        found = planned(EASY, MINI, ACME_LARGE, reference=reference, loop=loop, turn=turn)
        assert first(found)[0] == expected


def test_the_experiment_asks_the_baseline_whatever_is_known_of_it() -> None:
    """Who is drawn for it gets the baseline model first."""
    catalog = Catalog(targets={"mini": MINI, "acme-large": ACME_LARGE})
    fleet = {each.target_id: each.deployments for each in (MINI, ACME_LARGE)}
    policy = Policy(reference="acme-large")
    prediction = msgspec.structs.replace(predicted(EASY), outlooks={"mini": outlook(0.94)})
    found = plan(facts(willing_nanousd=WILLING), prediction, policy, catalog, fleet)
    drawn = held_out(found, facts(), prediction, policy, catalog, fleet)
    assert drawn is not None
    assert [each.target.target_id for each in drawn.candidates] == ["acme-large", "mini"]


def test_the_cheapest_that_was_good_enough_is_one_that_is_known() -> None:
    """The comparison with it would else be with a model of which nothing is known."""
    found = planned(EASY, FLAGSHIP, ACME_SMALL, reference="acme-small")
    assert found.cheapest_commercial is not None
    assert found.cheapest_commercial.target_id == "flagship"


def test_what_is_judged_is_judged_by_its_row_before_its_word() -> None:
    """A declared capability counts where there is no row, and nothing counts where there is neither."""
    reference_targets = Reference(complexity=0.8, reference=0.9, least=0.87)
    assert reference_targets.judge(0.88, 0.1) == Judged("good-enough", 0.88)
    assert reference_targets.judge(0.86, 1.0) == Judged("too-weak", 0.86)
    assert reference_targets.judge(None, 0.8).standing == "good-enough"
    assert reference_targets.judge(None, 0.7).standing == "too-weak"
    assert reference_targets.judge(None, None).standing == "unknown"
    assert Reference(complexity=0.0, reference=None, least=None).judge(None, None).standing == "unknown"


def test_the_unknown_stand_below_all_that_is_known() -> None:
    """Whatever the price, and the dearest of them first."""
    weak, cheap, dear = (Judged("too-weak", 0.0), 5.0), (Judged("unknown", -1.0), 1.0), (Judged("unknown", -1.0), 9.0)
    by_trust = sorted((cheap, weak, dear), key=lambda each: trust_order(*each, spares=False))
    assert by_trust == [weak, dear, cheap]
    assert math.isfinite(trust_order(*cheap, spares=True)[0])


class Rows:
    """A classifier of which nothing but its rows is asked."""

    def __init__(self, **rows: Ability) -> None:
        self.rows = rows


def row(**fields: Any) -> Ability:
    return Ability(weights=[0.0], bias=0.0, **fields)


def test_evidence_is_told_in_one_list_of_words() -> None:
    """Measured, by published scores, extrapolated, declared or nothing; a choice rests on the less sure of the two."""
    rows = Rows(
        flagship=row(), mini=row(basis="published"), beyond=row(basis="published", extrapolated=True), said_weak=row()
    )
    beyond = target("beyond", capability=0.9)
    known = evidence_by_target((FLAGSHIP, MINI, beyond, SAID_WEAK, ACME_SMALL), rows)
    assert known == {
        "flagship": "measured",
        "mini": "published",
        "beyond": "extrapolated",
        "said-weak": "declared",
        "acme-small": "none",
    }
    assert evidence_by_target((FLAGSHIP, SAID_WEAK), object()) == {"flagship": "none", "said-weak": "declared"}
    assert set(known.values()) == set(EVIDENCE_WORDS)
    assert grounds(known, None) == known
    by_beyond = grounds(known, "beyond")
    assert (by_beyond["beyond"], by_beyond["flagship"], by_beyond["said-weak"]) == ("extrapolated",) * 2 + ("declared",)
    assert set(grounds(known, "not-there").values()) == {"none"}


def test_what_is_not_measured_is_told_with_what_mends_it() -> None:
    """One sentence for each state, and nothing where all are measured."""

    def told(trained: bool = True, **known: Evidence) -> Iterator[str]:
        return evidence_notes(known, trained=trained)

    assert list(told(a="measured")) == []
    (unknown, declared, published) = told(a="none", b="declared", c="published", d="extrapolated")
    assert "Not measured, and nothing else is known" in unknown
    assert "`weighbridge classifier measure a`" in unknown
    assert "declared capability alone: b" in declared
    assert published.startswith("Known by published scores alone: c, d (d: extrapolated).")
    (by_rule,) = told(trained=False, a="none")
    assert "declare `capability`" in by_rule
    assert "measure a" not in by_rule
