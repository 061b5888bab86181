"""A pool that takes registrations, a clock that is set by hand, and one process's view on a database."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from selfhosted.config import PoolConfig
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore

TTL_S = 15.0
TTL_US = 15_000_000
START_US = 1_795_000_000_000_000


def pool(name: str = "own", **fields: Any) -> PoolConfig:
    usual = {
        "name": name,
        "targets": [f"{name}-model"],
        "registration": {"token": "env:POOL_TOKEN", "networks": ["10.0.0.0/8", "127.0.0.0/8"], "ttl_s": TTL_S},
    }
    return PoolConfig.model_validate({**usual, **fields})


class Clock:
    """Monotonic and wall time; the wall can be set."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at
        self.set_by = 0.0

    def __call__(self) -> float:
        return self.at

    def now_us(self) -> int:
        return START_US + int((self.at - 1_000.0 + self.set_by) * 1_000_000)


class Process:
    """A gateway process's part of the registry."""

    def __init__(self, engine: AsyncEngine, clock: Clock, *pools: PoolConfig) -> None:
        self.store = RegistryStore(engine, clock.now_us)
        self.registry = Registry(self.store, pools or (pool(),), clock=clock)
        self.changes = 0
        self.registry.subscribe(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def says(
        self, name: str = "one", instance: str = "i1", url: str = "http://10.0.0.1:8000", **more: Any
    ) -> str:
        return await self.store.register(
            "own", name, url=url, instance=instance, draining=more.get("draining", False), ttl_us=TTL_US
        )

    async def sees(self) -> dict[str, str]:
        """Name → address, after a look."""
        await self.registry.refresh()
        return {each.name: each.url for each in self.registry.registered("own")}
