"""Batches and lines in the database: claimed with a lease and a generation, answered once.

A line is begun by one process at a time. Beginning it counts its generation up and names the process and the end of its
lease, which the process renews. When the lease ends the line waits again, and the next process to begin it has a higher
generation; a later answer of an older one is not written, for a result and the line's state are one transaction that
compares the generation. The same statements serve SQLite and PostgreSQL: SQLite has one writer at a time, on PostgreSQL
processes that claim at once skip rows that others are claiming.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from proxy.batch.batch import (
    ENDED,
    NOT_ENDED,
    WINDOW_US,
    Batch,
    ClaimedLine,
    LineResult,
    LineState,
    NewBatch,
    NewLine,
    Outcome,
)
from proxy.batch.batch_errors import BatchEnded, BatchNotFound
from proxy.batch.files import Owner
from proxy.batch.tables import BatchLine, BatchResult, BatchRow
from proxy.shared.database_clock import DatabaseTime

_MAX_LIVE: Final = 1_000
"""The most batches that a process looks at, those that end first."""
_COLUMNS: Final = tuple(col(getattr(BatchRow, name)) for name in Batch.__struct_fields__)
_CLAIMED: Final = tuple(col(getattr(BatchLine, name)) for name in ClaimedLine.__struct_fields__)
_OK: Final = 200
_SERVER_FAILS: Final = 500
_NOT_ITS_OWN: Final = (402, 408, 429)
"""Statuses below 500 that say nothing against what a line asks."""
_WORKED: Final = ("in_progress", "completed")
"""The states of batches whose tokens tell a speed: a cancelled or expired batch has dropped some without answering
them.
"""
_FRESH: Final[Mapping[str, int]] = dict.fromkeys(
    (
        "total", "completed", "failed", "repeated", "tokens", "tokens_left", "input_tokens", "cached_tokens", "output_tokens",
        "reasoning_tokens", "cost_nanousd", "unpriced", "saved_nanousd", "reserved_nanousd", "held_until_us",
    ),
    0,
)  # fmt: skip


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list, and whether another one follows."""

    batches: list[Batch]
    has_more: bool


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time in which a batch was worked on, and the estimated tokens that were answered in it."""

    start_us: int
    end_us: int
    tokens: int


class BatchStore:
    """The only writer of the tables `batch`, `batch_line` and `batch_result`."""

    def __init__(self, engine: AsyncEngine, time: DatabaseTime) -> None:
        self.engine = engine
        self._time = time
        self.news: Callable[[], None] = lambda: None
        """A callback for the moment when a batch was made here."""

    def now_us(self) -> int:
        """Return microseconds since 1970, for times that callers see."""
        return self._time.here_us()

    def within(self, engine: AsyncEngine) -> "BatchStore":
        """Return the same store inside of the caller's transaction."""
        return BatchStore(engine, self._time)

    # Callers' requests.

    async def create(self, new: NewBatch) -> Batch:
        """Create a batch that waits to be validated."""
        now_us = self.now_us()
        window_us = WINDOW_US[new.completion_window]
        batch_id = f"batch_{secrets.token_hex(16)}"
        values = {
            **_FRESH,
            **msgspec.structs.asdict(new),
            "batch_id": batch_id,
            "status": "validating",
            "ending": "",
            "holder": "",
            "created_us": now_us,
            "expires_us": None if window_us is None else now_us + window_us,
        }
        async with self.engine.begin() as connection:
            await connection.execute(insert(BatchRow).values(**values))
        self.news()
        return await self.get(batch_id)

    async def get(self, batch_id: str) -> Batch:
        """Return a batch of any team, for the tier itself. Raises BatchNotFound."""
        return await self._one(col(BatchRow.batch_id) == batch_id, batch_id)

    async def find(self, owner: Owner, batch_id: str) -> Batch:
        """Return a batch of a team. Raises BatchNotFound, also for another team's."""
        return await self._one(and_(_of(owner), col(BatchRow.batch_id) == batch_id), batch_id)

    async def page(
        self, owner: Owner, *, after: str | None, limit: int, endpoint: str | None = None, before: str | None = None
    ) -> BatchPage:
        """Return a page of a team's batches, the newest first: those made before `after`, or the next that were made later than
        `before`. Raises BatchNotFound for an unknown one.
        """
        made, name = col(BatchRow.created_us), col(BatchRow.batch_id)
        where = [_of(owner)]
        if endpoint is not None:
            where.append(col(BatchRow.endpoint) == endpoint)
        if before is not None:
            last = await self.find(owner, before)
            where.append(or_(made > last.created_us, and_(made == last.created_us, name > before)))
            newer = await self._select(and_(*where), limit + 1, made.asc(), name.asc())
            return BatchPage(batches=newer[:limit][::-1], has_more=len(newer) > limit)
        if after is not None:
            last = await self.find(owner, after)
            where.append(or_(made < last.created_us, and_(made == last.created_us, name < after)))
        found = await self._select(and_(*where), limit + 1, made.desc(), name.desc())
        return BatchPage(batches=found[:limit], has_more=len(found) > limit)

    async def newest(self, organisation_id: str, team_ids: Collection[str] | None, limit: int) -> list[Batch]:
        """Return an organisation's newest batches, of these teams or, with None, of all."""
        where = [col(BatchRow.organisation_id) == organisation_id]
        if team_ids is not None:
            where.append(col(BatchRow.team_id).in_(team_ids))
        return await self._select(and_(*where), limit, col(BatchRow.created_us).desc())

    async def cancel(self, owner: Owner, batch_id: str) -> Batch:
        """Begin no more lines of the batch; running ones are finished. Idempotent. Raises BatchNotFound, or
        BatchEnded for one that has ended or is about to.
        """
        now_us = self.now_us()
        open_ = col(BatchRow.status).in_(("validating", "in_progress"))
        mine = and_(_of(owner), col(BatchRow.batch_id) == batch_id, open_)
        change = update(BatchRow).where(mine).values(status="cancelling", ending="cancelled", cancelling_us=now_us)
        async with self.engine.begin() as connection:
            if (await connection.execute(change)).rowcount:
                await self._close_waiting(connection, [batch_id], LineState.CANCELLED)
        found = await self.find(owner, batch_id)
        if found.status in {"cancelling", "cancelled"}:
            return found
        raise BatchEnded(f"This batch is {found.status}; only one that has not ended can be cancelled.")

    async def remove(self, owner: Owner, batch_id: str) -> Batch:
        """Delete a batch that has ended, with its lines. Raises BatchNotFound, or BatchEnded for one that has not."""
        batch = await self.find(owner, batch_id)
        if not batch.has_ended:
            raise BatchEnded(f"This batch is {batch.status}; only one that has ended can be deleted.")
        async with self.engine.begin() as connection:
            for table in (BatchResult, BatchLine, BatchRow):
                await connection.execute(delete(table).where(col(table.batch_id) == batch_id))
        return batch

    async def failed_lines(self, owner: Owner, batch_id: str, limit: int) -> list[Outcome]:
        """Return the first lines of a batch that got an error, without its text."""
        await self.find(owner, batch_id)
        columns = (*_OUTCOME, col(BatchLine.error_code))
        query = (
            select(*columns)
            .where(col(BatchLine.batch_id) == batch_id, col(BatchLine.status) != _OK, col(BatchLine.status) != 0)
            .order_by(col(BatchLine.number))
            .limit(limit)
        )
        async with self.engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [
            Outcome(**{name: row[name] for name in _OUTCOME_NAMES}, body=row["error_code"].encode()) for row in rows
        ]

    # Work in progress.

    async def has_open(self) -> bool:
        """Return True while any batch has not ended."""
        query = select(exists().where(col(BatchRow.status).in_(NOT_ENDED)))
        async with self.engine.connect() as connection:
            return bool(await connection.scalar(query))

    async def live(self) -> list[Batch]:
        """Return the batches in progress, those that end first at the front."""
        ends = case((col(BatchRow.expires_us).is_(None), 1), else_=0)
        return await self._select(
            col(BatchRow.status) == "in_progress", _MAX_LIVE, ends.asc(), col(BatchRow.expires_us).asc()
        )

    async def ended_since(self, since_us: int) -> list[Batch]:
        """Return the batches that ended since then with lines that expired or failed, the newest first."""
        ended = func.coalesce(col(BatchRow.expired_us), col(BatchRow.completed_us))
        return await self._select(
            and_(
                col(BatchRow.status).in_(("expired", "completed")),
                ended >= since_us,
                or_(col(BatchRow.status) == "expired", col(BatchRow.failed) > 0),
            ),
            _MAX_LIVE,
            ended.desc(),
        )

    async def failed_by_others(self, batch_ids: Sequence[str]) -> dict[str, int]:
        """Return how many lines of each failed for another reason than what they ask: upstreams, limits, budgets and this gateway."""
        line = col(BatchLine.status)
        query = (
            select(col(BatchLine.batch_id), func.count())
            .where(col(BatchLine.batch_id).in_(batch_ids), col(BatchLine.state) == LineState.ANSWERED)
            .where(or_(line >= _SERVER_FAILS, line.in_(_NOT_ITS_OWN)))
            .group_by(col(BatchLine.batch_id))
        )
        async with self.engine.connect() as connection:
            return {str(name): int(count) for name, count in await connection.execute(query)}

    async def waiting_tokens(self, owner: Owner) -> int:
        """Return the estimated tokens of a team's lines without an answer."""
        query = select(func.sum(col(BatchRow.tokens_left))).where(_of(owner), col(BatchRow.status) == "in_progress")
        async with self.engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def tokens_due_before(self, batch: Batch) -> int:
        """Return the estimated tokens without an answer of the other batches that are due no later than this one."""
        due = col(BatchRow.expires_us)
        before = due.is_not(None) if batch.expires_us is None else due <= batch.expires_us
        query = select(func.sum(col(BatchRow.tokens_left))).where(
            col(BatchRow.status) == "in_progress", before, col(BatchRow.batch_id) != batch.batch_id
        )
        async with self.engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def recent_work(self, limit: int = 50) -> list[Worked]:
        """Return the work of the newest batches, and its beginnings and ends."""
        ended = func.coalesce(col(BatchRow.completed_us), col(BatchRow.expired_us), col(BatchRow.cancelled_us))
        query: Select[*tuple[Any, ...]] = (
            select(
                col(BatchRow.in_progress_us).label("start_us"),
                func.coalesce(ended, self.now_us()).label("end_us"),
                (col(BatchRow.tokens) - col(BatchRow.tokens_left)).label("tokens"),
            )
            .where(col(BatchRow.in_progress_us).is_not(None), col(BatchRow.status).in_(_WORKED))
            .order_by(col(BatchRow.created_us).desc())
            .limit(limit)
        )
        async with self.engine.connect() as connection:
            return [Worked(**row) for row in (await connection.execute(query)).mappings()]

    async def note_estimate(self, batch_id: str, at_us: int) -> None:
        """Keep the first estimate, so that it can be compared with the actual end."""
        first = and_(col(BatchRow.batch_id) == batch_id, col(BatchRow.estimated_us).is_(None))
        async with self.engine.begin() as connection:
            await connection.execute(update(BatchRow).where(first).values(estimated_us=at_us))

    async def reserved(self, *where: ColumnElement[bool]) -> int:
        """Return the most, in nano-dollars, that lines without an answer may still cost."""
        query = select(func.sum(col(BatchRow.reserved_nanousd))).where(
            col(BatchRow.status).in_(("in_progress", "cancelling", "finalizing")), *where
        )
        async with self.engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async def claim(
        self, batch_id: str, limit: int, holder: str, lease_us: int, up_to: int | None = None
    ) -> list[ClaimedLine]:
        """Begin up to `limit` waiting lines of a batch in progress, and return them in the order of their places.
        `up_to` is the last place to be begun, except for lines that have failed, which go to no provider; None for all.
        """
        if limit < 1:
            return []
        now = self._time.now()
        is_open = exists().where(col(BatchRow.batch_id) == batch_id, col(BatchRow.status) == "in_progress")
        next_ones = (
            select(col(BatchLine.number))
            .where(
                col(BatchLine.batch_id) == batch_id,
                col(BatchLine.state) == LineState.WAITING,
                # With 0 added no index on it is taken: SQLite would read what waits in all batches, and sort it.
                col(BatchLine.held_until_us) + 0 <= now,
                is_open,
                *(() if up_to is None else (or_(col(BatchLine.place) <= up_to, col(BatchLine.failures) > 0),)),
            )
            .order_by(col(BatchLine.place))
            .limit(limit)
            .with_for_update(skip_locked=True)
            # By itself, so that PostgreSQL looks for them once.
            .cte("next_ones")
        )
        chosen = select(next_ones.c.number)
        # An array is looked up by the primary key whatever PostgreSQL knows of the table; joined before its first statistics, a claim
        # of 256 lines among 50,000 took four seconds.
        is_chosen = (
            col(BatchLine.number).in_(chosen)
            if self.engine.dialect.name == "sqlite"
            else col(BatchLine.number) == func.any(func.array(chosen.scalar_subquery()))
        )
        taken = (
            update(BatchLine)
            .where(col(BatchLine.batch_id) == batch_id, is_chosen)
            .values(
                state=LineState.RUNNING,
                generation=col(BatchLine.generation) + 1,
                holder=holder,
                held_until_us=now + lease_us,
            )
            .returning(*_CLAIMED)
        )
        async with self.engine.begin() as connection:
            rows = (await connection.execute(taken)).mappings().all()
        # Neither database promises an order of what a statement returns.
        return sorted((ClaimedLine(**row) for row in rows), key=attrgetter("place"))

    async def renew(self, holder: str, lease_us: int) -> int:
        """Extend the leases of all lines that a process has begun; return their number."""
        mine = and_(col(BatchLine.state) == LineState.RUNNING, col(BatchLine.holder) == holder)
        async with self.engine.begin() as connection:
            change = update(BatchLine).where(mine).values(held_until_us=self._time.now() + lease_us)
            return (await connection.execute(change)).rowcount

    async def answer(self, results: Sequence[LineResult]) -> list[LineResult]:
        """Write results with their lines' state and the batch's sums, in one transaction. Return those that were
        written. The others' lines are another process's by now: their leases had ended.
        """
        if not results:
            return []
        async with self.engine.begin() as connection:
            return await self.answer_within(connection, results)

    async def answer_within(self, connection: AsyncConnection, results: Sequence[LineResult]) -> list[LineResult]:
        """Write results within the transaction of a caller whose own rows must commit or fail with these; return
        those that were written.
        """
        by_batch: dict[str, list[LineResult]] = {}
        for each in results:
            by_batch.setdefault(each.line.batch_id, []).append(each)
        now_us = self.now_us()
        written: list[LineResult] = []
        # In one order, so that processes that write at once never wait for each other in a circle.
        for batch_id, some in sorted(by_batch.items()):
            # Taken first: nobody else changes these lines' answers until the end of the transaction.
            await connection.execute(_locked(batch_id))
            written += await self._answer_batch(connection, batch_id, some, now_us)
        return written

    async def release_within(self, connection: AsyncConnection, batch_id: str, holder: str, *, failed: bool) -> int:
        """Let all lines of a batch wait again that `holder` has begun, within a caller's transaction; return their
        number.
        """
        mine = and_(
            col(BatchLine.batch_id) == batch_id,
            col(BatchLine.state) == LineState.RUNNING,
            col(BatchLine.holder) == holder,
        )
        change = (
            update(BatchLine)
            .where(mine)
            .values(
                state=self._waiting_again(),
                holder="",
                held_until_us=0,
                failures=col(BatchLine.failures) + int(failed),
            )
        )
        released = (await connection.execute(change)).rowcount
        if failed and released:
            await connection.execute(_repeated(batch_id, released))
        return released

    async def give_back(self, lines: Sequence[tuple[ClaimedLine, int]], holder: str, *, failed: bool = False) -> None:
        """Let lines wait again, each for some microseconds more. With `failed` it counts as a failure of the line."""
        waits = [
            {"b_batch": line.batch_id, "b_number": line.number, "b_generation": line.generation, "b_wait": wait_us}
            for line, wait_us in lines
        ]
        if not waits:
            return
        mine = and_(
            col(BatchLine.batch_id) == bindparam("b_batch"),
            col(BatchLine.number) == bindparam("b_number"),
            col(BatchLine.generation) == bindparam("b_generation"),
            col(BatchLine.state) == LineState.RUNNING,
            col(BatchLine.holder) == holder,
        )
        change = (
            update(BatchLine)
            .where(mine)
            .values(
                state=self._waiting_again(),
                holder="",
                held_until_us=self._time.now() + bindparam("b_wait", type_=BigInteger),
                failures=col(BatchLine.failures) + int(failed),
            )
        )
        async with self.engine.begin() as connection:
            for wait in waits:
                await connection.execute(change, wait)
            if failed:
                for batch_id in sorted({line.batch_id for line, _ in lines}):
                    again = sum(line.batch_id == batch_id for line, _ in lines)
                    await connection.execute(_repeated(batch_id, again))

    # Duties that any process does, as often as it likes.

    async def free_abandoned(self) -> int:
        """Let lines wait again whose process did not renew its lease; return their number."""
        over = and_(col(BatchLine.state) == LineState.RUNNING, col(BatchLine.held_until_us) < self._time.now())
        change = update(BatchLine).where(over).values(state=self._waiting_again(), holder="", held_until_us=0)
        async with self.engine.begin() as connection:
            freed = list((await connection.execute(change.returning(col(BatchLine.batch_id)))).scalars())
            for batch_id in sorted(set(freed)):
                await connection.execute(_repeated(batch_id, freed.count(batch_id)))
        return len(freed)

    async def end_due(self) -> list[str]:
        """Begin no more lines of batches whose deadline has passed; return these batches."""
        due = and_(col(BatchRow.status) == "in_progress", col(BatchRow.expires_us) <= self._time.now())
        change = update(BatchRow).where(due).values(status="finalizing", ending="expired", finalizing_us=self.now_us())
        async with self.engine.begin() as connection:
            ended = list((await connection.execute(change.returning(col(BatchRow.batch_id)))).scalars())
            if ended:
                await self._close_waiting(connection, ended, LineState.EXPIRED)
        return ended

    async def finish_answered(self) -> int:
        """Finalize batches all of whose lines are answered; return their number."""
        done = and_(
            col(BatchRow.status) == "in_progress",
            col(BatchRow.completed) + col(BatchRow.failed) >= col(BatchRow.total),
        )
        change = (
            update(BatchRow).where(done).values(status="finalizing", ending="completed", finalizing_us=self.now_us())
        )
        async with self.engine.begin() as connection:
            return (await connection.execute(change)).rowcount

    async def take(self, statuses: Iterable[str], holder: str, lease_us: int) -> Batch | None:
        """Take a batch to validate or to finalize that no process works on, the oldest first; None without one. One
        that is finalized, or cancelled, waits until its last running line has ended.
        """
        runs = exists().where(
            col(BatchLine.batch_id) == col(BatchRow.batch_id), col(BatchLine.state) == LineState.RUNNING
        )
        ready = and_(
            col(BatchRow.status).in_(tuple(statuses)),
            col(BatchRow.held_until_us) < self._time.now(),
            or_(col(BatchRow.status) == "validating", ~runs),
        )
        oldest = (
            select(col(BatchRow.batch_id))
            .where(ready)
            .order_by(col(BatchRow.created_us))
            .limit(1)
            .with_for_update(skip_locked=True, of=BatchRow)
            .cte("oldest")
        )
        taken = (
            update(BatchRow)
            .where(
                col(BatchRow.batch_id).in_(select(oldest.c.batch_id)), col(BatchRow.held_until_us) < self._time.now()
            )
            .values(holder=holder, held_until_us=self._time.now() + lease_us)
            .returning(*_COLUMNS)
        )
        async with self.engine.begin() as connection:
            row = (await connection.execute(taken)).mappings().first()
        return None if row is None else Batch(**row)

    async def hold(self, batch_id: str, holder: str, lease_us: int) -> bool:
        """Extend the lease of a batch that is validated or finalized. Return False where it is another process's by
        now.
        """
        mine = and_(col(BatchRow.batch_id) == batch_id, col(BatchRow.holder) == holder)
        change = update(BatchRow).where(mine).values(held_until_us=self._time.now() + lease_us)
        async with self.engine.begin() as connection:
            return (await connection.execute(change)).rowcount == 1

    # Validation.

    async def add_lines(self, batch_id: str, lines: Sequence[NewLine]) -> None:
        """Add lines of a batch that is validated; those that are there already stay as they are."""
        fixed = {
            "batch_id": batch_id,
            "state": LineState.WAITING,
            "generation": 0,
            "holder": "",
            "held_until_us": 0,
            "failures": 0,
            "status": 0,
            "error_code": "",
            "request_id": "",
            "ended_us": None,
        }
        made = sqlite_insert if self.engine.dialect.name == "sqlite" else postgresql_insert
        rows = [{**fixed, **msgspec.structs.asdict(line)} for line in lines]
        async with self.engine.begin() as connection:
            await connection.execute(made(BatchLine).on_conflict_do_nothing(), rows)

    async def start_lines(
        self,
        batch_id: str,
        holder: str,
        *,
        total: int,
        tokens: int,
        model: str | None,
        bound_nanousd: int | None,
        reserved_nanousd: int,
    ) -> bool:
        """Mark a batch as sound: its lines may be begun. Return False where it is another process's by now, or was
        cancelled.
        """
        values = {
            "status": "in_progress",
            "in_progress_us": self.now_us(),
            "total": total,
            "tokens": tokens,
            "tokens_left": tokens,
            "model": model,
            "bound_nanousd": bound_nanousd,
            "reserved_nanousd": reserved_nanousd,
            "held_until_us": 0,
        }
        async with self.engine.begin() as connection:
            change = update(BatchRow).where(_validated_by(batch_id, holder)).values(**values)
            return (await connection.execute(change)).rowcount == 1

    async def fail(self, connection: AsyncConnection, batch_id: str, holder: str, errors: str) -> bool:
        """Mark a batch as not sound, within the caller's transaction; none of its lines will be begun."""
        values = {"status": "failed", "errors": errors, "failed_us": self.now_us(), "held_until_us": 0}
        changed = await connection.execute(update(BatchRow).where(_validated_by(batch_id, holder)).values(**values))
        return changed.rowcount == 1

    # Finalizing.

    async def outcomes(self, batch_id: str, after: int, limit: int) -> list[Outcome]:
        """Return the next lines of a batch in the order of the input file, with their answers."""
        query = (
            select(*_OUTCOME, col(BatchResult.body))
            .join_from(
                BatchLine,
                BatchResult,
                and_(
                    col(BatchLine.batch_id) == col(BatchResult.batch_id),
                    col(BatchLine.number) == col(BatchResult.number),
                ),
                isouter=True,
            )
            .where(col(BatchLine.batch_id) == batch_id, col(BatchLine.number) > after)
            .order_by(col(BatchLine.number))
            .limit(limit)
        )
        async with self.engine.connect() as connection:
            return [Outcome(**row) for row in (await connection.execute(query)).mappings()]

    async def end(
        self,
        connection: AsyncConnection,
        batch: Batch,
        holder: str,
        *,
        output_file_id: str | None,
        error_file_id: str | None,
    ) -> bool:
        """Mark a batch as ended, within the caller's transaction. Return False where another process was first."""
        mine = and_(
            col(BatchRow.batch_id) == batch.batch_id,
            col(BatchRow.holder) == holder,
            col(BatchRow.status).in_(("finalizing", "cancelling")),
        )
        values: dict[str, Any] = {
            "status": batch.ending,
            f"{batch.ending}_us": self.now_us(),
            "output_file_id": output_file_id,
            "error_file_id": error_file_id,
            "tokens_left": 0,
            "reserved_nanousd": 0,
            "held_until_us": 0,
        }
        return (await connection.execute(update(BatchRow).where(mine).values(**values))).rowcount == 1

    # Forgetting.

    async def forget_results(self, batch_id: str, limit: int) -> int:
        """Delete up to `limit` answers of a batch that has ended: its files have them. Return their number."""
        some = select(col(BatchResult.number)).where(col(BatchResult.batch_id) == batch_id).limit(limit)
        return await self._delete(
            delete(BatchResult).where(col(BatchResult.batch_id) == batch_id, col(BatchResult.number).in_(some))
        )

    async def with_results(self) -> list[str]:
        """Return the batches that have ended and still have answers in the database."""
        has = exists().where(col(BatchResult.batch_id) == col(BatchRow.batch_id))
        query = select(col(BatchRow.batch_id)).where(col(BatchRow.status).in_(tuple(ENDED)), has).limit(_MAX_LIVE)
        async with self.engine.connect() as connection:
            return list((await connection.execute(query)).scalars())

    async def forget_old(self, keep_us: int, limit: int) -> int:
        """Delete batches that ended more than `keep_us` microseconds ago, with up to `limit` of their lines a call;
        return the number of rows.
        """
        last = func.coalesce(
            col(BatchRow.completed_us), col(BatchRow.failed_us), col(BatchRow.expired_us), col(BatchRow.cancelled_us)
        )
        old = select(col(BatchRow.batch_id)).where(
            col(BatchRow.status).in_(tuple(ENDED)), last < self.now_us() - keep_us
        )
        async with self.engine.connect() as connection:
            batch_id = await connection.scalar(old.order_by(col(BatchRow.created_us)).limit(1))
        if batch_id is None:
            return 0
        some = select(col(BatchLine.number)).where(col(BatchLine.batch_id) == batch_id).limit(limit)
        gone = await self._delete(
            delete(BatchLine).where(col(BatchLine.batch_id) == batch_id, col(BatchLine.number).in_(some))
        )
        return gone or await self._delete(delete(BatchRow).where(col(BatchRow.batch_id) == batch_id))

    # Parts of the above.

    async def _answer_batch(
        self, connection: AsyncConnection, batch_id: str, results: Sequence[LineResult], now_us: int
    ) -> list[LineResult]:
        by_number = {each.line.number: each for each in results}
        current = await connection.execute(
            select(col(BatchLine.number), col(BatchLine.generation)).where(
                col(BatchLine.batch_id) == batch_id,
                col(BatchLine.number).in_(by_number),
                col(BatchLine.state) == LineState.RUNNING,
            )
        )
        ours = [by_number[number] for number, generation in current if by_number[number].line.generation == generation]
        if not ours:
            return []
        await connection.execute(
            _ANSWERED,
            [
                {
                    "b_batch": batch_id,
                    "b_number": each.line.number,
                    "b_generation": each.line.generation,
                    "b_status": each.status,
                    "b_code": each.error_code[:64],
                    "b_request": each.request_id,
                    "b_ended": now_us,
                }
                for each in ours
            ],
        )
        rows = [{"batch_id": batch_id, "number": each.line.number, "body": each.body} for each in ours]
        await connection.execute(insert(BatchResult), rows)
        await connection.execute(_booked(batch_id, ours))
        return ours

    async def _close_waiting(self, connection: AsyncConnection, batch_ids: Sequence[str], state: LineState) -> None:
        waiting = and_(col(BatchLine.batch_id).in_(batch_ids), col(BatchLine.state) == LineState.WAITING)
        await connection.execute(update(BatchLine).where(waiting).values(state=state))

    def _waiting_again(self) -> ColumnElement[int]:
        """Return the state of a line that stops without an answer: waiting, or ended with its batch."""
        ending = select(col(BatchRow.ending)).where(col(BatchRow.batch_id) == col(BatchLine.batch_id)).scalar_subquery()
        return case(
            (ending == "cancelled", int(LineState.CANCELLED)),
            (ending == "expired", int(LineState.EXPIRED)),
            else_=int(LineState.WAITING),
        )

    async def _one(self, where: ColumnElement[bool], batch_id: str) -> Batch:
        found = await self._select(where, 1)
        if not found:
            raise BatchNotFound(
                f"There is no batch `{batch_id[:80]}`; GET /v1/batches lists your team's.", param="batch_id"
            )
        return found[0]

    async def _select(self, where: ColumnElement[bool], limit: int, *order: ColumnElement[Any]) -> list[Batch]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(select(*_COLUMNS).where(where).order_by(*order).limit(limit))
            return [Batch(**row) for row in rows.mappings()]

    async def _delete(self, statement: Any) -> int:
        async with self.engine.begin() as connection:
            return int((await connection.execute(statement)).rowcount)


_OUTCOME_NAMES: Final = ("number", "custom_id", "state", "status", "request_id")
_OUTCOME: Final = tuple(col(getattr(BatchLine, name)) for name in _OUTCOME_NAMES)
_ANSWERED: Final = (
    update(BatchLine)
    .where(
        col(BatchLine.batch_id) == bindparam("b_batch"),
        col(BatchLine.number) == bindparam("b_number"),
        col(BatchLine.generation) == bindparam("b_generation"),
    )
    .values(
        state=int(LineState.ANSWERED),
        holder="",
        held_until_us=0,
        status=bindparam("b_status"),
        error_code=bindparam("b_code"),
        request_id=bindparam("b_request"),
        ended_us=bindparam("b_ended"),
    )
)


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(col(BatchRow.organisation_id) == owner.organisation_id, col(BatchRow.team_id) == owner.team_id)


def _validated_by(batch_id: str, holder: str) -> ColumnElement[bool]:
    return and_(
        col(BatchRow.batch_id) == batch_id, col(BatchRow.holder) == holder, col(BatchRow.status) == "validating"
    )


def _locked(batch_id: str) -> Any:
    """Return an update that changes nothing and locks the batch."""
    return update(BatchRow).where(col(BatchRow.batch_id) == batch_id).values(total=col(BatchRow.total))


def _repeated(batch_id: str, times: int) -> Any:
    return update(BatchRow).where(col(BatchRow.batch_id) == batch_id).values(repeated=col(BatchRow.repeated) + times)


def _booked(batch_id: str, results: Sequence[LineResult]) -> Any:
    """Return an update that counts answers and their cost, and gives back their reservation."""
    completed = sum(each.status == _OK for each in results)
    return (
        update(BatchRow)
        .where(col(BatchRow.batch_id) == batch_id)
        .values(
            completed=col(BatchRow.completed) + completed,
            failed=col(BatchRow.failed) + len(results) - completed,
            tokens_left=col(BatchRow.tokens_left) - sum(each.line.tokens for each in results),
            reserved_nanousd=col(BatchRow.reserved_nanousd) - sum(each.line.bound_nanousd or 0 for each in results),
            cost_nanousd=col(BatchRow.cost_nanousd) + sum(each.cost_nanousd or 0 for each in results),
            saved_nanousd=col(BatchRow.saved_nanousd) + sum(each.saved_nanousd for each in results),
            unpriced=col(BatchRow.unpriced) + sum(each.cost_nanousd is None for each in results),
            **{
                name: col(getattr(BatchRow, name)) + sum(getattr(each, name) for each in results)
                for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
            },
        )
    )
