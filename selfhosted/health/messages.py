"""Messages between the one that probes a host's replicas and all processes that send requests there.

Down: who is in a pool, and all that is known of a replica. Each message is whole, so the newest of a key is enough, in
any order. Up: what a process saw for itself. All times are of the monotonic clock, which the processes of a host share.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

import msgspec

from selfhosted.health.verdict import NO_DOUBT, Doubt, Probe
from selfhosted.replica import Address, EngineStats

NEVER = float("-inf")


class PoolMembers(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a pool."""

    pool: str
    addresses: tuple[Address, ...]
    complete: bool = True
    """False while not every source has answered: who is not among these may be there all the same."""


class ReplicaObserved(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one replica."""

    address: Address
    probe: Probe | None = None
    """Newest probe; None until it was probed."""
    doubt: Doubt = NO_DOUBT
    """The doubt that requests of all processes of the host raise about it."""
    stats: EngineStats | None = None
    """Statistics; None when they are unknown."""
    stats_why: str = ""
    """The reason why they are unknown, for people."""
    scraped_at: float = NEVER
    """Time of that finding; before the first reading `stats` says nothing."""
    restarted_at: float = NEVER
    """Time at which another process was found to answer at the address."""
    adapters: frozenset[str] = frozenset()
    adapters_at: float = NEVER
    """The moment of which the adapters are known."""


class ReplicaDoubted(msgspec.Struct, frozen=True, kw_only=True):
    """The doubt that a process's requests raise about a replica. While no probe has answered since, it asks for one at once."""

    pool: str
    replica: str
    url: str
    """The address, which tells replicas of one name apart."""
    doubt: Doubt


class AdapterChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A process loaded a LoRA adapter into a replica, unloaded it, or was told that it is not there."""

    pool: str
    replica: str
    url: str
    adapter: str
    loaded: bool
    at: float


FromPool = PoolMembers | ReplicaObserved
"""A message about a pool."""
FromRequests = ReplicaDoubted | AdapterChanged
"""A process's message about its requests, as it happens."""

Tell = Callable[[FromRequests], object]
"""Sends a message up. It may be lost."""


class Publisher(Protocol):
    """A publisher to all processes of the host; those that come later get the newest message of each key."""

    def publish(self, key: Hashable, message: msgspec.Struct) -> None: ...

    def forget(self, key: Hashable) -> None: ...
