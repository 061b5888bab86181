"""How long an upstream is waited for, from a request's plan and deadline alone."""

import asyncio
import math

import pytest

from proxy.dispatch.attempt_timeout import Patience, PatienceTimer, hold_within, needed_s, patience_s, window_s
from proxy.plan.routed_request import Hold
from proxy.shared.deadline import Deadline
from tests.proxy.contexts import a_routed_request


def until(answer_at: float, *, own: bool = False) -> Deadline:
    return Deadline(arrived_at=0.0, first_token_at=answer_at, answer_at=answer_at, own=own)


@pytest.mark.parametrize(
    ("usual_s", "guess_s", "left_s", "kept_s"),
    [
        (2.0, 15.0, 10.0, 4.0),
        (0.005, 15.0, 10.0, 2.5),
        (0.005, 15.0, 600.0, 15.0),
        (1.0, 15.0, math.inf, 15.0),
        (4.0, 15.0, 10.0, 5.0),
        (None, 15.0, 60.0, 15.0),
        (None, 15.0, 10.0, 5.0),
        (None, 15.0, math.inf, 15.0),
    ],
)
def test_twice_the_usual_time_is_kept_for_who_comes_next(
    usual_s: float | None, guess_s: float, left_s: float, kept_s: float
) -> None:
    """The guess where it is not known; a quarter of what is left, or the guess, at least; and half of what is left at most."""
    assert needed_s(usual_s, guess_s, left_s) == kept_s


@pytest.mark.parametrize(
    ("left_s", "usual_s", "kept_s", "stream", "window"),
    [
        # Nobody else may answer.
        (10.0, 6.0, None, True, 10.0),
        (math.inf, None, None, False, math.inf),
        (10.0, 6.0, 2.0, True, 8.0),
        (10.0, None, 5.0, True, 5.0),
        (10.0, None, 5.0, False, 5.0),
        # A whole answer has three times its usual time, as far as there is time.
        (60.0, 2.0, 30.0, False, 30.0),
        (60.0, 15.0, 30.0, False, 45.0),
        (10.0, 6.0, 2.0, False, 10.0),
        (600.0, 5.0, 24.0, False, 576.0),
    ],
)
def test_all_tries_at_a_target_leave_what_is_kept(
    left_s: float, usual_s: float | None, kept_s: float | None, *, stream: bool, window: float
) -> None:
    """Except that an answer that is merely long is not thrown away and paid for twice."""
    assert window_s(left_s, usual_s, kept_s, stream=stream) == window


@pytest.mark.parametrize(
    ("window", "spent_s", "usual_s", "stream", "others", "again", "waits_s"),
    [
        (math.inf, 0.0, None, True, False, False, None),
        (math.inf, 0.0, None, True, True, False, 10.0),
        (math.inf, 0.0, None, True, False, True, 10.0),
        (8.0, 0.0, None, True, False, False, 8.0),
        (8.0, 0.0, None, True, True, False, 8.0),
        # A sibling has its time, too, and the last try what is left of the target's.
        (8.0, 0.0, None, True, True, True, 4.0),
        (8.0, 4.0, None, True, True, False, 4.0),
        (8.0, 0.0, 2.0, True, True, True, 6.0),
        (8.0, 6.0, 2.0, True, True, False, 2.0),
        (8.0, 8.5, 2.0, True, True, False, 0.001),
        # A target that usually takes longer than the limit is not late for it.
        (math.inf, 0.0, 20.0, True, True, True, 60.0),
        (30.0, 0.0, 20.0, True, True, False, 30.0),
        (30.0, 0.0, None, True, True, False, 10.0),
        (30.0, 0.0, None, True, False, False, 30.0),
        # A whole answer shows nothing before its end, so a sibling is left nothing.
        (8.0, 0.0, None, False, True, True, 8.0),
        (30.0, 2.0, None, False, True, False, 28.0),
        (math.inf, 0.0, None, False, False, False, None),
        (-1.0, 0.0, None, False, False, False, 0.001),
    ],
)
def test_a_try_leaves_time_for_who_else_may_answer(
    window: float,
    spent_s: float,
    usual_s: float | None,
    *,
    stream: bool,
    others: bool,
    again: bool,
    waits_s: float | None,
) -> None:
    """Of its target's time; where nobody else may answer, it has all of that."""
    found = patience_s(window, spent_s, usual_s, 10.0, stream=stream, others=others, again=again)
    assert found == waits_s


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
@pytest.mark.parametrize(("more", "for_s", "outcome"), [([5.0, 0.0], 8.0, "late at 7"), ([5.0, None], 60.0, "in time")])
async def test_what_is_due_may_be_waited_for_longer(more: list[float | None], for_s: float, outcome: str) -> None:
    """It is asked again each time that it is due; other waits go on beside it."""
    timer, loop = PatienceTimer(), asyncio.get_running_loop()
    began_at = loop.time()
    other = asyncio.create_task(waiting(timer, 3.0, 4.0))
    answers = iter(more)
    found = "in time"
    try:
        with timer.within(2.0, lambda: next(answers)):
            await asyncio.sleep(for_s)
    except TimeoutError:
        found = f"late at {loop.time() - began_at:.0f}"
    assert (found, await other) == (outcome, "late")


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
