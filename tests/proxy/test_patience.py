"""How long an upstream is waited for, from a request's plan and deadline alone."""

import math

import pytest

from providers.config import TimeoutsConfig
from proxy.deadlines.deadline import Deadline
from proxy.patience import hold_within, patience_s
from proxy.policy import RoutePlan
from proxy.routed_request import Hold
from tests.providers.calls import chat_request
from tests.proxy.contexts import a_candidate, a_routed_request

FIRST, LAST = a_candidate("small"), a_candidate("big")
PLAN = RoutePlan(candidates=(FIRST, LAST), rejected=())
TIMEOUTS = TimeoutsConfig(first_token_interactive_s=10)


def until(answer_at: float, *, own: bool = False) -> Deadline:
    return Deadline(arrived_at=0.0, first_token_at=answer_at, answer_at=answer_at, own=own)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("left_s", "others", "usual_s", "waits_s"),
    [
        (math.inf, True, 0.0, 10.0),
        (math.inf, False, 0.0, None),
        (8.0, True, 0.0, 4.0),
        (8.0, False, 0.0, 8.0),
        (30.0, True, 0.0, 10.0),
        (30.0, False, 0.0, 30.0),
        # A target that usually takes longer than the limit is not late for it.
        (math.inf, True, 20.0, 60.0),
        (30.0, True, 20.0, 30.0),
        (8.0, True, 2.0, 6.0),
    ],
)
def test_a_stream_leaves_time_for_who_else_may_answer(
    left_s: float, *, others: bool, usual_s: float, waits_s: float | None, own: bool
) -> None:
    """Half of what is left at most; where nobody else may answer, all that the caller allows."""
    routed = a_routed_request(
        plan=PLAN, timeouts=TIMEOUTS, deadline=until(left_s, own=own), request=chat_request(stream=True)
    )
    assert patience_s(routed, 0.0, usual_s, others=others) == waits_s


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize(("left_s", "waits_s"), [(math.inf, None), (8.0, 8.0), (-1.0, 0.001)])
def test_a_whole_answer_has_all_the_time_that_is_left(left_s: float, waits_s: float | None, *, others: bool) -> None:
    """It has nothing to show before its end; what is late already ends at once."""
    routed = a_routed_request(plan=PLAN, timeouts=TIMEOUTS, deadline=until(left_s))
    assert patience_s(routed, 0.0, 0.0, others=others) == waits_s


@pytest.mark.parametrize(("left_s", "holds_s"), [(math.inf, 30.0), (100.0, 30.0), (8.0, 4.0), (-1.0, 0.001)])
def test_what_is_held_back_is_released_in_time_to_be_read(left_s: float, holds_s: float) -> None:
    """Half of what is left at most."""
    hold = Hold(max_bytes=1, max_s=30.0)
    assert hold_within(a_routed_request(deadline=until(left_s)), hold, 0.0).max_s == holds_s
