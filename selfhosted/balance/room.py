"""Whether a replica, or a whole pool, takes no more: what waits should wait in our queue, where it can still go elsewhere."""

from collections.abc import Iterable

from selfhosted.balance.load import Load
from selfhosted.config import RoomConfig
from selfhosted.replica import Replica


def full(replica: Replica, room: RoomConfig, load: Load | None = None) -> bool:
    """By the engine's last word, and what this process has sent there since. An engine whose word is not known is full
    when our own requests alone make it so.
    """
    if load is not None:
        return load_full(load, room)
    stats = replica.stats
    return stats is not None and ((stats.kv_usage or 0.0) > room.kv_high or stats.waiting > room.max_waiting)


def load_full(load: Load, room: RoomConfig) -> bool:
    return load.usage > room.kv_high or load.waiting > room.max_waiting


def pool_full(loads: Iterable[Load], room: RoomConfig) -> bool:
    """All of them are full. Those whose word is not known are believed to be so when all others are."""
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
