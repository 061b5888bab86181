"""Replicas that said themselves, or whose starter said, where they are."""

from selfhosted.discovery.source import DiscoveredReplica
from selfhosted.registry.registry import Registry


def registered(registry: Registry, pool: str) -> tuple[DiscoveredReplica, ...]:
    """Those that were heard of in time, as this process knows."""
    return tuple(
        DiscoveredReplica(name=each.name, url=each.url, draining=each.draining) for each in registry.registered(pool)
    )
