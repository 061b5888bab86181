"""A time-out that costs no timer of its own, and that may be extended when it is due."""

import asyncio

import pytest

from proxy.dispatch.attempt_timeout import AttemptTimeout, AttemptTimeouts


async def waiting(timer: AttemptTimeouts, limit_s: float | None, for_s: float) -> str:
    """What comes of waiting so long, with so much timeout."""
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
    timer, loop = AttemptTimeouts(), asyncio.get_running_loop()
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
    timer, loop = AttemptTimeouts(), asyncio.get_running_loop()
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
        waits = asyncio.ensure_future(waiting(AttemptTimeouts(), 1.0, 9.0))
        asyncio.get_running_loop().call_later(after_s, waits.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waits


async def test_patience_ends_at_once_and_only_once() -> None:
    """With a replica that is dead; not when it is told too late."""
    loop = asyncio.get_running_loop()
    late = False
    try:
        with AttemptTimeout(loop) as timeout:
            timeout.expire()
            timeout.expire()
            await asyncio.sleep(1)
    except TimeoutError:
        late = True
    assert late
    assert timeout.expired
    with AttemptTimeout(loop) as timeout:
        timeout.expire()
    await asyncio.sleep(0)
    assert not timeout.expired
