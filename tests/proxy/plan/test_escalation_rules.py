"""Which better target is asked, and who may ask for it."""

import pytest

from accounts.caller import Escalation
from proxy.plan.escalation_rules import (
    asks_two,
    escalation_candidate,
    may_escalate,
)
from proxy.plan.route_plan import Candidate, RoutePlan
from tests.proxy.plan.test_route_plan import target


def candidate(name: str, cost: int | None, strength: float) -> Candidate:
    return Candidate(
        target=target(name),
        reason="fallback",
        expected_nanousd=cost,
        margin_nanousd=cost,
        bound_nanousd=cost,
        strength=strength,
    )


def route(*candidates: Candidate) -> RoutePlan:
    return RoutePlan(candidates=candidates, rejected=())


CHEAP = candidate("cheap", 1, 0.4)
ALIKE = candidate("alike", 3, 0.4)
MIDDLE = candidate("middle", 5, 0.7)
DEAR = candidate("dear", 9, 0.9)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({"cheap"}, "middle"),
        ({"cheap", "middle"}, "dear"),
        ({"cheap", "middle", "dear"}, None),
    ],
)
def test_the_cheapest_stronger_target_is_asked(tried: set[str], expected: str | None) -> None:
    """Stronger for this prompt, as planning found it; never one that is as strong, and never one tried before."""
    chosen = escalation_candidate(route(CHEAP, ALIKE, MIDDLE, DEAR), CHEAP, tried)
    assert (chosen and chosen.target.target_id) == expected
    assert chosen is None or chosen.reason == "escalated"


def test_the_order_of_the_plan_does_not_matter_the_cost_does() -> None:
    """Those after the capable ones stand by strength, and an unknown cost is the last."""
    unpriced = candidate("unpriced", None, 0.9)
    chosen = escalation_candidate(route(CHEAP, unpriced, DEAR, MIDDLE), CHEAP, {"cheap"})
    assert chosen is not None
    assert chosen.target.target_id == "middle"


@pytest.mark.parametrize(
    ("wanted", "whole", "stream", "two"),
    [
        ("off", False, False, (False, False)),
        ("whole", True, False, (False, False)),
        ("all", True, True, (False, False)),
        ("agreement", True, False, (True, False)),
        ("agreement-all", True, True, (True, True)),
    ],
)
def test_what_is_wanted_says_what_is_held_and_of_whom_two_are_asked(
    wanted: Escalation, whole: bool, stream: bool, two: tuple[bool, bool]
) -> None:
    """For `auto` alone."""
    plan = route(CHEAP, DEAR)
    for streams, expected in ((False, whole), (True, stream)):
        assert may_escalate(plan, alias="auto", stream=streams, wanted=wanted) is expected
        assert not may_escalate(plan, alias="cheap", stream=streams, wanted=wanted)
        assert asks_two(wanted, stream=streams) is two[streams]


def test_nothing_is_held_back_when_nobody_better_is_there() -> None:
    """The most capable target's stream flows at once."""
    assert not may_escalate(route(DEAR, CHEAP), alias="auto", stream=True, wanted="all")
