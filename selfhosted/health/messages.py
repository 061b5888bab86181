"""What travels between the one that probes a host's replicas and all processes that send requests there.

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
    """Who is in a pool."""

    pool: str
    addresses: tuple[Address, ...]
    complete: bool = True
    """False while not every source has answered: who is not among these may be there all the same."""


class ReplicaObserved(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one replica."""

    address: Address
    probe: Probe | None = None
    """None until it was probed."""
    doubt: Doubt = NO_DOUBT
    """What requests of all processes of the host say against it."""
    stats: EngineStats | None = None
    """None when they are unknown."""
    stats_why: str = ""
    """Why they are unknown, for people."""
    scraped_at: float = NEVER
    """When that was found; before the first reading nothing is said by `stats`."""
    restarted_at: float = NEVER
    """When another process was found to answer at the address."""
    adapters: frozenset[str] = frozenset()
    adapters_at: float = NEVER
    """The moment of which the adapters are known."""


class ReplicaDoubted(msgspec.Struct, frozen=True, kw_only=True):
    """What a process's requests say against a replica. While no probe has answered since, it asks for one at once."""

    pool: str
    replica: str
    url: str
    """Which one of this name."""
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
"""What is told of a pool."""
FromRequests = ReplicaDoubted | AdapterChanged
"""What a process tells of its requests, as it happens."""

Tell = Callable[[FromRequests], object]
"""Sends a message up. It may be lost."""


class Publisher(Protocol):
    """Tells all processes of the host, and those that come later the newest message of each key."""

    def publish(self, key: Hashable, message: msgspec.Struct) -> None: ...

    def forget(self, key: Hashable) -> None: ...
