"""Entering queues, waiting in them, and leaving them, as requests do."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from proxy.admit.queues.capacity import Capacity
from proxy.admit.queues.queue_item import NoRoom, QueueItem, QueuePermit, QueueState, Why
from proxy.admit.queues.queues import NO_QUEUE, Handle, QueueObserver, Queues
from proxy.admit.queues.queues_config import MaxWait, QueueConfig
from proxy.errors import Draining, error_reply


class _Alarm:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback

    def cancel(self) -> None:
        self.at = math.inf


class _Seen(QueueObserver):
    """What was counted."""

    def __init__(self) -> None:
        self.states: dict[str, QueueState] = {}
        self.waits: list[tuple[str, str, float]] = []
        self.refusals: list[tuple[str, Why]] = []

    def set_queue(self, state: QueueState) -> None:
        self.states[state.name] = state

    def observe_queue_wait(self, queue: str, tier: str, seconds: float) -> None:
        self.waits.append((queue, tier, seconds))

    def count_queue_refusal(self, queue: str, why: Why) -> None:
        self.refusals.append((queue, why))

    def forget_queue(self, queue: str) -> None:
        self.states.pop(queue, None)


class _Site:
    """Queues whose clock and timers are in the test's hands."""

    def __init__(self, **given: Any) -> None:
        self.now = 100.0
        self.alarms: list[_Alarm] = []
        self.seen = _Seen()
        self.configs = {"own": config(**given)}
        self.queues = Queues(
            self.configs,
            Capacity(lambda: 1, clock=self.clock),
            self.clock,
            observer=self.seen,
            jitter=lambda: 0.0,
            alarm=self._alarm,
        )

    def clock(self) -> float:
        return self.now

    def _alarm(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        alarm = _Alarm(self.now + delay_s, callback)
        self.alarms.append(alarm)
        return alarm

    @property
    def pending(self) -> int:
        return sum(alarm.at < math.inf for alarm in self.alarms)

    async def pass_s(self, seconds: float) -> None:
        self.now += seconds
        for alarm in self.alarms[:]:
            if alarm.at <= self.now:
                self.alarms.remove(alarm)
                alarm.callback()
        await settle()

    def state(self) -> QueueState:
        return self.queues.state("own")

    async def waiter(
        self, asked: QueueItem, on_wait: Callable[[float], None] | None = None
    ) -> asyncio.Task[QueuePermit]:
        task = asyncio.ensure_future(self.queues.enter("llama", asked, on_wait))
        await settle()
        return task


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def config(**given: Any) -> QueueConfig:
    plain: dict[str, Any] = {"targets": ("llama",), "tokens_in_flight": 1_000, "light_share": 0, "interactive_share": 0}
    return QueueConfig(**{**plain, "max_wait_s": MaxWait(interactive=60, batch=600), **given})


def work(team_id: str = "a", tokens: int = 600, **given: Any) -> QueueItem:
    plain: dict[str, Any] = {"weight": 1.0, "tier": "interactive", "priority": 0, "start_by": math.inf}
    return QueueItem(team_id=team_id, tokens=tokens, **{**plain, **given})


async def test_a_target_without_a_queue_costs_nothing() -> None:
    """Everybody gets the same permit, and giving it back does nothing."""
    site = _Site()
    assert await site.queues.enter("gpt-4o", work()) is NO_QUEUE
    assert site.queues.try_enter("gpt-4o", work()) is NO_QUEUE
    NO_QUEUE.release(5)
    assert NO_QUEUE.waited_s == 0
    assert (site.queues.queue_of("gpt-4o"), site.queues.queue_of("llama")) == (None, "own")
    assert site.queues.names == ("own",)


async def test_an_operator_sees_who_waits_and_how_fast_work_ends() -> None:
    """By the tier that was asked for, however long ago; and what of the whole is this process's part."""
    site = _Site(aging_s=5, max_wait_s=MaxWait(interactive=60, batch=600))
    permit = await site.queues.enter("llama", work(tokens=1_000))
    waiting = [await site.waiter(work(tier=tier)) for tier in ("batch", "batch", "interactive")]
    await site.pass_s(6)
    look = site.queues.snapshot("own")
    assert (look.waiting_interactive, look.waiting_batch, look.by_demand) == (1, 2, False)
    assert (look.state, look.whole_capacity_tokens) == (site.state(), 1_000)
    before = look.drain_tokens_per_s
    await site.pass_s(1)
    permit.release()
    assert site.queues.snapshot("own").drain_tokens_per_s > before > 0
    for task in waiting:
        task.cancel()
    await settle()


async def test_what_fits_starts_at_once() -> None:
    """Nothing is awaited: the coroutine ends in its first step."""
    site = _Site()
    entering = site.queues.enter("llama", work())
    with pytest.raises(StopIteration) as ended:
        entering.send(None)
    assert ended.value.value.waited_s == 0
    assert site.state().in_flight_tokens == 600
    assert site.pending == 0


async def test_the_next_starts_when_one_is_done() -> None:
    """It waited for as long as it says, and what is given back twice counts once."""
    site = _Site()
    first = await site.queues.enter("llama", work())
    second = await site.waiter(work())
    assert (site.state().waiting, site.state().waiting_tokens) == (1, 600)
    await site.pass_s(3)
    first.release(100)
    first.release(100)
    permit = await second
    assert permit.waited_s == 3
    assert site.state().in_flight == 1
    assert site.seen.waits == [("own", "interactive", 0.0), ("own", "interactive", 3.0)]
    permit.release()
    assert (site.state().in_flight, site.state().in_flight_tokens) == (0, 0)


async def test_a_caller_that_is_gone_leaves_no_trace() -> None:
    """Neither while it waits, nor when its turn came in the same moment; whoever it held up goes on."""
    site = _Site()
    first = await site.queues.enter("llama", work())
    large, small = await site.waiter(work("b", 900)), await site.waiter(work("a", 500))
    large.cancel()
    await settle()
    assert site.state().waiting == 1
    first.release()
    small.cancel()
    await settle()
    assert small.cancelled()
    assert (site.state().waiting, site.state().in_flight_tokens) == (0, 0)
    assert (await site.queues.enter("llama", work("c", 1_000))).waited_s == 0


async def test_who_would_wait_too_long_is_told_at_once() -> None:
    """With the wait that it would have, when to come again, and how things stand."""
    site = _Site()
    held = await site.queues.enter("llama", work("a", 1_000))
    await site.waiter(work("a", 1_000))
    with pytest.raises(NoRoom) as refused:
        await site.queues.enter("llama", work("a", start_by=site.now + 1))
    assert refused.value.why == "late"
    assert refused.value.state.waiting == 1
    assert refused.value.state.predicted_wait_s > 1
    assert refused.value.retry_after_s == refused.value.state.predicted_wait_s
    assert site.state().waiting == 1
    reply = error_reply(refused.value)
    told = msgspec.json.decode(reply.body)["error"]
    assert reply.status == 429
    assert told["queue"]["waiting_tokens"] == 1_000
    assert "own" in told["message"]
    assert "x-tier: batch" in told["message"]
    with pytest.raises(NoRoom, match="longer than") as patient:
        await site.queues.enter("llama", work(start_by=site.now - 1, tier="batch"))
    assert "x-tier" not in patient.value.message
    held.release()


async def test_who_waited_as_long_as_it_may_is_told() -> None:
    """One timer serves all that wait, and those that do not wait any more set off nothing."""
    site = _Site()
    held = await site.queues.enter("llama", work("a", 1_000))
    patient = await site.waiter(work("b", 100))
    hasty = await site.waiter(work("c", 100, start_by=site.now + 20))
    assert site.pending == 1
    await site.pass_s(19)
    assert not hasty.done()
    await site.pass_s(1.01)
    with pytest.raises(NoRoom) as refused:
        await hasty
    assert refused.value.why == "expired"
    assert site.seen.refusals == [("own", "expired")]
    held.release()
    assert (await patient).waited_s == pytest.approx(20.01)
    await site.pass_s(100)
    assert site.pending == 0


async def test_a_wait_is_told_however_it_ends() -> None:
    """In a permit, in a refusal or with a caller that leaves, the same seconds as the metric's; what waits for nothing tells 0 there."""
    site = _Site()
    held = await site.queues.enter("llama", work("a", 1_000))
    told: list[float] = []
    patient = await site.waiter(work("b", 100), told.append)
    hasty = await site.waiter(work("c", 100, start_by=site.now + 20), told.append)
    leaver = await site.waiter(work("d", 100), told.append)
    await site.pass_s(4)
    leaver.cancel()
    await settle()
    await site.pass_s(17)
    with pytest.raises(NoRoom):
        await hasty
    await site.pass_s(9)
    held.release()
    await patient
    assert told == [4.0, 21.0, 30.0]
    assert site.seen.waits == [("own", "interactive", 0.0), *(("own", "interactive", each) for each in told)]


async def test_more_urgent_work_takes_the_place_of_what_waits() -> None:
    """When the queue is full, and never of what runs."""
    site = _Site(max_waiting=1)
    held = await site.queues.enter("llama", work("a", 1_000, tier="batch"))
    batch = await site.waiter(work("a", 100, tier="batch"))
    person = await site.waiter(work("b", 100))
    with pytest.raises(NoRoom) as refused:
        await batch
    assert refused.value.why == "shed"
    with pytest.raises(NoRoom) as refused:
        await site.queues.enter("llama", work("b", 100))
    assert refused.value.why == "full"
    held.release()
    await person
    assert site.seen.refusals == [("own", "shed"), ("own", "full")]


async def test_whoever_was_held_up_by_one_that_is_given_up_goes_on() -> None:
    """In the same moment, not only when the next one ends."""
    site = _Site()
    await site.queues.enter("llama", work("a", 500))
    large = await site.waiter(work("b", 550, start_by=site.now + 20))
    passing, held_up = await site.waiter(work("c", 500)), await site.waiter(work("c", 500))
    (await passing).release()
    await settle()
    assert not held_up.done()
    await site.pass_s(20.01)
    with pytest.raises(NoRoom):
        await large
    assert held_up.done()


async def test_what_may_not_wait_is_taken_or_refused() -> None:
    """It starts when it is its turn and there is room, also past others that do not fit; otherwise it leaves no trace."""
    site = _Site()
    permit = site.queues.try_enter("llama", work("a", 500))
    with pytest.raises(NoRoom) as refused:
        site.queues.try_enter("llama", work("a", 600))
    assert refused.value.why == "full"
    await site.waiter(work("a", 900))
    site.queues.try_enter("llama", work("b", 300))
    with pytest.raises(NoRoom):
        site.queues.try_enter("llama", work("b", 300))
    assert (site.state().waiting, site.state().in_flight_tokens) == (1, 800)
    permit.release()


async def test_a_reload_keeps_what_is_in_flight() -> None:
    """A larger queue lets the next go; a queue that is no more holds nobody back; the rest is as it was."""
    site = _Site()
    held = await site.queues.enter("llama", work("a", 1_000))
    second, third = await site.waiter(work("a", 1_000)), await site.waiter(work("a", 1_000))
    site.queues.adopt({"own": config(tokens_in_flight=2_000)})
    await settle()
    assert second.done()
    assert not third.done()
    assert site.state().in_flight_tokens == 2_000
    site.queues.adopt({"other": config()})
    (await third).release()
    assert site.queues.queue_of("llama") == "other"
    held.release()
    (await second).release()
    assert site.queues.state("other").in_flight == 0
    with pytest.raises(KeyError):
        site.state()


async def test_the_end_refuses_what_waits() -> None:
    """The beat stops, and whoever still waits is told to ask somebody else."""
    site = _Site()
    await site.queues.start()
    held = await site.queues.enter("llama", work("a", 1_000))
    waiting = await site.waiter(work("a", 1_000))
    await site.queues.beat()
    assert site.seen.states["own"].waiting == 1
    await site.queues.aclose()
    with pytest.raises(Draining):
        await waiting
    held.release()
    assert site.state().in_flight == 0


async def test_a_crowd_is_served_to_the_last() -> None:
    """Hundreds of tasks that wait, run a moment and leave: never more than fits, and everybody's turn comes."""
    site = _Site(max_waiting=1_000, max_waiting_tokens=1_000_000, max_wait_s=MaxWait(interactive=600))
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        permit = await site.queues.enter("llama", work(f"team_{number % 7}", 10 + number % 200))
        most = max(most, site.state().in_flight_tokens)
        await asyncio.sleep(0)
        permit.release(number)

    await asyncio.gather(*(one(number) for number in range(500)))
    assert 900 < most <= 1_000
    assert (site.state().waiting, site.state().in_flight) == (0, 0)


async def test_what_is_expected_of_a_wait_is_nothing_with_room_and_the_prediction_without() -> None:
    """It takes no place, and it is the wait that a refusal would tell."""
    site = _Site(tokens_in_flight=100)
    assert site.queues.expected("elsewhere", work(tokens=10)) is None
    room = site.queues.expected("llama", work(tokens=100))
    assert room is not None
    assert (room.expected_s, room.most_s) == (0.0, site.configs["own"].max_wait_s.interactive)
    permit = await site.queues.enter("llama", work(tokens=100))
    short = site.queues.expected("llama", work(tokens=50))
    assert short is not None
    assert short.expected_s == site.queues.state("own", work(tokens=50)).predicted_wait_s > 0
    assert site.queues.state("own").waiting == 0
    permit.release()


async def test_a_queue_whose_targets_sleep_lets_wait_who_can_and_nobody_start() -> None:
    """What is expected until they wake counts as wait: who may not wait as long is refused at once, the others start when it opens."""
    site = _Site(tokens_in_flight=1_000, max_wait_s=MaxWait(interactive=30))
    shut: list[float | None] = [20.0]
    site.queues = Queues(
        site.configs,
        Capacity(lambda: 1, clock=site.clock),
        site.clock,
        observer=site.seen,
        alarm=site._alarm,
        shut_s=lambda queue: shut[0] if queue.targets == ("llama",) else None,
    )
    expected = site.queues.expected("llama", work())
    assert expected is not None
    assert expected.expected_s >= 20
    waits = asyncio.create_task(site.queues.enter("llama", work()))
    await asyncio.sleep(0)
    assert site.queues.waiting == 1
    with pytest.raises(NoRoom) as refused:
        await site.queues.enter("llama", work(start_by=site.now + 15))
    assert refused.value.why == "late"
    with pytest.raises(NoRoom):
        site.queues.try_enter("llama", work())
    await site.queues.beat()
    assert not waits.done()
    shut[0] = None
    await site.queues.beat()
    (await waits).release()
    site.queues.try_enter("llama", work()).release()
