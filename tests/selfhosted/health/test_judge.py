"""What one process makes of what it is told of a pool, and how it goes on when nobody tells it anything more."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from selfhosted.config import PoolConfig, WatchConfig
from selfhosted.health.host_messages import FROM_PROBER, FROM_PROCESS
from selfhosted.health.judge import JudgeObserver, PoolJudge
from selfhosted.health.messages import FromPool, FromRequests, PoolMembers, ReplicaDoubted, ReplicaObserved
from selfhosted.health.verdict import Doubt, Probe
from selfhosted.replica import Address, EngineStats, Replica, ReplicaState

POOL = PoolConfig(name="pool", targets=("t",), watch=WatchConfig(every_s=1.0, timeout_s=0.8, stale_s=5.0))
SILENCE_S = 2.8


def at(name: str = "a", url: str = "", **fields: Any) -> Address:
    return Address(pool="pool", name=name, url=url or f"http://{name}", kind="vllm", source="configured", **fields)


class Process(JudgeObserver):
    """A judge on a clock that the test moves, with what it told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[FromRequests] = []
        self.restarts: list[str] = []
        self.members: list[list[str]] = []
        self.states: list[tuple[str, ReplicaState]] = []
        self.judge = PoolJudge(POOL, clock=lambda: self.now, tell=self.told.append, observer=self)

    def members_changed(self, addresses: tuple[Address, ...]) -> None:
        self.members.append([each.name for each in addresses])

    def restarted(self, name: str) -> None:
        self.restarts.append(name)

    def state_changed(self, name: str, before: ReplicaState | None, state: ReplicaState) -> None:
        self.states.append((name, state))

    def replica(self, name: str = "a") -> Replica:
        return next(each for each in self.judge.snapshot.replicas if each.name == name)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.judge.snapshot.replicas]

    def observed(self, name: str = "a", **fields: Any) -> ReplicaObserved:
        """A probe that was answered now, and fresh statistics."""
        stats = EngineStats(at=self.now, running=1, waiting=0, adapters=frozenset({"sql"}))
        probe = Probe(sent_at=self.now, first_at=0.0, answered_at=self.now)
        known = {"address": at(name), "probe": probe, "stats": stats, "scraped_at": self.now}
        return ReplicaObserved(**{**known, **fields})

    def hear(self, name: str = "a", **fields: Any) -> None:
        self.judge.hear(self.observed(name, **fields))

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.judge.tick(1.0)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.tick()


@pytest.fixture
def process() -> Process:
    """Who has heard of one replica that is ready."""
    found = Process()
    found.judge.hear(PoolMembers(pool="pool", addresses=(at(),)))
    found.hear()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_who_joins_late_knows_at_once_in_whatever_order(seed: int) -> None:
    """Nothing is starting that is known to be ready, suspected or down; and no restart is told of."""
    process = Process()
    doubt = Doubt(at=99.0, suspicions=3, doubted_at=99.0, suspect_until=104.0)
    down = Probe(sent_at=100.0, first_at=0.0, misses=5, why="no answer", answered_at=50.0)
    messages: list[FromPool] = [
        PoolMembers(pool="pool", addresses=tuple(at(name) for name in "abc")),
        process.observed("a", restarted_at=70.0),
        process.observed("b", doubt=doubt),
        process.observed("c", probe=down, stats=None),
    ]
    random.Random(seed).shuffle(messages)
    for message in messages:
        process.judge.hear(message)
    assert {name: process.replica(name).state for name in "abc"} == {"a": "ready", "b": "suspect", "c": "down"}
    assert process.replica("a").stats is not None
    assert process.replica("c").stats is None
    assert process.restarts == []
    assert process.names == ["a", "b", "c"]
    assert not process.judge.has_unprobed


def test_a_snapshot_stays_while_probes_only_repeat_what_is_known(process: Process) -> None:
    """So nothing that is derived from it is made anew."""
    before = process.judge.snapshot
    stats = process.replica().stats
    process.now += 1.0
    process.hear(stats=stats, scraped_at=100.0)
    assert process.judge.snapshot is before


def test_members_that_are_not_all_take_nobody_away(process: Process) -> None:
    """Who begins anew has not heard of everybody yet."""
    process.judge.hear(PoolMembers(pool="pool", addresses=(at("b"),), complete=False))
    assert process.names == ["a", "b"]
    process.judge.hear(PoolMembers(pool="pool", addresses=(at("b"),)))
    assert process.names == ["b"]
    assert process.members[-1] == ["b"]


def test_who_begins_to_probe_anew_takes_nothing_away(process: Process) -> None:
    """Neither the state nor the statistics: it knows nothing yet."""
    process.now += 1.0
    process.hear(probe=None, stats=None, scraped_at=float("-inf"), stats_why="they were not read yet")
    assert process.replica().state == "ready"
    assert process.replica().stats is not None
    process.hear(restarted_at=float("-inf"))
    assert process.restarts == []


def test_a_restart_is_told_once(process: Process) -> None:
    """However often it is heard of."""
    for _ in range(2):
        process.hear(restarted_at=100.5)
    assert process.restarts == ["a"]


async def test_a_name_at_another_address_is_another_replica(process: Process) -> None:
    """Whichever message says so first; what was told of the former one is nothing of its own."""
    process.judge.failed("a")
    process.now += 1.0
    process.hear(address=at(url="http://other"), probe=None, stats=None)
    assert (process.replica().state, process.restarts) == ("starting", ["a"])
    assert not process.judge.doubt(
        ReplicaDoubted(pool="pool", replica="a", url="http://a", doubt=Doubt(at=101.0, doubted_at=101.0))
    )


async def test_an_own_failure_counts_at_once_and_is_told(process: Process) -> None:
    """As one message however many fail together; nothing that is older clears it."""
    process.now += 1.0
    older = process.observed()
    for _ in range(40):
        process.now += 0.001
        process.judge.failed("a", began_at=100.5)
    assert process.replica().state == "suspect"
    process.judge.hear(older)
    assert process.replica().state == "suspect"
    await asyncio.sleep(0)
    (told,) = process.told
    assert isinstance(told, ReplicaDoubted)
    assert (told.url, told.doubt.doubted_at, told.doubt.suspicions) == ("http://a", process.now, 1)
    assert process.judge.open_doubts() == (told,)
    process.now += 0.1
    process.hear()
    assert process.replica().state == "ready"


def test_what_another_process_saw_counts_as_an_own_failure(process: Process) -> None:
    """And its echo changes nothing."""
    doubt = Doubt(at=100.5, suspicions=1, doubted_at=100.5)
    process.hear(doubt=doubt)
    assert process.replica().state == "suspect"
    states = len(process.states)
    process.hear(doubt=doubt)
    assert len(process.states) == states
    process.now += 1.0
    process.hear(doubt=doubt)
    assert process.replica().state == "ready"


def test_statistics_that_nobody_tells_any_more_are_unknown_once_they_are_stale(process: Process) -> None:
    """Until then the last ones count, and the state stays."""
    process.ticks(5)
    assert process.replica().stats is not None
    process.ticks(1)
    assert process.replica().stats is None
    assert process.replica().state == "ready"
    assert process.replica().why == "nobody reads its statistics now"
    process.hear()
    assert process.replica().stats is not None


def test_rare_probes_are_no_silence() -> None:
    """Statistics are read every half a minute, which is longer than they may be old when nobody tells of any."""
    process = Process()
    rare = POOL.model_copy(update={"watch": WatchConfig(every_s=30.0)})
    process.judge = PoolJudge(rare, clock=lambda: process.now, observer=process)
    process.hear()
    process.ticks(60)
    assert process.replica().stats is not None
    process.ticks(1)
    assert process.replica().stats is None


async def test_who_was_ejected_finds_its_way_back_without_probes(process: Process) -> None:
    """One request goes there after a bounded time, and alone; a success makes it ready, a failure takes longer."""
    process.ticks(10)
    process.judge.failed("a", began_at=process.now - 0.1)
    assert process.replica().state == "suspect"
    process.ticks(1)
    assert process.replica().state == "ready"
    process.judge.began("a")
    assert process.replica().state == "suspect"
    process.judge.failed("a", began_at=process.now)
    process.tick(0.5)
    assert process.replica().state == "suspect"
    process.ticks(1)
    process.judge.began("a")
    began_at = process.now
    process.ticks(1)
    assert process.replica().state == "suspect"
    process.judge.succeeded("a", began_at, process.now)
    process.judge.began("a")
    assert process.replica().state == "ready"
    process.ticks(20)
    assert process.replica().state == "ready"


async def test_nobody_is_trusted_before_two_rounds_of_probes_are_missing(process: Process) -> None:
    """Until then the next probe decides, and it comes soon enough."""
    process.now += 1.0
    process.judge.failed("a")
    process.tick(SILENCE_S - 1.0)
    assert process.replica().state == "suspect"
    process.tick(0.1)
    assert process.replica().state == "ready"


def test_a_standstill_of_this_process_is_no_silence(process: Process) -> None:
    """What was told meanwhile lies there unread."""
    process.ticks(1)
    process.tick(60.0)
    assert process.replica().stats is not None
    process.ticks(1)
    assert process.replica().stats is None


async def test_nobody_is_told_where_there_is_nobody_to_tell() -> None:
    """As where probes are judged."""
    process = Process()
    judge = PoolJudge(POOL, clock=lambda: process.now)
    judge.hear(process.observed())
    judge.failed("a")
    judge.adapter_changed("a", "sql", loaded=True)
    assert judge.snapshot.replicas[0].state == "suspect"
    assert judge.snapshot.replicas[0].adapters == {"sql"}


def test_messages_come_through_a_socket_as_they_are(process: Process) -> None:
    """Each is encoded and decoded to an equal value."""
    assert len({each.__name__ for each in (*FROM_PROBER, *FROM_PROCESS)}) == len(FROM_PROBER) + len(FROM_PROCESS)
    doubted = ReplicaDoubted(pool="pool", replica="a", url="http://a", doubt=Doubt(at=1.0, trial_until=2.0))
    members = PoolMembers(pool="pool", addresses=(at(), at("b", draining=True)), complete=False)
    unknown = ReplicaObserved(address=at())
    for message in (doubted, members, unknown, process.observed(adapters=frozenset({"x", "y"}), adapters_at=3.0)):
        encoded = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(encoded, type=type(message)) == message
