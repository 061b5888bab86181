"""Fullness of replicas and pools. Excess requests wait in the gateway's queue, from which they can still go elsewhere."""

import math
from collections.abc import Callable, Iterable
from typing import Final

from selfhosted.balance.load import Load
from selfhosted.config import RoomConfig
from selfhosted.replica import PoolReading, PoolRoom, Replica

_ROOMY: Final = 0.75
"""A fill so low that a lower one makes no difference."""


def full(replica: Replica, room: RoomConfig, load: Load | None = None) -> bool:
    """Return whether the replica's KV usage or queue is above the limits, by its load, which includes what this process has
    sent since the scrape, or, without one, by the engine's statistics alone.
    """
    if load is not None:
        return load_full(load, room)
    stats = replica.stats
    return stats is not None and ((stats.kv_usage or 0.0) > room.kv_high or stats.waiting > room.max_waiting)


def load_full(load: Load, room: RoomConfig) -> bool:
    """Return whether the KV usage or the queue is above its limit."""
    return load.usage > room.kv_high or load.waiting > room.max_waiting


def pool_full(loads: Iterable[Load], room: RoomConfig) -> bool:
    """Return whether all replicas are full. One without statistics counts as full when all those with statistics are, or by
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


def pool_tokens(replicas: Iterable[Replica], room: RoomConfig, load_of: Callable[[str], Load | None]) -> int:
    """Return the tokens of requests that the replicas can carry now: of each full one what it has in use, of each other
    one its KV capacity times `kv_high` times `overcommit`; of those whose prompts share their beginnings see `_shared_tokens`.
    `load_of` returns a replica's load; None where only its engine's word is known.
    """
    whole = 0.0
    for replica in replicas:
        holds, load = kv_tokens_of(replica, room.tokens), load_of(replica.name)
        if load is not None and load.shares:
            whole += _shared_tokens(load, holds, room)
            continue
        asked = 1.0 if load is None else load.asked_per_token
        if full(replica, room, load):
            stats = replica.stats
            used = stats.kv_usage if stats is not None and stats.kv_usage is not None else 1.0
            whole += holds * min(used, room.kv_high) * asked
        else:
            whole += holds * room.kv_high * max(room.overcommit, asked)
    return int(whole)


def _shared_tokens(load: Load, holds: int, room: RoomConfig) -> float:
    """Return the tokens of requests that a replica can carry whose prompts share their beginnings, as a queue counts them: all that it
    has, however long its line is, and what it has room for. Which replica a request goes to matters, so each has a line of its
    own: one whose line is long must not stand before the others.
    """
    whole = max(load.asked * max(1.0, load.in_flight / load.requests), min(load.busy_tokens, holds * room.kv_high))
    if load.waiting <= room.max_waiting:
        whole += max(0.0, holds * room.kv_high - load.busy_tokens) * load.asked_per_token
        whole += (room.max_waiting - load.waiting) * load.asked / load.requests
    return whole


def kv_tokens_of(replica: Replica, otherwise: int) -> int:
    """Return the capacity of its KV cache in tokens; `otherwise` where it does not tell."""
    stats = replica.stats
    return otherwise if stats is None or stats.kv_tokens is None else stats.kv_tokens


def room_of(loads: Iterable[Load], room: RoomConfig, tokens: int, now: float) -> PoolRoom | None:
    """Return the room for one more request with a prompt of so many tokens: the shortest wait and the least fill. Those without
    statistics are not looked at, as unknown is not idle; None where none has any.
    """
    wait_s = fill = math.inf
    per_waiting = 1 / (room.max_waiting + 1)
    for load in loads:
        if not load.known:
            continue
        # As `Load.wait_s`, taken apart: this is asked for every request.
        own_s = load.clear_at - now
        own_s = max(own_s, load.rest_s)
        own_s += load.extra_s
        if tokens > load.room_tokens:
            own_s += (tokens - load.room_tokens) * load.free_s_per_token
        taken = max(load.usage / room.kv_high, load.waiting * per_waiting)
        if own_s < wait_s:
            wait_s = max(own_s, 0.0)
        fill = min(fill, taken)
        if wait_s <= 0 and fill <= _ROOMY:
            # Mostly it is the first one that is asked, and another with more room would change nothing.
            break
    return None if fill == math.inf else PoolRoom(wait_s, fill)


def reading_of(loads: Iterable[Load], now: float, turns: Callable[[str], int]) -> PoolReading | None:
    """Return the number of further prompts that replicas may begin to read: as many as `turns` has, by name, for each
    that has read the prompts of all its requests; None where no replica has statistics.
    """
    waits = [(max(load.wait_s(now), 0.0), load.name) for load in loads if load.known]
    if not waits:
        return None
    return PoolReading(sum(turns(name) for wait_s, name in waits if wait_s <= 0), min(waits)[0])
