"""What is told of all workers of a host together."""

import asyncio
from collections.abc import Sequence

import pytest

from api.live.workers import Workers, WorkersNow
from providers.breaker import FAULTS_KEPT, BreakerSnapshot, Fault
from proxy.admin.worker_report import QueueReport, RedisState, WorkerReport
from proxy.admit.limits.limit import Limit, Remaining
from proxy.admit.queues.queue_item import QueueSnapshot, QueueState
from tests.api.live.workers import worker

LIMIT = Limit(key="team/a//requests", scope="team", kind="requests", rate=60, burst=60)


def breaker(state: str = "closed", **fields: object) -> BreakerSnapshot:
    return BreakerSnapshot(
        **{"state": state, "opens_again_s": None, "failures": 0, "ejections": 0, "faults": (), **fields}  # type: ignore[arg-type]
    )


def queue(waiting: int, wait_s: float) -> QueueReport:
    state = QueueState(
        name="own",
        waiting=waiting,
        waiting_tokens=10 * waiting,
        in_flight=1,
        in_flight_tokens=50,
        capacity_tokens=100,
        predicted_wait_s=wait_s,
    )
    snapshot = QueueSnapshot(
        state=state,
        whole_capacity_tokens=200,
        by_demand=False,
        waiting_interactive=waiting,
        waiting_batch=0,
        drain_tokens_per_s=3.0,
    )
    return QueueReport(name="own", targets=("llama",), snapshot=snapshot)


def test_requests_are_summed() -> None:
    """In flight and their bound are those of all; one that refuses is told, and only all that drain are draining."""
    now = WorkersNow(
        (
            worker("one", in_flight=3, draining=True, scored_by_rule=1),
            worker("two", in_flight=4, is_refusing=True, live=2, scored_by_rule=2),
        )
    )
    assert (now.in_flight, now.max_in_flight, now.is_refusing, now.draining) == (7, 200, True, False)
    assert (now.live, now.scored_by_rule) == (2, 3)
    assert WorkersNow((worker(draining=True),)).draining
    nobody = WorkersNow(())
    assert (nobody.draining, nobody.in_flight, nobody.live, nobody.redis, nobody.queues) == (False, 0, 1, None, [])


def test_a_deployment_is_told_as_whoever_sees_it_worst() -> None:
    """The worst state with the latest faults of all; it is called as long as one worker would call it."""
    faults = [(float(age), Fault(100.0 - age, "ConnectFailed", None, True)) for age in range(FAULTS_KEPT)]
    shut = breaker("open", opens_again_s=9.0, failures=5, ejections=1, faults=tuple(faults))
    half = breaker("half-open", opens_again_s=0.0, faults=((0.5, Fault(99.5, "StreamCut", None, True)),))
    now = WorkersNow((worker("one", breakers={"m/a": shut}), worker("two", breakers={"m/a": half})))
    told = now.breaker("m/a")
    assert (told.state, told.opens_again_s, told.failures) == ("open", 9.0, 5)
    assert [age for age, _ in told.faults] == [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert now.is_called("m/a")
    assert not WorkersNow((worker(breakers={"m/a": shut}),)).is_called("m/a")
    assert now.breaker("m/b").state == "closed"
    assert now.is_called("m/b")


def test_queues_are_summed_and_the_longest_wait_is_told() -> None:
    """A queue of all workers has what they have, and its capacity is what they share."""
    now = WorkersNow((worker("one", queues=(queue(2, 1.0),)), worker("two", queues=(queue(3, 4.0),))))
    (told,) = now.queues
    state = told.snapshot.state
    assert (state.waiting, state.waiting_tokens, state.capacity_tokens, state.predicted_wait_s) == (5, 50, 200, 4.0)
    assert (told.targets, told.snapshot.whole_capacity_tokens) == (("llama",), 200)


@pytest.mark.parametrize(
    ("modes", "told"), [(["shared", "shared"], "shared"), (["shared", "share"], "share"), (["process"], "process")]
)
def test_redis_decides_only_while_it_does_for_all(modes: Sequence[str], told: str) -> None:
    """One worker that has lost Redis goes by its share."""
    now = WorkersNow(tuple(worker(str(number), limits_mode=mode) for number, mode in enumerate(modes)))
    assert now.limits_mode == told


def test_the_worst_view_of_redis_is_told() -> None:
    """A worker that does not reach it is what an operator wants to know."""
    states = [RedisState(place="r:1", healthy=healthy, live=2, problem="") for healthy in (True, False)]
    now = WorkersNow(tuple(worker(str(number), redis=state) for number, state in enumerate(states)))
    assert now.redis == states[1]


async def test_what_remains_is_the_sum_of_the_parts_or_what_redis_says() -> None:
    """Without Redis each worker has its part of a limit; with it each tells the whole."""
    mode = "share"

    async def ask() -> list[WorkerReport]:
        return [worker(name, limits_mode=mode) for name in ("one", "two")]

    async def peek(limits: tuple[Limit, ...]) -> list[tuple[Remaining, ...]]:
        return [tuple(Remaining(30, 10 * part, float(part)) for _ in limits) for part in (1, 2)]

    workers = Workers(ask, peek)
    assert await workers.remaining((LIMIT,)) == (Remaining(60, 30, 2.0),)
    mode = "shared"
    assert await workers.remaining((LIMIT,)) == (Remaining(30, 10, 1.0),)


async def test_those_who_ask_at_once_share_one_question() -> None:
    """And one that goes away takes the answer from nobody."""
    asked, gate = 0, asyncio.Event()

    async def ask() -> list[WorkerReport]:
        nonlocal asked
        asked += 1
        await gate.wait()
        return [worker()]

    async def peek(_limits: tuple[Limit, ...]) -> list[tuple[Remaining, ...]]:
        return []

    workers = Workers(ask, peek)
    leaving, staying = asyncio.ensure_future(workers.now()), asyncio.ensure_future(workers.now())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert len((await staying).reports) == 1
    assert asked == 1
    await workers.now()
    assert asked == 2
    assert await workers.remaining((LIMIT,)) == ()
