"""Replicas whose addresses stand in the configuration."""

from selfhosted.config import PoolConfig
from selfhosted.discovery.source import DiscoveredReplica


def configured(config: PoolConfig) -> tuple[DiscoveredReplica, ...]:
    """As the file has them; they come and go with it."""
    return tuple(DiscoveredReplica(name=replica.name, url=replica.url) for replica in config.replicas)
