"""Lost hosts: heartbeats of processes, and expiry of attempts whose host is gone.

A process that died on this machine left its journal here, and is recovered from it. One whose machine is gone left
nothing but its reserves in the database. When it was not seen for long, they are closed with an `expire` at the
reserve's cost. Should it come back after all and bring the true end of an attempt, both may not count: an `adjust`
reverses the expiry exactly, in the transaction that writes the other.

Only a process that was not seen for half that time can have been given up, and whoever shows it knows that; so what
the others wrote is booked without looking. Hosts' clocks may differ, so it is the database's clock that says how long ago that was.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import delete, literal, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.ledger.drain import EntryStore
from cost.ledger.entries import TERMINAL, Entry, reversal_of, undivided
from cost.ledger.rollups import LOST_HOST
from cost.ledger.rows import ALL, read
from cost.tables import Boot, LedgerEntry

_log: Final = logging.getLogger(__name__)
_MOST_BOOTS: Final = 10
_BATCH: Final = 500


def expiry_of(reserve: Entry) -> Entry:
    """Return the entry that closes an attempt whose host is lost: at its reserved cost, flagged as an estimate.

    It is dated like its reserve, so that every process that reaps it writes the same entry.
    """
    return msgspec.structs.replace(
        reserve,
        entry="expire",
        baseline_nanousd=None,
        cheapest_nanousd=None,
        hosted_nanousd=None,
        usage_source="estimated",
        flags=(*reserve.flags, LOST_HOST),
        status=0,
        **undivided(reserve.cost_nanousd),
    )


async def with_lost_hosts(connection: AsyncConnection, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries as they may be written beside other processes' entries of the same attempts.

    An expiry whose attempt was closed is left out; an entry that closes an expired attempt brings the expiry's reversal
    along. The reserves are locked, so that of two processes that close the same attempt the second sees what the first
    did.
    """
    closing = [entry for entry in entries if entry.entry in TERMINAL]
    there: list[Entry] = []
    for start in range(0, len(closing), _BATCH):
        there += await _lock_closings(connection, closing[start : start + _BATCH])
    expiries = {(entry.request_id, entry.attempt): entry for entry in there if entry.entry == "expire"}
    closed = {(entry.request_id, entry.attempt) for entry in there if entry.entry != "expire"}
    return list(_without_conflicts(entries, expiries, closed))


def _without_conflicts(
    entries: Sequence[Entry], expiries: dict[tuple[str, int], Entry], closed: set[tuple[str, int]]
) -> Iterator[Entry]:
    for entry in entries:
        place = (entry.request_id, entry.attempt)
        if entry.entry != "expire":
            yield entry
            if entry.entry in TERMINAL and place in expiries:
                yield reversal_of(expiries[place])
        elif place not in closed:
            yield entry


async def _lock_closings(connection: AsyncConnection, entries: Sequence[Entry]) -> list[Entry]:
    if not entries:
        return []
    places = sorted({(entry.request_id, entry.attempt) for entry in entries})
    one_of = tuple_(col(LedgerEntry.request_id), col(LedgerEntry.attempt)).in_(places)
    reserves = select(col(LedgerEntry.request_id)).where(one_of, col(LedgerEntry.entry) == "reserve")
    order = (col(LedgerEntry.request_id), col(LedgerEntry.attempt))
    # SQLite has one writer at a time, and knows no such lock.
    await connection.execute(reserves.order_by(*order).with_for_update())
    return await read(connection, ALL.where(one_of, col(LedgerEntry.entry).in_(sorted(TERMINAL))))


class OrphanReaper:
    """Heartbeats of the processes of one host, and expiry of what lost hosts left open."""

    def __init__(
        self,
        engine: AsyncEngine,
        entries: EntryStore,
        *,
        host: str,
        lost_after_s: float = 3600.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._engine = engine
        self._entries = entries
        self._host = host
        self._lost_after_us = int(lost_after_s * 1_000_000)
        self._given_clock = clock
        self._clock = clock or time.time
        self._seen_us: dict[str, int] = {}
        self._given_up: set[str] = set()
        self.expired = 0
        """Attempts of lost hosts that this process closed at an estimate."""

    def may_be_given_up(self, boot_id: str) -> bool:
        """Return True if other hosts may have taken this process for lost at any time of its life, or if it was never
        recorded. A reserve from before such a time may be settled long after, so it stays true.
        """
        seen_us = self._seen_us.get(boot_id)
        if seen_us is not None and self._now_us() - seen_us > self._lost_after_us // 2:
            self._given_up.add(boot_id)
        return seen_us is None or boot_id in self._given_up

    async def show(self, boot_ids: Collection[str], *, drained: Collection[str] = ()) -> None:
        """Record in the table `boot` that these processes are alive.

        Of those in `drained` the database had entries before this process showed them: if it knows them no more, or not
        for long, others may have given them up.
        """
        if not boot_ids:
            return
        now_us = self._now_us()
        for boot_id in boot_ids:
            # Asking notices a gap before this heartbeat closes it.
            self.may_be_given_up(boot_id)
        async with self._engine.begin() as connection:
            shared_us = await self._shared_us(connection)
            query = select(col(Boot.boot_id), col(Boot.seen_us)).where(col(Boot.boot_id).in_(sorted(boot_ids)))
            there = {boot_id: int(seen_us) for boot_id, seen_us in await connection.execute(query)}
            given_up = {each for each in boot_ids if self._was_given_up(each, there.get(each), shared_us, drained)}
            values: dict[str, Any] = {"host": self._host[:200], "seen_us": shared_us}
            await connection.execute(update(Boot).where(col(Boot.boot_id).in_(sorted(there))).values(**values))
            new = [
                Boot(boot_id=each, started_us=now_us, **values).model_dump() for each in boot_ids if each not in there
            ]
            if new:
                await connection.execute(Boot.__table__.insert(), new)  # type: ignore[attr-defined]
        self._given_up |= given_up
        self._seen_us.update(dict.fromkeys(boot_ids, now_us))

    def _was_given_up(self, boot_id: str, seen_us: int | None, shared_us: int, drained: Collection[str]) -> bool:
        """Return True if the table says that another host may have given the process up."""
        if seen_us is None:
            return boot_id in self._seen_us or boot_id in drained
        return shared_us - seen_us > self._lost_after_us // 2

    async def forget(self, boot_id: str) -> None:
        """Delete the `boot` row of a process that left nothing open."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(Boot).where(col(Boot.boot_id) == boot_id))
        self._seen_us.pop(boot_id, None)
        self._given_up.discard(boot_id)

    async def expire(self, ours: Collection[str]) -> None:
        """Close the attempts that lost hosts left open. Processes in `ours` are skipped: their journals are here to
        recover.
        """
        async with self._engine.connect() as connection:
            before_us = await self._shared_us(connection) - self._lost_after_us
            query = select(col(Boot.boot_id)).where(col(Boot.seen_us) < before_us)
            stale = (await connection.execute(query.order_by(col(Boot.seen_us)).limit(_MOST_BOOTS))).scalars().all()
        for boot_id in stale:
            if boot_id not in ours:
                await self._expire_one(boot_id, before_us)

    async def _expire_one(self, boot_id: str, before_us: int) -> None:
        reserves = await self._entries.open_reserves([boot_id])
        old = [reserve for reserve in reserves if reserve.at_us < before_us]
        expired = 0
        for start in range(0, len(old), _BATCH):
            batch = [expiry_of(reserve) for reserve in old[start : start + _BATCH]]
            expired += await self._entries.insert(batch, careful=True)
        if len(old) == len(reserves):
            async with self._engine.begin() as connection:
                gone = delete(Boot).where(col(Boot.boot_id) == boot_id, col(Boot.seen_us) < literal(before_us))
                await connection.execute(gone)
        self.expired += expired
        _log.warning("the host of %s is lost: %d attempts closed at an estimate", boot_id, expired)

    async def _shared_us(self, connection: AsyncConnection) -> int:
        """Return the time that all processes on one database share; those on SQLite share a machine."""
        if self._given_clock is None and self._engine.dialect.name == "postgresql":
            return int(await connection.scalar(select(DATABASE_US)) or 0)
        return self._now_us()

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)
