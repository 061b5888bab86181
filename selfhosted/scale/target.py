"""Storage of scaling decisions: the pool's row, written under the lease, with the policy's learnt state."""

from collections.abc import Callable
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, literal, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.times import wall_us
from selfhosted.scale.policy import ScaleDecision
from selfhosted.tables import PoolTarget

MOST_WHY_CHARS: Final = 300


class Targets:
    """The SQL of scaling decisions. Taking the lease creates the row."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] | None = None) -> None:
        self._engine = engine
        self._now_us = now_us

    async def state(self, pool: str) -> str:
        """Return the policy's saved state; empty when there is none."""
        async with self._engine.connect() as connection:
            found = await connection.scalar(select(col(PoolTarget.state)).where(col(PoolTarget.pool) == pool))
        return str(found or "")

    async def store(self, pool: str, holder: str, decision: ScaleDecision, state: str | None) -> bool:
        """Store a decision. Returns False, with nothing written, when another process holds the lease. `state` None
        keeps the saved state.
        """
        return await self._write(pool, holder, decision.desired, f"{decision.reason}: {decision.why}", state)

    async def store_turns(self, group: str, holder: str, why: str, state: str) -> bool:
        """Store whose turn it is on GPUs that pools share, which have a row like a pool's. Returns as `store` does."""
        return await self._write(group, holder, 0, why, state)

    async def _write(self, pool: str, holder: str, desired: int, reason: str, state: str | None) -> bool:
        values: dict[str, object] = {
            "desired": desired,
            "reason": reason[:MOST_WHY_CHARS],
            "decided_us": self._now(),
        }
        if state is not None:
            values["state"] = state
        mine = (
            col(PoolTarget.pool) == pool,
            col(PoolTarget.holder) == holder,
            col(PoolTarget.lease_until_us) > self._now(),
        )
        async with self._engine.begin() as connection:
            return bool((await connection.execute(update(PoolTarget).where(*mine).values(**values))).rowcount)

    def _now(self) -> ColumnElement[int]:
        if self._now_us is None and self._engine.dialect.name == "postgresql":
            return DATABASE_US
        return literal((self._now_us or wall_us)(), BigInteger)
