"""Those that our balancer is compared with do what they are said to do."""

import random
from collections import Counter

import pytest

from planner.simulate.choosers import CacheAwareRouter, Oracle, RandomOne, chooser_of
from planner.simulate.engine import Engine, Job
from planner.simulate.simulation_errors import SimulationRefused
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import Address, PoolSnapshot, Replica, ReplicaRequest
from tests.planner.simulate.steps import HAND, job, spec

ASK = ReplicaRequest(blocks=(), block_tokens=512, root=0, tokens=1, output_tokens=1)


def pool(*names: str) -> PoolSnapshot:
    return PoolSnapshot(
        pool="p",
        at=0.0,
        replicas=tuple(
            Replica(
                address=Address(pool="p", name=name, url=f"http://{name}:1", kind="vllm", source="configured"),
                state="ready",
                since=0.0,
            )
            for name in names
        ),
    )


def sent(router: CacheAwareRouter, made: Job, snapshot: PoolSnapshot, now: float = 0.0) -> str:
    made.replica = router.choose(made, ASK, snapshot, now)
    assert made.replica is not None
    return made.replica


def test_router_returns_to_the_longest_prefix() -> None:
    """Whoever was sent more than the threshold's part of a prompt gets it, otherwise who was sent the least text."""
    router, both = CacheAwareRouter(), pool("a", "b")
    first = sent(router, job(2_048, 1, (1, 2, 3, 4)), both)
    other = sent(router, job(1_024, 1, (9, 8)), both)
    assert {first, other} == {"a", "b"}
    assert sent(router, job(4_096, 1, (1, 2, 3, 4, 5, 6, 7, 8)), both) == first
    # A quarter is too little, and the other one was sent less.
    assert sent(router, job(2_048, 1, (1, 20, 30, 40)), both) == other


def test_router_evens_out() -> None:
    """Beyond both thresholds the shortest queue counts, and no prefix."""
    router, both = CacheAwareRouter(balance_abs=4, balance_rel=1.5), pool("a", "b")
    made = [job(512, 1, (1,)) for _ in range(12)]
    counts = Counter(sent(router, each, both) for each in made)
    assert sorted(counts.values()) == [4, 8] or sorted(counts.values()) == [3, 9]
    for each in made:
        router.done(each, 1.0)
    assert len({sent(router, job(512, 1, (1,)), both) for _ in range(3)}) == 1


def test_router_forgets() -> None:
    """Text beyond the tree's size is forgotten from time to time, and so is a worker that has left."""
    router, both = CacheAwareRouter(tree_characters=4 * 512), pool("a", "b")
    first = sent(router, job(512, 1, (1,)), both)
    sent(router, job(512, 1, (2,)), both)
    sent(router, job(1_024, 1, (1, 3)), both, now=200.0)
    assert sum(worker.tokens for worker in router._workers.values()) <= 2 * 512
    rest = pool("a" if first == "b" else "b")
    assert sent(router, job(512, 1, (1,)), rest) != first


def test_random() -> None:
    """Everybody's turn comes, and nobody is chosen where nobody is ready."""
    chooser = RandomOne(random.Random(1))
    assert {chooser.choose(job(1, 1), ASK, pool("a", "b"), 0.0) for _ in range(20)} == {"a", "b"}
    assert chooser.choose(job(1, 1), ASK, pool(), 0.0) is None


def test_oracle() -> None:
    """It goes where the prompt is cached, unless another engine would be quicker all the same."""
    engines = {"a": Engine(spec(), HAND), "b": Engine(spec(), HAND)}
    engines["b"].enqueue(job(64, 1, (1, 2, 3, 4)), 0.0)
    for engine in engines.values():
        engine.advance(10.0)
    oracle = Oracle(lambda: engines)
    asked = job(60, 1, (1, 2, 3, 5))
    assert oracle.choose(asked, ASK, pool(), 10.0) == "b"
    for _ in range(5):
        engines["b"].enqueue(job(60, 1), 10.0)
    assert oracle.choose(asked, ASK, pool(), 10.0) == "a"


def test_unknown_policy() -> None:
    """A name that is none is refused with those that are."""
    with pytest.raises(SimulationRefused, match="prefix, round-robin"):
        chooser_of("best", balance=BalanceConfig(), room=RoomConfig(), rng=random.Random(1), engines=dict)
