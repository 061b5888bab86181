"""Fullness of replicas and pools. Excess requests wait in the gateway's queue, from which they can still go elsewhere."""

from collections.abc import Iterable

from selfhosted.balance.load import Load
from selfhosted.config import RoomConfig
from selfhosted.replica import Replica


def full(replica: Replica, room: RoomConfig, load: Load | None = None) -> bool:
    """True when the replica's KV usage or queue is above the limits, by its load, which includes what this process has
    sent since the scrape, or, without one, by the engine's statistics alone.
    """
    if load is not None:
        return load_full(load, room)
    stats = replica.stats
    return stats is not None and ((stats.kv_usage or 0.0) > room.kv_high or stats.waiting > room.max_waiting)


def load_full(load: Load, room: RoomConfig) -> bool:
    """True when the KV usage or the queue is above its limit."""
    return load.usage > room.kv_high or load.waiting > room.max_waiting


def pool_full(loads: Iterable[Load], room: RoomConfig) -> bool:
    """True when all replicas are full. One without statistics counts as full when all those with statistics are, or by
    this process's own requests where there are none.
    """
    known = False
    unknown: list[bool] = []
    for load in loads:
        if not load.known:
            unknown.append(load_full(load, room))
        elif load_full(load, room):
            known = True
        else:
            # Mostly it is the first one that is asked.
            return False
    return known or (bool(unknown) and all(unknown))
