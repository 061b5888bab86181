"""Several processes before the same machines: what they have in flight together, and what becomes of large requests."""

import asyncio
import heapq
import math
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admit.queues.capacity import Capacity
from proxy.admit.queues.queue_item import QueueItem, QueuePermit
from proxy.admit.queues.queues import Handle, Queues
from proxy.admit.queues.queues_config import MaxWait, QueueConfig
from tests.examples import examples
from tests.proxy.admit.queues.book import Book, BookLink

_STEP_S = 0.05
_WHOLE = 20_000


class _Never:
    def cancel(self) -> None:
        pass


class _Process:
    def __init__(self, cluster: "_Cluster", holder: str, whole: int) -> None:
        self.link = BookLink(cluster.book, holder)
        capacity = Capacity(lambda: 4, self.link, clock=cluster.clock)
        config = QueueConfig(
            targets=("llama",),
            tokens_in_flight=whole,
            max_waiting_tokens=10_000_000,
            # Nobody is refused for a long wait: these plays are about who has a turn.
            max_wait_s=MaxWait(interactive=600).model_copy(update={"interactive": 1e6}),
        )
        self.queues = Queues({"own": config}, capacity, cluster.clock, alarm=self._alarm)
        self.started: list[tuple[float, QueueItem]] = []

    @staticmethod
    def _alarm(delay_s: float, callback: object) -> Handle:
        return _Never()

    @property
    def in_flight(self) -> int:
        return self.queues.state("own").in_flight_tokens


class _Cluster:
    """Processes, a simulated clock, and work that runs for a second or more."""

    def __init__(self, wholes: Sequence[int] = (_WHOLE,) * 4, longest_s: float = 3.0) -> None:
        self.now = 0.0
        self._longest_s = longest_s
        self.rng = random.Random(11)
        self.book = Book()
        self.book.clock = self.clock
        self.processes = [_Process(self, f"p{number}:1", whole) for number, whole in enumerate(wholes)]
        self.ends: list[tuple[float, int, QueuePermit]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.used: list[int] = []

    def clock(self) -> float:
        return self.now

    def send(self, process: _Process, tokens: int, team_id: str = "a") -> None:
        work = QueueItem(team_id=team_id, weight=1.0, tier="interactive", priority=0, tokens=tokens, start_by=math.inf)
        self.tasks.append(asyncio.ensure_future(self._one(process, work)))

    async def _one(self, process: _Process, work: QueueItem) -> None:
        permit = await process.queues.enter("llama", work)
        process.started.append((self.now, work))
        heapq.heappush(self.ends, (self.now + self.rng.uniform(1, self._longest_s), len(process.started), permit))

    async def step(self, number: int) -> None:
        self.now += _STEP_S
        while self.ends and self.ends[0][0] <= self.now:
            heapq.heappop(self.ends)[2].release()
        # Each beats every fifth step, at its own moment.
        for index, process in enumerate(self.processes):
            if number % 5 == index:
                await process.queues.beat()
        for _ in range(4):
            await asyncio.sleep(0)
        self.used.append(sum(process.in_flight for process in self.processes))

    async def come(self) -> None:
        for process in self.processes:
            await process.link.come()
        self.now += 3
        for process in self.processes:
            await process.queues.beat()

    async def finish(self, steps: int) -> None:
        for number in range(steps):
            await self.step(number)
        async with asyncio.timeout(5):
            await asyncio.gather(*self.tasks)


async def test_together_they_use_what_there_is_and_no_more() -> None:
    """Whichever of them has the work, nearly all of the capacity is used, and never more than it."""
    cluster = _Cluster()
    await cluster.come()
    for number in range(400):
        busy = cluster.processes[: 1 + number // 100]
        for process in busy:
            for _ in range(cluster.rng.randint(0, 4)):
                cluster.send(process, cluster.rng.randint(100, 900) // len(busy))
        await cluster.step(number)
    assert max(cluster.used) <= _WHOLE
    for begin in range(0, 400, 100):
        # One alone, then two, three and all four.
        assert sum(cluster.used[begin + 50 : begin + 100]) >= 0.9 * 50 * _WHOLE
    await cluster.finish(800)
    assert sum(process.in_flight for process in cluster.processes) <= _WHOLE


async def test_what_is_larger_than_a_part_or_than_everything_has_its_turn() -> None:
    """While all processes are busy, a request of half of everything starts, and one of twice as much runs alone."""
    cluster = _Cluster()
    await cluster.come()
    for number in range(400):
        for process in cluster.processes:
            if cluster.rng.random() < 0.3:
                cluster.send(process, cluster.rng.randint(100, 900))
        if number == 50:
            cluster.send(cluster.processes[1], _WHOLE // 2, "large")
        if number == 60:
            cluster.send(cluster.processes[2], 2 * _WHOLE, "giant")
        await cluster.step(number)
    await cluster.finish(500)
    started = {work.team_id: at for process in cluster.processes for at, work in process.started if work.team_id != "a"}
    assert started.keys() == {"large", "giant"}
    assert started["large"] < 3 + 50 * _STEP_S + 15
    assert started["giant"] < 3 + 60 * _STEP_S + 30
    over = [used for used in cluster.used if used > _WHOLE]
    assert set(over) == {2 * _WHOLE}


async def test_nothing_is_lost_when_redis_goes_and_comes_back() -> None:
    """Each goes on with its equal part; what was waiting is served, and afterwards the sum is kept again."""
    cluster = _Cluster()
    await cluster.come()
    for number in range(500):
        for process in cluster.processes:
            if cluster.rng.random() < 0.3:
                cluster.send(process, cluster.rng.randint(100, 900))
        if number == 150:
            for process in cluster.processes:
                process.link.go()
        if number == 300:
            cluster.book.written.clear()
            for process in cluster.processes:
                process.link.holder = process.link.holder.replace(":1", ":2")
                await process.link.come()
        await cluster.step(number)
        assert sum(cluster.used[-1:]) <= _WHOLE * (1.5 if 150 <= number < 300 else 1.0)
    await cluster.finish(400)
    assert cluster.used[-1] == 0


_SENT = st.tuples(st.integers(0, 3), st.integers(0, 40), st.sampled_from((0.02, 0.1, 0.3, 0.6, 0.98, 1.01, 1.5)))


@settings(max_examples=examples(30), deadline=None)
@given(
    wholes=st.lists(st.integers(20_000, 20_400), min_size=2, max_size=4),
    sent=st.lists(_SENT, min_size=1, max_size=30),
)
def test_where_there_is_room_somebody_may_send(wholes: list[int], sent: list[tuple[int, int, float]]) -> None:
    """Whatever waits where, and though each process knows a slightly different size: two seconds in which nothing runs
    are enough for somebody to start, and everybody is served.
    """

    async def play() -> None:
        cluster = _Cluster(wholes)
        await cluster.come()
        idle = 0
        for number in range(2_000):
            for process, at, size in sent:
                if at == number:
                    which = cluster.processes[process % len(wholes)]
                    cluster.send(which, int(size * 20_200), team_id="ab"[process % 2])
            before = cluster.used[-1] if cluster.used else 0
            await cluster.step(number)
            waits = sum(process.queues.waiting for process in cluster.processes)
            idle = idle + 1 if waits and not (before or cluster.used[-1]) else 0
            assert idle * _STEP_S <= 2
            if number > 40 and not waits:
                break
        await cluster.finish(70)

    asyncio.run(play())


@settings(max_examples=examples(8), deadline=None)
@given(
    wholes=st.lists(st.integers(20_000, 20_400), min_size=2, max_size=4),
    sent=st.lists(
        st.tuples(st.sampled_from((0, 0, 0, 1, 2, 3)), st.integers(0, 150), st.sampled_from((0.02, 0.05, 0.1))),
        min_size=40,
        max_size=120,
    ),
)
def test_what_is_free_is_given_within_a_second(wholes: list[int], sent: list[tuple[int, int, float]]) -> None:
    """Whoever has the room, however long its work runs, and whoever waits: while a quarter is free beside what waits, something starts."""

    async def play() -> None:
        cluster = _Cluster(wholes, longest_s=20.0)
        await cluster.come()
        kept = 0
        for number in range(300):
            for process, at, size in sent:
                if at == number:
                    cluster.send(cluster.processes[process % len(wholes)], int(size * 20_200), "abc"[process % 3])
            before = sum(len(process.started) for process in cluster.processes)
            await cluster.step(number)
            waits = sum(process.queues.waiting for process in cluster.processes)
            free = min(wholes) - cluster.used[-1] - int(0.1 * 20_200)
            started = sum(len(process.started) for process in cluster.processes) > before
            kept = kept + 1 if waits and not started and free >= min(wholes) // 4 else 0
            assert kept * _STEP_S <= 1
        await cluster.finish(6_000)

    asyncio.run(play())
