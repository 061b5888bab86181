"""Discovery source: replicas with fixed addresses in the configuration."""

from selfhosted.config import PoolConfig
from selfhosted.discovery.source import DiscoveredReplica


def configured(config: PoolConfig) -> tuple[DiscoveredReplica, ...]:
    """The replicas listed in the pool's configuration."""
    return tuple(
        DiscoveredReplica(name=replica.name, url=replica.url, version=replica.version or "")
        for replica in config.replicas
    )
