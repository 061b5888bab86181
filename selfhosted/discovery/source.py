"""The interface of discovery sources, and the values that they return."""

from typing import Final, Protocol

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.registry.registry import Registry
from selfhosted.replica import Source as SourceName

LOOK_S: Final = 5.0
"""Timeout of one poll, in seconds."""
MOST_REPLICAS: Final = 1_000
"""The most replicas of one pool."""


class SourceFailed(Exception):
    """A source did not answer, so its last answer stays valid. The message gives the reason."""


class DiscoveredReplica(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A replica as one source reports it."""

    name: str
    url: str
    draining: bool = False
    version: str = ""
    """The model's version that it runs; empty when the source does not say."""
    first_rank: int = 0
    """Number of the first data-parallel rank behind it."""


class SourceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one poll."""

    replicas: tuple[DiscoveredReplica, ...] = ()
    unusable: tuple[str, ...] = ()
    """Messages, for people, about entries that cannot be used."""


class Source(Protocol):
    """A source of a pool's replicas that has to be polled."""

    @property
    def name(self) -> SourceName: ...

    @property
    def every_s(self) -> float:
        """Polling interval in seconds."""
        ...

    async def fetch(self) -> SourceResult:
        """Return the replicas that exist now. Raises SourceFailed."""
        ...


def registered(registry: Registry, pool: str) -> tuple[DiscoveredReplica, ...]:
    """Return the pool's registrations that have not expired, as this process last read them."""
    return tuple(
        DiscoveredReplica(name=each.name, url=each.url, draining=each.draining, version=each.version)
        for each in registry.registered(pool)
    )


def configured(config: PoolConfig) -> tuple[DiscoveredReplica, ...]:
    """Return the replicas listed in the pool's configuration."""
    return tuple(
        DiscoveredReplica(
            name=replica.name, url=replica.url, version=replica.version or "", first_rank=replica.first_rank
        )
        for replica in config.replicas
    )
