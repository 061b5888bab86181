"""Batches at providers in the database, with their lines and with their entries in the ledger.

Lines that were handed over are held by their batch at the provider rather than by a process, until the moment at which
they are taken back. A change of a line and its booking are one transaction, so nothing is lost or booked twice
whichever process dies when.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from proxy.batch.batch import ClaimedLine, LineResult, LineState
from proxy.batch.store import BatchStore
from proxy.batch.tables import BatchLine, BatchRow, ProviderBatchRow
from proxy.shared.database_clock import DatabaseTime

_CLAIMED: Final = tuple(col(getattr(BatchLine, name)) for name in ClaimedLine.__struct_fields__)
_LATEST: Final = 5
"""The latest batches of a deployment whose turnaround is taken."""


class ProviderBatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at a provider as stored; the columns are described in `tables`."""

    handed_id: str
    batch_id: str
    target_id: str
    deployment_id: str
    state: str
    upstream_id: str
    lines: int
    lines_left: int
    answered: int
    created_us: int
    give_up_us: int
    look_us: int


_COLUMNS: Final = tuple(col(getattr(ProviderBatchRow, name)) for name in ProviderBatchRecord.__struct_fields__)


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one batch that is, or was, at providers."""

    lines: int
    """The lines that wait there now."""
    tokens: int
    """The estimated tokens of those."""
    answered_tokens: int
    """The estimated tokens of all lines that were answered there."""


NOTHING_OUT: Final = Out(lines=0, tokens=0, answered_tokens=0)


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one transaction with a provider's answers."""

    answered: int
    unneeded: int


class ProviderBatchStore:
    """The only writer of the table `handed_batch`."""

    def __init__(self, batches: BatchStore, time: DatabaseTime) -> None:
        self._engine = batches.engine
        self._batches = batches
        self._ledger = LedgerStore(batches.engine)
        self._time = time

    # ProviderBatchLine over.

    async def peek(self, batch_id: str, after: int, limit: int) -> list[ClaimedLine]:
        """Return the next lines of a batch by place that wait and have not failed, without beginning them."""
        query = (
            select(*_CLAIMED)
            .where(
                col(BatchLine.batch_id) == batch_id,
                col(BatchLine.state) == LineState.WAITING,
                col(BatchLine.failures) == 0,
                col(BatchLine.held_until_us) <= self._time.now(),
                col(BatchLine.place) > after,
            )
            .order_by(col(BatchLine.place))
            .limit(limit)
        )
        async with self._engine.connect() as connection:
            return [ClaimedLine(**row) for row in (await connection.execute(query)).mappings()]

    async def hand_over(
        self,
        new: Mapping[str, Any],
        numbers: Sequence[int],
        reserve_of: Callable[[ClaimedLine], Entry],
        *,
        holder: str,
        lease_us: int,
    ) -> list[ClaimedLine]:
        """Begin lines in the name of a new batch at a provider, and book their reservations; return those that were
        still free. `new` has the columns of `ProviderBatchRow` that its maker sets. With no line left no batch is
        kept.
        """
        handed_id, batch_id = new["handed_id"], new["batch_id"]
        open_batch = select(col(BatchRow.batch_id)).where(
            col(BatchRow.batch_id) == batch_id, col(BatchRow.status) == "in_progress"
        )
        taken = (
            update(BatchLine)
            .where(
                col(BatchLine.batch_id).in_(open_batch),
                col(BatchLine.number).in_(numbers),
                col(BatchLine.state) == LineState.WAITING,
            )
            .values(
                state=LineState.RUNNING,
                generation=col(BatchLine.generation) + 1,
                holder=handed_id,
                held_until_us=new["give_up_us"],
            )
            .returning(*_CLAIMED)
        )
        async with self._engine.begin() as connection:
            rows = (await connection.execute(taken)).mappings().all()
            lines = sorted((ClaimedLine(**row) for row in rows), key=lambda line: line.number)
            if not lines:
                return []
            now_us = self._time.here_us()
            counted = {
                "state": "making",
                "outcome": "",
                "upstream_id": "",
                "lines": len(lines),
                "lines_left": len(lines),
                "tokens_left": sum(line.tokens for line in lines),
                "created_us": now_us,
                "look_us": 0,
                "holder": holder,
            }
            zeros = dict.fromkeys(("tokens_answered", "answered", "unneeded", "estimated"), 0)
            row = {**zeros, **counted, **new, "ended_us": None, "held_until_us": self._time.now() + lease_us}
            await connection.execute(insert(ProviderBatchRow).values(**row))
            await self._ledger.insert_within(connection, [reserve_of(line) for line in lines])
        return lines

    async def made(self, handed_id: str, upstream_id: str, look_us: int) -> bool:
        """Record the provider's id of a batch. Return False where the batch has ended meanwhile: then it is only to
        be deleted there.
        """
        ours = col(ProviderBatchRow.handed_id) == handed_id
        is_open = col(ProviderBatchRow.state).in_(("making", "running"))
        values = {"upstream_id": upstream_id, "look_us": look_us, "held_until_us": 0}
        async with self._engine.begin() as connection:
            change = update(ProviderBatchRow).where(ours, is_open).values(state="running", **values)
            if (await connection.execute(change)).rowcount == 1:
                return True
            await self._set(connection, handed_id, {**values, "state": "forgetting", "look_us": 0})
            return False

    async def look_later(self, handed_id: str, look_us: int) -> None:
        """Set the time of the next look; nothing else has changed."""
        await self._change(handed_id, {"look_us": look_us, "held_until_us": 0})

    # Seeing to it.

    async def take_due(self, due_us: int, holder: str, lease_us: int) -> ProviderBatchRecord | None:
        """Take the batch that is due longest before `due_us` and that no process holds; None without one."""
        due = and_(
            col(ProviderBatchRow.state) != "ended",
            col(ProviderBatchRow.look_us) <= due_us,
            col(ProviderBatchRow.held_until_us) < self._time.now(),
        )
        first = (
            select(col(ProviderBatchRow.handed_id))
            .where(due)
            .order_by(col(ProviderBatchRow.look_us))
            .limit(1)
            .with_for_update(skip_locked=True)
            .cte("first_due")
        )
        taken = (
            update(ProviderBatchRow)
            .where(
                col(ProviderBatchRow.handed_id).in_(select(first.c.handed_id)),
                col(ProviderBatchRow.held_until_us) < self._time.now(),
            )
            .values(holder=holder, held_until_us=self._time.now() + lease_us)
            .returning(*_COLUMNS)
        )
        async with self._engine.begin() as connection:
            row = (await connection.execute(taken)).mappings().first()
        return None if row is None else ProviderBatchRecord(**row)

    async def hold(self, handed_id: str, holder: str, lease_us: int) -> bool:
        """Extend the lease of a batch. Return False where another process holds it by now."""
        mine = and_(col(ProviderBatchRow.handed_id) == handed_id, col(ProviderBatchRow.holder) == holder)
        change = update(ProviderBatchRow).where(mine).values(held_until_us=self._time.now() + lease_us)
        async with self._engine.begin() as connection:
            return (await connection.execute(change)).rowcount == 1

    async def lines_of(self, batch_id: str, numbers: Collection[int]) -> dict[int, ClaimedLine]:
        """Return these lines of a batch, by number, as they stand now."""
        ours = and_(col(BatchLine.batch_id) == batch_id, col(BatchLine.number).in_(numbers))
        async with self._engine.connect() as connection:
            rows = (await connection.execute(select(*_CLAIMED).where(ours))).mappings()
            return {row["number"]: ClaimedLine(**row) for row in rows}

    async def open_reserves(self, handed_id: str) -> dict[str, Entry]:
        """Return its reservations that are still open, by request id."""
        return {entry.request_id: entry for entry in await self._ledger.open_reserves([handed_id])}

    async def collect(
        self, handed: ProviderBatchRecord, results: Sequence[LineResult], entries: Sequence[Entry], estimated: int = 0
    ) -> Collected:
        """Write answers and their bookings. An answer whose line is another's by now is booked all the same;
        `estimated` of the entries belong to answers that are of no use.
        """
        async with self._engine.begin() as connection:
            await connection.execute(_locked(handed.handed_id))
            written = await self._batches.answer_within(connection, results)
            new = await self._ledger.insert_within(connection, entries)
            unneeded = max(0, new - len(written) - estimated)
            tokens = sum(each.line.tokens for each in written)
            await connection.execute(
                update(ProviderBatchRow)
                .where(col(ProviderBatchRow.handed_id) == handed.handed_id)
                .values(
                    lines_left=col(ProviderBatchRow.lines_left) - len(written),
                    tokens_left=col(ProviderBatchRow.tokens_left) - tokens,
                    tokens_answered=col(ProviderBatchRow.tokens_answered) + tokens,
                    answered=col(ProviderBatchRow.answered) + len(written),
                    unneeded=col(ProviderBatchRow.unneeded) + unneeded,
                    estimated=col(ProviderBatchRow.estimated) + estimated,
                )
            )
        return Collected(answered=len(written), unneeded=unneeded)

    async def take_back(self, handed: ProviderBatchRecord) -> int:
        """Let its lines wait for other options, while it may still answer some; return their number."""
        async with self._engine.begin() as connection:
            await connection.execute(_locked(handed.handed_id))
            released = await self._batches.release_within(connection, handed.batch_id, handed.handed_id, failed=True)
            await self._set(connection, handed.handed_id, {"lines_left": 0, "tokens_left": 0})
        return released

    async def end(
        self,
        handed: ProviderBatchRecord,
        outcome: str,
        entries: Sequence[Entry],
        *,
        estimated: int,
        failed: bool,
        leaves: bool,
    ) -> int:
        """End a batch: the entries that close its open reservations are booked, and lines without an answer wait
        again; return their number. With `failed` it counts as a failure of each, and they are not handed over again.
        `leaves`: the provider may still have a part of it, and is asked to delete it from now on.
        """
        async with self._engine.begin() as connection:
            await connection.execute(_locked(handed.handed_id))
            released = await self._batches.release_within(connection, handed.batch_id, handed.handed_id, failed=failed)
            await self._ledger.insert_within(connection, entries)
            values = {
                "state": "forgetting" if leaves else "ended",
                "look_us": 0,
                "outcome": outcome,
                "ended_us": self._time.here_us(),
                "lines_left": 0,
                "tokens_left": 0,
                "estimated": col(ProviderBatchRow.estimated) + estimated,
                "held_until_us": 0,
            }
            await self._set(connection, handed.handed_id, values)
        return released

    async def forgotten(self, handed_id: str) -> None:
        """Record that nothing of it is left at the provider, or that no more tries follow."""
        await self._change(handed_id, {"state": "ended", "held_until_us": 0})

    # Queries over all batches.

    async def out(self) -> dict[str, Out]:
        """Return the part of each batch in progress that is at providers or was answered there, by id."""
        query = (
            select(
                col(ProviderBatchRow.batch_id),
                func.sum(col(ProviderBatchRow.lines_left)).label("lines"),
                func.sum(col(ProviderBatchRow.tokens_left)).label("tokens"),
                func.sum(col(ProviderBatchRow.tokens_answered)).label("answered_tokens"),
            )
            .join(BatchRow, col(BatchRow.batch_id) == col(ProviderBatchRow.batch_id))
            .where(col(BatchRow.status) == "in_progress")
            .group_by(col(ProviderBatchRow.batch_id))
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return {
            row["batch_id"]: Out(
                lines=int(row["lines"]), tokens=int(row["tokens"]), answered_tokens=int(row["answered_tokens"])
            )
            for row in rows
        }

    async def turnaround_s(self, deployment_id: str) -> float | None:
        """Return the longest turnaround of the latest batches of a deployment, in seconds; None where none has ended."""
        took = (col(ProviderBatchRow.ended_us) - col(ProviderBatchRow.created_us)).label("took")
        ours = and_(col(ProviderBatchRow.deployment_id) == deployment_id, _judged())
        latest = select(took).where(ours).order_by(col(ProviderBatchRow.ended_us).desc()).limit(_LATEST).subquery()
        async with self._engine.connect() as connection:
            longest = await connection.scalar(select(func.max(latest.c.took)))
        return None if longest is None else int(longest) / 1_000_000

    async def known_ids(self, deployment_id: str) -> set[str]:
        """Return the provider's ids of the batches that are known to be ours."""
        query = select(col(ProviderBatchRow.upstream_id)).where(
            col(ProviderBatchRow.deployment_id) == deployment_id, col(ProviderBatchRow.upstream_id) != ""
        )
        async with self._engine.connect() as connection:
            return set((await connection.execute(query)).scalars())

    async def _change(self, handed_id: str, values: Mapping[str, Any]) -> None:
        async with self._engine.begin() as connection:
            await self._set(connection, handed_id, values)

    @staticmethod
    async def _set(connection: AsyncConnection, handed_id: str, values: Mapping[str, Any]) -> None:
        await connection.execute(
            update(ProviderBatchRow).where(col(ProviderBatchRow.handed_id) == handed_id).values(**values)
        )


def _judged() -> ColumnElement[bool]:
    """Return the condition for batches with a meaningful turnaround: those answered in full, and those that were too
    slow for it.
    """
    return or_(col(ProviderBatchRow.outcome) == "completed", col(ProviderBatchRow.outcome) == "late")


def _locked(handed_id: str) -> Any:
    """Return an update that changes nothing and locks it, before anything else of the transaction."""
    return (
        update(ProviderBatchRow)
        .where(col(ProviderBatchRow.handed_id) == handed_id)
        .values(lines=col(ProviderBatchRow.lines))
    )
