"""Drain orders of replicas, by operators, each with its audit entry."""

from collections.abc import Collection

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.tables import ID_CHARS
from selfhosted.registry.store import RegistryStore


async def drain_replica(log: AuditLog, actor: Actor, pool: str, name: str, *, known: Collection[str] = ()) -> bool:
    """Order a drain; False where it was ordered already. `known` are the pool's current replicas. Raises PoolFull."""
    async with log.change(actor, "replica.drained") as change:
        new = await RegistryStore(change.within).order(pool, name, actor.actor_id[:ID_CHARS], known)
        change.tell("replica", f"{pool}/{name}", {"drained": not new}, {"drained": True})
    return new


async def undrain_replica(log: AuditLog, actor: Actor, pool: str, name: str) -> bool:
    """Withdraw a drain order; False where there was none."""
    async with log.change(actor, "replica.undrained") as change:
        there = await RegistryStore(change.within).take_back(pool, name)
        change.tell("replica", f"{pool}/{name}", {"drained": there}, {"drained": False})
    return there
