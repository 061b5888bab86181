"""What is told of the fleet: one word for each state, and nothing that is unknown told as 0."""

import json
from typing import Any

import pytest

from selfhosted.discovery.discovery import Problem
from selfhosted.health.fleet_view import WatchedPool, hit_rate, state_of, told_pool
from selfhosted.registry.store import ScaleTarget
from selfhosted.replica import NOT_READ_YET, Address, EngineStats, PoolSnapshot, Replica, ReplicaState
from tests.selfhosted.registry.registered import START_US, pool

PROBLEM = Problem(kind="source_failed", source="dns", text="the resolver does not answer")


def replica(name: str, state: ReplicaState, stats: EngineStats | None = None, **fields: Any) -> Replica:
    address = Address(pool="own", name=name, url=f"http://{name}:8000", kind="vllm", source="dns")
    return Replica(address=address, state=state, since=90.0, stats=stats, **fields)


@pytest.mark.parametrize(
    ("states", "problems", "desired", "told"),
    [
        (["ready", "ready"], [], None, "ok"),
        (["ready", "starting", "draining"], [], 3, "ok"),
        (["ready"], [PROBLEM], None, "degraded"),
        (["ready", "suspect"], [], None, "degraded"),
        (["ready", "down"], [], None, "degraded"),
        (["starting", "down"], [], None, "starting"),
        (["draining", "draining"], [], None, "draining"),
        (["down", "draining"], [], None, "down"),
        (["suspect"], [], None, "down"),
        ([], [], None, "empty"),
        ([], [], 2, "empty"),
        ([], [PROBLEM], 0, "scaled_to_zero"),
    ],
)
def test_a_pool_is_in_one_state(
    states: list[ReplicaState], problems: list[Problem], desired: int | None, told: str
) -> None:
    """Whether it serves, and if not why."""
    replicas = [replica(f"r{at}", state) for at, state in enumerate(states)]
    assert state_of(replicas, problems, desired) == told


class Known:
    """A registry and a discovery that say what they are told to."""

    addresses = ()

    def __init__(self, *problems: Problem, wish: ScaleTarget | None = None, ordered: str = "") -> None:
        self.problems = problems
        self._wish = wish
        self._ordered = frozenset({ordered})

    def wish(self, _pool: str) -> ScaleTarget | None:
        return self._wish

    def ordered(self, _pool: str) -> frozenset[str]:
        return self._ordered

    def rests(self, _pool: str) -> bool:
        return False

    def shared(self, _pool: str) -> None:
        return None


def look(known: Known, *replicas: Replica) -> dict[str, Any]:
    snapshot = PoolSnapshot(pool="own", at=100.0, replicas=replicas)
    watched = WatchedPool(config=pool(), snapshot=lambda: snapshot, discovery=known, token="secret")  # type: ignore[arg-type]
    told = told_pool(watched, known, 100.0)  # type: ignore[arg-type]
    assert "secret" not in json.dumps(told)
    return told


def test_load_is_that_of_those_whose_statistics_are_known() -> None:
    """The others are counted, and null stands for what nobody tells."""
    busy = EngineStats(at=98.8, running=3, waiting=1, kv_usage=0.5, prefix_queries=1_000.0, prefix_hits=750.0)
    plain = EngineStats(at=99.5, running=2, waiting=0)
    wish = ScaleTarget(
        pool="own", desired=4, reason="queue", decided_us=START_US, holder="boot", lease_until_us=START_US
    )
    told = look(
        Known(PROBLEM, wish=wish, ordered="b"),
        replica("a", "ready", busy, adapters=frozenset({"z", "y"})),
        replica("b", "draining", plain),
        replica("c", "ready", why="its statistics are too old"),
        replica("d", "down", busy, why="refused"),
        replica("e", "starting"),
    )
    assert (told["state"], told["desired"], told["desired_reason"]) == ("degraded", 4, "queue")
    assert told["counts"] == {"ready": 2, "starting": 1, "suspect": 0, "draining": 1, "down": 1}
    assert (told["running"], told["waiting"], told["unknown"]) == (5, 1, 1)
    assert (told["kv_usage"], told["prefix_hit_rate"]) == (0.5, 0.75)
    assert [each["kind"] for each in told["problems"]] == ["source_failed", "unread"]
    assert told["problems"][0] == {"kind": "source_failed", "source": "dns", "text": PROBLEM.text}
    first, second, third, *_ = told["replicas"]
    assert first["stats"] == {
        "age_s": 1.2,
        "running": 3,
        "waiting": 1,
        "kv_usage": 0.5,
        "kv_tokens": None,
        "gpu_memory": None,
        "gpu_utilisation": None,
        "tokens_per_s": None,
        "prefix_hit_rate": 0.75,
        "preemptions": None,
    }
    assert (first["adapters"], first["since_s"], first["drain_ordered"]) == (["y", "z"], 10.0, False)
    assert second["drain_ordered"]
    assert (third["stats"], third["why"]) == (None, "its statistics are too old")


def test_a_pool_without_replicas_says_so() -> None:
    """Whether that was decided or not; unknown load is null."""
    told = look(Known())
    assert (told["state"], told["running"], told["kv_usage"], told["desired"]) == ("empty", None, None, None)
    assert [problem["kind"] for problem in told["problems"]] == ["no_replicas"]
    down = look(Known(), replica("a", "down"))
    assert [problem["kind"] for problem in down["problems"]] == ["none_ready"]
    zero = ScaleTarget(pool="own", desired=0, reason="idle", decided_us=1, holder="b", lease_until_us=1)
    assert look(Known(wish=zero))["problems"] == []


def test_a_pool_whose_statistics_cannot_be_read_is_not_all_well() -> None:
    """It serves, and something is to be looked into; one that was not read yet is none."""
    plain = EngineStats(at=99.5, running=2, waiting=0)
    told = look(Known(), replica("a", "ready", plain), replica("b", "ready", why="its statistics cannot be read"))
    assert (told["state"], [each["kind"] for each in told["problems"]]) == ("degraded", ["unread"])
    assert look(Known(), replica("a", "ready", plain), replica("b", "ready", why=NOT_READ_YET))["state"] == "ok"


def test_a_pool_that_reads_apart_serves_by_those_that_answer() -> None:
    """Where only readers are ready, nobody can serve."""
    snapshot = PoolSnapshot(pool="own", at=100.0, replicas=(replica("read-1", "ready"), replica("write-1", "down")))
    config = pool(prefill={"replicas": "read-*"})
    known = Known()
    watched = WatchedPool(config=config, snapshot=lambda: snapshot, discovery=known)  # type: ignore[arg-type]
    assert told_pool(watched, known, 100.0)["state"] == "down"  # type: ignore[arg-type]


def test_a_hit_rate_needs_lookups() -> None:
    """None before the first, and where engines do not tell."""
    assert hit_rate([]) is None
    assert hit_rate([EngineStats(at=0, running=0, waiting=0)]) is None
    assert hit_rate([EngineStats(at=0, running=0, waiting=0, prefix_queries=0.0, prefix_hits=0.0)]) is None
