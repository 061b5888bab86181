"""When a replica and a pool take no more."""

import pytest

from selfhosted.balance.load import Load, PrefillSpeed
from selfhosted.balance.room import full, pool_full, room_of
from selfhosted.config import RoomConfig
from selfhosted.replica import EngineStats
from tests.selfhosted.balance.pool import replica, stats

ROOM = RoomConfig(kv_high=0.9, max_waiting=3)


def _load(told: EngineStats | None) -> Load:
    load = Load("a", 1, PrefillSpeed(1_000))
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
