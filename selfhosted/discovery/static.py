"""Replicas whose addresses stand in the configuration."""

from selfhosted.config import PoolConfig
from selfhosted.discovery.source import Spotted


def configured(config: PoolConfig) -> tuple[Spotted, ...]:
    """As the file has them; they come and go with it."""
    return tuple(Spotted(name=replica.name, url=replica.url) for replica in config.replicas)
