"""When a replica and a pool take no more."""

import msgspec
import pytest

from selfhosted.balance.load import Lease, Load, PrefillSpeed
from selfhosted.balance.room import full, pool_full, pool_tokens, reading_of, room_of
from selfhosted.config import BalanceTuning, RoomConfig
from selfhosted.replica import EngineStats, PoolReading, PoolSnapshot
from tests.selfhosted.balance.pool import ask, balancer, pool, prompt, replica, stats

ROOM = RoomConfig(kv_high=0.9, max_waiting=3)


def _load(told: EngineStats | None) -> Load:
    load = Load("a", 1, PrefillSpeed(1_000, BalanceTuning()))
    load.read(told, 0.0)
    return load


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (stats(), False),
        (stats(kv_usage=0.9), False),
        (stats(kv_usage=0.91), True),
        (stats(waiting=3), False),
        (stats(waiting=4), True),
        (stats(kv_usage=None, running=1_000), False),
        (None, False),
    ],
)
def test_a_replica_is_full_beyond_either_mark(told: EngineStats | None, expected: bool) -> None:
    """KV use or its own queue; what it does not tell does not make it full."""
    assert full(replica("a", stats=told), ROOM) is expected
    assert full(replica("a", stats=told), ROOM, _load(told)) is expected


def test_a_pool_is_full_when_all_are() -> None:
    """One that has room is enough, and one that is unknown is believed to be as the others are."""
    crowded, roomy, unknown = _load(stats(waiting=9)), _load(stats()), _load(None)
    assert pool_full([crowded, crowded], ROOM)
    assert not pool_full([crowded, roomy], ROOM)
    assert pool_full([crowded, unknown], ROOM)
    assert not pool_full([unknown], ROOM)
    assert not pool_full([], ROOM)


def _told(at: float, output_tokens: float | None, *, running: int = 12, kv_usage: float = 0.99) -> EngineStats:
    told = stats(at, running=running, kv_usage=kv_usage)
    return msgspec.structs.replace(told, prompt_tokens=5_000.0, output_tokens=output_tokens)


def test_an_engine_that_says_it_is_full_and_does_nothing_gets_a_request() -> None:
    """An engine like vLLM tells the numbers of before all of its requests were given up until the next one comes (vllm#29928): a pool of one such
    engine would refuse everything for good. One that generates, or has a request of ours, or tells no counters, is believed.
    """

    def pool_at(told: EngineStats) -> PoolSnapshot:
        return pool(replica("a", stats=told), at=told.at)

    made = balancer(room=ROOM)
    assert made.full(pool_at(_told(0.0, 700)), 0.0)
    assert made.full(pool_at(_told(14.0, 700)), 14.0)
    assert not made.full(pool_at(_told(15.0, 700)), 15.0)
    seen = pool_at(_told(16.0, 700))
    choice = made.pick(ask(*prompt(1, 1)), seen, None, 16.0)
    assert choice is not None
    lease = made.take(choice, ask(*prompt(1, 1)), 16.0)
    # With a request there its word counts again, and what it says then is new.
    assert made.full(pool_at(_told(17.0, 700)), 17.0)
    lease.end(18.0)
    assert not made.full(pool_at(_told(18.0, 720, running=0, kv_usage=0.0)), 18.0)

    generating, silent = balancer(room=ROOM), balancer(room=ROOM)
    for second in range(60):
        assert generating.full(pool_at(_told(float(second), 700.0 + second)), second)
        assert silent.full(pool_at(_told(float(second), None)), second)


def test_who_does_nothing_is_no_traffic_of_others() -> None:
    """Its requests would be another gateway's, and this one would hash as if it knew little of what is sent."""
    made = balancer(room=ROOM)
    made.see(pool("a", "b"), 0.0)
    made.take_told("b", ask(*prompt(1, 1)), 0.0)
    for second in range(600):
        told, ours = _told(float(second), 700), stats(float(second), running=1)
        made.see(pool(replica("a", stats=told), replica("b", stats=ours), at=told.at), told.at)
    assert not made.use_consistent_hashing


def test_the_room_for_one_more_is_the_best_replicas() -> None:
    """The least fill and the shortest wait; what is unknown is not taken for idle, and no statistics are no room."""
    busy, roomy, unknown = _load(stats(kv_usage=0.81)), _load(stats(kv_usage=0.45)), _load(None)

    def best(*loads: Load) -> object:
        found = room_of(loads, ROOM, 100, 0.0)
        return None if found is None else (found.wait_s, found.fill)

    assert best(busy, roomy, unknown) == (0.0, 0.5)
    assert best(busy, unknown) == (0.0, pytest.approx(0.9))
    assert best(_load(stats(waiting=4))) == (pytest.approx(4.0), 1.0)
    assert best(unknown) is best() is None


def test_prompts_that_share_their_beginning_share_its_place() -> None:
    """A replica carries as many more as it shows to, and lets some wait; one that is full carries what it has."""
    load = _load(stats())
    for _ in range(6):
        load.take(Lease(load, ask(*prompt(1), tokens=10_000), 0, 0.0, lambda _lease: None), 0.0)

    def carried(kv_usage: float, waiting: int = 0) -> int:
        told = replica("a", stats=stats(kv_usage=kv_usage, waiting=waiting))
        load.read(told.stats, 1.0)
        return pool_tokens([told], ROOM, lambda _name: load)

    assert carried(0.2) == 90_000, "nothing is in common"
    load.tokens = 10_000
    carried(0.2)
    waiting = ROOM.max_waiting * 10_100
    assert carried(0.2) == pytest.approx(90_000 * 60_600 / 20_000 + waiting, rel=0.01)
    assert carried(0.2, ROOM.max_waiting + 1) == pytest.approx(60_600, rel=0.01)
    assert carried(0.95, ROOM.max_waiting + 1) == 90_000, "others' requests"
    assert pool_tokens([replica("b", stats=stats(kv_usage=0.95, waiting=9))], ROOM, lambda _name: None) == 90_000
    assert pool_tokens([replica("c")], ROOM, lambda _name: None) == int(ROOM.tokens * 0.9)


def test_a_long_line_takes_no_room_of_the_others() -> None:
    """However many wait at one replica, a queue before both lets in what the other one has room for."""
    loads = {name: Load(name, at, PrefillSpeed(1_000, BalanceTuning())) for at, name in enumerate("ab", 1)}
    told = []
    for name, load in loads.items():
        waiting = 50 if name == "a" else 0
        for _ in range(12 + waiting):
            load.take(Lease(load, ask(*prompt(1), tokens=10_000), 0, 0.0, lambda _lease: None), 0.0)
        load.tokens = 40_000
        for at in (1.0, 2.0):
            load.read(stats(at, running=12, waiting=waiting, kv_usage=1.0 if waiting else 0.9), at)
        told.append(replica(name, stats=load.stats))
    in_flight = sum(load.asked for load in loads.values())
    assert pool_tokens(told, ROOM, loads.__getitem__) == pytest.approx(in_flight + ROOM.max_waiting * 10_100, rel=0.001)


def one(_name: str) -> int:
    """Each replica reads one prompt at a time."""
    return 1


def test_which_replicas_have_read_all_that_they_have() -> None:
    """Those with nothing in their queues; of one that is unknown nothing is said."""
    idle, reading, unknown = _load(stats()), _load(stats(waiting=4)), _load(None)
    assert reading_of([idle, reading, unknown, idle], 0.0, one) == PoolReading(2, 0.0)
    found = reading_of([reading], 0.0, one)
    assert found is not None
    assert found.clear == 0
    assert found.wait_s == pytest.approx(4.0)
    assert reading_of([unknown], 0.0, one) is reading_of([], 0.0, one) is None
