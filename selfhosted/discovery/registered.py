"""Discovery source: replicas that registered themselves, or were registered by whoever starts them."""

from selfhosted.discovery.source import DiscoveredReplica
from selfhosted.registry.registry import Registry


def registered(registry: Registry, pool: str) -> tuple[DiscoveredReplica, ...]:
    """The pool's registrations that have not expired, as this process last read them."""
    return tuple(
        DiscoveredReplica(name=each.name, url=each.url, draining=each.draining, version=each.version)
        for each in registry.registered(pool)
    )
