"""The SQL of the fleet's shared state: registrations, drain orders, and the lease on what must happen once; rollouts are
read with them.

Every time is the database's own, so that processes whose clocks differ agree about who is alive and who leads.
Each transaction that may write begins with writing: on SQLite one that begins with reading can be refused when it writes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Select, and_, delete, func, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.times import DAY_US, HOUR_US, wall_us
from selfhosted.rollouts.store import rollout_of, rollouts_of
from selfhosted.rollouts.versions import Rollout
from selfhosted.tables import DrainOrder, PoolTarget, RegisteredReplica

MOST_PER_POOL: Final = 1_000
"""The most registrations, and the most drain orders, of one pool."""
_MOST_ROWS: Final = 100_000
_DEAD_US: Final = HOUR_US
_OLD_ORDER_US: Final = 7 * DAY_US
_FAR_LEASES: Final = 10
"""A lease with more than this many times its length left was written by a wrong clock, and may be taken."""
DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)

Entered = Literal["registered", "renewed"]


class RegistryError(Exception):
    """A registration or an order was refused. The message gives the reason."""


class NameTaken(RegistryError):
    """Another live process has this name."""


class PoolFull(RegistryError):
    """The pool has reached `MOST_PER_POOL`."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `registered_replica`."""

    pool: str
    name: str
    url: str
    instance: str
    draining: bool
    seen_us: int
    version: str = ""


class ScaleTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `pool_target`: the desired replicas, the reason, and the lease of the process that decides."""

    pool: str
    desired: int | None
    """Desired replicas; None before the first decision."""
    reason: str
    decided_us: int
    holder: str
    lease_until_us: int


class SharedState(msgspec.Struct, frozen=True, kw_only=True):
    """All shared state of some pools, at one moment of the database's clock."""

    now_us: int
    registrations: tuple[Registration, ...] = ()
    orders: frozenset[tuple[str, str]] = frozenset()
    """(pool, name) pairs of ordered drains."""
    wishes: tuple[ScaleTarget, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    turns: Mapping[str, str] = {}
    """The stored turns of pools that share GPUs, by the name of the group, beside what other rows learnt."""


def _states_of(names: Collection[str]) -> Select[str, str]:
    return select(col(PoolTarget.pool), col(PoolTarget.state)).where(col(PoolTarget.pool).in_(names))


class RegistryStore:
    """The only reader and writer of `registered_replica` and `drain_order`, and of the lease in `pool_target`."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] | None = None) -> None:
        self._engine = engine
        self._now_us = now_us
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def read(self, pools: Collection[str], more: Collection[str] = ()) -> SharedState:
        """Read the shared state of these pools. `more` are names of decisions that are no pool's: of GPUs that pools share, and of
        parts of pools.
        """
        registered = select(
            *(getattr(RegisteredReplica, name) for name in Registration.__struct_fields__),
        ).where(col(RegisteredReplica.pool).in_(pools))
        orders = select(col(DrainOrder.pool), col(DrainOrder.name)).where(col(DrainOrder.pool).in_(pools))
        wishes = select(*(getattr(PoolTarget, name) for name in ScaleTarget.__struct_fields__))
        async with self._engine.connect() as connection:
            now_us = int(await connection.scalar(select(self._now())) or 0)
            rows = (await connection.execute(registered.limit(_MOST_ROWS))).mappings().all()
            names = (await connection.execute(orders.limit(_MOST_ROWS))).all()
            wished = wishes.where(col(PoolTarget.pool).in_([*pools, *more]))
            targets = (await connection.execute(wished)).mappings().all()
            turns = (await connection.execute(_states_of(more))).all() if more else []
            rollouts = (await connection.execute(rollouts_of(pools))).mappings().all()
        return SharedState(
            now_us=now_us,
            registrations=tuple(Registration(**row) for row in rows),
            orders=frozenset((pool, name) for pool, name in names),
            wishes=tuple(
                ScaleTarget(**{**row, "desired": row["desired"] if row["decided_us"] else None}) for row in targets
            ),
            rollouts=tuple(map(rollout_of, rollouts)),
            turns={row.pool: row.state for row in turns},
        )

    async def register(
        self, pool: str, name: str, *, url: str, instance: str, draining: bool, ttl_us: int, version: str = ""
    ) -> Entered:
        """Register the process under the name, or renew its registration. Raises NameTaken or PoolFull."""
        place = (col(RegisteredReplica.pool) == pool, col(RegisteredReplica.name) == name)
        now = self._now()
        told = {"draining": draining, "version": version, "seen_us": now}
        fresh = {"url": url, "instance": instance, "registered_us": now, **told}
        own = update(RegisteredReplica).where(
            *place, col(RegisteredReplica.instance) == instance, col(RegisteredReplica.url) == url
        )
        dead = update(RegisteredReplica).where(*place, self._expired(ttl_us))
        async with self._engine.begin() as connection:
            if (await connection.execute(own.values(**told))).rowcount:
                return "renewed"
            if (await connection.execute(dead.values(**fresh))).rowcount:
                return "registered"
            await self._check_room(connection, pool, max(_DEAD_US, ttl_us))
            row = self._insert(RegisteredReplica).values(pool=pool, name=name, **fresh).on_conflict_do_nothing()
            if not (await connection.execute(row)).rowcount:
                raise NameTaken(
                    f"another process lives as {name} in {pool}, or this one at another address: it leaves by itself, or "
                    f"is forgotten when it was silent for {ttl_us / 1_000_000:g} s"
                )
        return "registered"

    async def leave(self, pool: str, name: str, instance: str) -> bool:
        """Delete the registration of this instance. Returns whether it existed; another instance of the same name
        stays.
        """
        own = delete(RegisteredReplica).where(
            col(RegisteredReplica.pool) == pool,
            col(RegisteredReplica.name) == name,
            col(RegisteredReplica.instance) == instance,
        )
        async with self._engine.begin() as connection:
            return bool((await connection.execute(own)).rowcount)

    async def order(self, pool: str, name: str, by: str, known: Collection[str] = ()) -> bool:
        """Order a drain. Returns whether the order is new. With `known`, the current replicas, old orders for other
        names are deleted. Raises PoolFull.
        """
        async with self._engine.begin() as connection:
            if known:
                old = (col(DrainOrder.ordered_us) < self._now() - _OLD_ORDER_US, col(DrainOrder.name).not_in(known))
                await connection.execute(delete(DrainOrder).where(col(DrainOrder.pool) == pool, *old))
            row = self._insert(DrainOrder).values(pool=pool, name=name, ordered_us=self._now(), ordered_by=by)
            new = bool((await connection.execute(row.on_conflict_do_nothing())).rowcount)
            orders = select(func.count()).select_from(DrainOrder).where(col(DrainOrder.pool) == pool)
            if new and int(await connection.scalar(orders) or 0) > MOST_PER_POOL:
                raise PoolFull(f"{pool} has {MOST_PER_POOL} drain orders; take some back")
            return new

    async def take_back(self, pool: str, name: str) -> bool:
        """Withdraw a drain order. Returns whether there was one."""
        there = delete(DrainOrder).where(col(DrainOrder.pool) == pool, col(DrainOrder.name) == name)
        async with self._engine.begin() as connection:
            return bool((await connection.execute(there)).rowcount)

    async def hold(self, pool: str, holder: str, lease_us: int) -> bool:
        """Take or prolong the lease on a pool. Returns False when another process holds it."""
        now = self._now()
        until = now + literal(lease_us, BigInteger)
        free = or_(
            col(PoolTarget.holder) == holder,
            col(PoolTarget.lease_until_us) < now,
            col(PoolTarget.lease_until_us) > now + literal(_FAR_LEASES * lease_us, BigInteger),
        )
        taken = update(PoolTarget).where(col(PoolTarget.pool) == pool, free)
        first = {"pool": pool, "desired": 0, "reason": "", "decided_us": 0}
        async with self._engine.begin() as connection:
            if (await connection.execute(taken.values(holder=holder, lease_until_us=until))).rowcount:
                return True
            row = self._insert(PoolTarget).values(**first, holder=holder, lease_until_us=until)
            return bool((await connection.execute(row.on_conflict_do_nothing())).rowcount)

    async def release(self, holder: str, pools: Sequence[str]) -> None:
        """Release leases, so that another process need not wait until they run out."""
        own = update(PoolTarget).where(col(PoolTarget.holder) == holder, col(PoolTarget.pool).in_(pools))
        async with self._engine.begin() as connection:
            await connection.execute(own.values(lease_until_us=0))

    async def _check_room(self, connection: AsyncConnection, pool: str, dead_us: int) -> None:
        of_pool = col(RegisteredReplica.pool) == pool
        await connection.execute(delete(RegisteredReplica).where(of_pool, self._expired(dead_us)))
        rows = await connection.scalar(select(func.count()).select_from(RegisteredReplica).where(of_pool))
        if int(rows or 0) >= MOST_PER_POOL:
            raise PoolFull(f"{pool} has {MOST_PER_POOL} registered replicas, and takes no more")

    def _expired(self, for_us: int) -> ColumnElement[bool]:
        """Return the condition: not seen for so long, or seen in a future that a wrong clock wrote."""
        seen, now, limit = col(RegisteredReplica.seen_us), self._now(), literal(for_us, BigInteger)
        return and_(or_(seen < now - limit, seen > now + limit))

    def _now(self) -> ColumnElement[int]:
        """Return the SQL expression of the database's clock in microseconds. Processes on SQLite share a machine, and use its
        clock.
        """
        if self._now_us is None and self._engine.dialect.name == "postgresql":
            return DATABASE_US
        return literal((self._now_us or wall_us)(), BigInteger)
