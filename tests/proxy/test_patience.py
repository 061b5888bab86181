"""How long an upstream is waited for, from a request's plan and deadline alone."""

import asyncio
import math

import pytest

from providers.config import TimeoutsConfig
from proxy.deadlines.deadline import Deadline
from proxy.patience import Patience, PatienceTimer, hold_within, patience_s
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


async def waiting(timer: PatienceTimer, limit_s: float | None, for_s: float) -> str:
    """What comes of waiting so long, with so much patience."""
    try:
        with timer.within(limit_s):
            await asyncio.sleep(for_s)
    except TimeoutError:
        return "late"
    return "in time"


@pytest.mark.usefixtures("leaping_time")
async def test_one_timer_ends_each_wait_when_it_is_due() -> None:
    """In whatever order they were begun, and while others go on."""
    timer, loop = PatienceTimer(), asyncio.get_running_loop()
    begun_at, ended = loop.time(), dict[float | None, tuple[str, float]]()

    async def one(limit_s: float | None, for_s: float) -> None:
        told = await waiting(timer, limit_s, for_s)
        ended[limit_s] = told, round(loop.time() - begun_at, 6)

    await asyncio.gather(one(5.0, 9.0), one(1.0, 9.0), one(None, 7.0), one(3.0, 2.0), one(2.0, 9.0))
    assert ended == {
        1.0: ("late", 1.0),
        2.0: ("late", 2.0),
        3.0: ("in time", 2.0),
        5.0: ("late", 5.0),
        None: ("in time", 7.0),
    }
    # It sleeps until somebody waits again.
    assert await waiting(timer, 1.0, 9.0) == "late"


@pytest.mark.usefixtures("leaping_time")
async def test_who_is_cancelled_is_not_late() -> None:
    """Neither before its time, nor when both come at once."""
    for after_s in (0.5, 1.0):
        waits = asyncio.ensure_future(waiting(PatienceTimer(), 1.0, 9.0))
        asyncio.get_running_loop().call_later(after_s, waits.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waits


async def test_patience_ends_at_once_and_only_once() -> None:
    """With a replica that is dead; not when it is told too late."""
    loop = asyncio.get_running_loop()
    late = False
    try:
        with Patience(loop) as patience:
            patience.expire()
            patience.expire()
            await asyncio.sleep(1)
    except TimeoutError:
        late = True
    assert late
    assert patience.expired
    with Patience(loop) as patience:
        patience.expire()
    await asyncio.sleep(0)
    assert not patience.expired
