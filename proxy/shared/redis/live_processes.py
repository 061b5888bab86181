"""The number of serving processes, counted in the database: it divides limits where there is no Redis.

Each process writes a heartbeat every few seconds, and one without a recent heartbeat has gone. Hosts' clocks may
differ, so ages are measured by the database's clock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

import msgspec
from sqlalchemy import Table, bindparam, delete, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from proxy.shared.redis.process_tables import LiveProcess
from proxy.shared.redis.redis_link import RedisLink

_log: Final = logging.getLogger(__name__)
SHOW_S: Final = 2.0
"""Seconds between two heartbeats of each process."""
_GONE_US: Final = 8_000_000
_OLD_US: Final = 60_000_000
_LIMIT_S: Final = 5.0
_FORGET_S: Final = 1.0
"""The time-out of removing this process at its end; other processes notice its absence anyway."""
_MOST: Final = 10_000
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)

# Made once: both are asked every other second.
_SEEN: Final = select(col(LiveProcess.seen_us)).limit(_MOST)
_SHOW: Final = (
    update(LiveProcess).where(col(LiveProcess.boot_id) == bindparam("boot")).values(seen_us=bindparam("now_us"))
)


class CountedProcesses(Protocol):
    """The number of processes as last counted."""

    @property
    def live(self) -> int:
        """The number, at least 1."""
        ...

    @property
    def known(self) -> bool:
        """True once the processes have been counted."""
        ...


class ReportedProcesses(msgspec.Struct):
    """The number of processes, as another part counts them and sets it here."""

    live: int = 1
    known: bool = False


class LiveProcesses:
    """Heartbeats the processes of this host in the database, and counts them all."""

    def __init__(
        self,
        engine: AsyncEngine,
        boots: Callable[[], Collection[str]],
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._engine = engine
        self._boots = boots
        self._given_clock = clock
        self._clock = clock or time.time
        self._live = 1
        self._down = False
        self.known = False
        """True once the processes have been counted."""

    @property
    def live(self) -> int:
        """The number of processes as last counted, at least 1."""
        return self._live

    async def refresh(self) -> None:
        """Write the heartbeats of this host's processes and count all. When the database fails, the last count holds."""
        try:
            async with asyncio.timeout(_LIMIT_S), self._engine.begin() as connection:
                now_us = await self._shared_us(connection)
                await self._show(connection, now_us)
                seen = (await connection.scalars(_SEEN)).all()
                # A clock that was set back leaves rows in the future.
                if any(abs(now_us - seen_us) > _OLD_US for seen_us in seen):
                    old = (col(LiveProcess.seen_us) < now_us - _OLD_US) | (col(LiveProcess.seen_us) > now_us + _OLD_US)
                    await connection.execute(delete(LiveProcess).where(old))
        except _DATABASE_FAILS as error:
            if not self._down:
                _log.warning("the processes that serve cannot be counted: %s", type(error).__name__)
            self._down = True
            return
        self._down = False
        self._live = max(1, sum(abs(now_us - seen_us) <= _GONE_US for seen_us in seen))
        self.known = True

    async def withdraw(self, boot_id: str) -> None:
        """Remove a process's row at its end, so that others need not wait for it to expire."""
        with contextlib.suppress(*_DATABASE_FAILS):
            async with asyncio.timeout(_FORGET_S), self._engine.begin() as connection:
                await connection.execute(delete(LiveProcess).where(col(LiveProcess.boot_id) == boot_id))

    async def _show(self, connection: AsyncConnection, now_us: int) -> None:
        table: Table = LiveProcess.__table__  # type: ignore[attr-defined]
        # In their order, so that two hosts never wait for each other.
        for boot_id in sorted(self._boots()):
            if (await connection.execute(_SHOW, {"boot": boot_id, "now_us": now_us})).rowcount == 0:
                await connection.execute(table.insert().values(boot_id=boot_id, seen_us=now_us))

    async def _shared_us(self, connection: AsyncConnection) -> int:
        """Return microseconds of the clock that all processes share: the database's, or with SQLite this machine's."""
        if self._given_clock is None and self._engine.dialect.name == "postgresql":
            return int(await connection.scalar(select(DATABASE_US)) or 0)
        return int(self._clock() * 1_000_000)


class ProcessCount:
    """The number of processes that share a limit: Redis's count while it is healthy, else the database's."""

    def __init__(self, replicas: CountedProcesses, link: RedisLink | None) -> None:
        self._replicas = replicas
        self._link = link

    def live(self) -> int:
        """Return the number of processes, at least 1."""
        link = self._link
        if link is not None and (link.healthy or not self._replicas.known):
            return link.live
        return self._replicas.live
