"""Grants: the part of a hard budget that one process may spend without asking again.

A grant is what the process holds, what it settled but the database does not have yet, and a little more for the next
requests. What is spent and all grants together never exceed the limit: whoever changes a grant locks the budget, reads
both in one statement, and takes no more than is left.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ScalarSelect,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.periods import end_us, start_us
from cost.ledger.entries import TERMINAL
from cost.tables import Boot, BudgetGrant, BudgetRow, LedgerEntry, SpendDay

MAX_BUDGETS: Final = 10_000
"""Every process looks at all of them every few seconds."""
_AHEAD: Final = 8
"""What is granted beyond the need: this many times the need, and no more than this fraction of what is left."""
_MAX_BOOTS: Final = 1_000


class GrantNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs of one budget: `floor_nanousd` it cannot give back, `keep_nanousd` it would like to keep."""

    floor_nanousd: int
    keep_nanousd: int = 0


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits for money of each of these budgets; all of them or none."""

    amount_nanousd: int
    budget_ids: tuple[str, ...]


class BudgetRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What the database knows of one budget while it is locked."""

    budget: Budget
    spent_nanousd: int
    others_nanousd: int
    """Granted to other processes."""
    mine_nanousd: int = 0


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has now."""

    room: BudgetRoom
    granted_nanousd: int
    lacking: bool
    """Somebody got nothing for want of this budget."""
    scarce: bool
    """It would have been given more if there were more."""


class Grants(Protocol):
    """Where grants are kept; GrantStore is one, MemoryGrants another."""

    async def regrant(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        """Replace this process's grants of these budgets. One that does not exist as a hard one is left out."""
        ...

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        """How every budget stands."""
        ...

    async def forget_boot(self, boot_id: str) -> None:
        """Take back what a process had that is dead and whose attempts are all closed."""
        ...

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:
        """Processes that have grants but no open reserve: those last seen before this time, and those not known."""
        ...


def share_out(
    rooms: Mapping[str, BudgetRoom], asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest]
) -> dict[str, Grant]:
    """Who gets how much: requests in the order they came, each whole or not at all, then some for the next ones."""
    left = {each: _left(room, asks[each]) for each, room in rooms.items()}
    taken = dict.fromkeys(rooms, 0)
    short = set()
    for want in wants:
        needs = [each for each in want.budget_ids if each in rooms]
        lacking = [each for each in needs if want.amount_nanousd > left[each] - taken[each]]
        short.update(lacking)
        if not lacking:
            for each in needs:
                taken[each] += want.amount_nanousd
    return {each: _grant(rooms[each], asks[each], taken[each], lacking=each in short) for each in rooms}


def _left(room: BudgetRoom, ask: GrantNeed) -> int:
    return max(0, room.budget.limit_nanousd - room.spent_nanousd - room.others_nanousd - ask.floor_nanousd)


def _grant(room: BudgetRoom, ask: GrantNeed, taken_nanousd: int, *, lacking: bool) -> Grant:
    """What cannot be given back stays granted even where the limit has no room for it."""
    after = _left(room, ask) - taken_nanousd
    liked = max(ask.keep_nanousd, _AHEAD * taken_nanousd)
    ahead = 0 if lacking else min(liked, after // _AHEAD)
    return Grant(
        room=room,
        granted_nanousd=ask.floor_nanousd + taken_nanousd + ahead,
        lacking=lacking,
        scarce=lacking or ahead < liked,
    )


class GrantStore:
    """Grants in the database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sqlite = engine.dialect.name == "sqlite"

    async def regrant(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        """Replace this process's grants of these budgets in one transaction."""
        if not asks:
            return {}
        ids = sorted(asks)
        async with self._engine.begin() as connection:
            await self._lock(connection, ids)
            # The locks first: this statement then sees all that was committed before they were had.
            rooms = await _rooms(connection, ids, boot_id, at_us)
            given = share_out(rooms, asks, wants)
            await _write(connection, boot_id, given)
        return given

    async def _lock(self, connection: AsyncConnection, ids: Sequence[str]) -> None:
        if self._sqlite:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        locked = select(col(BudgetRow.budget_id)).where(col(BudgetRow.budget_id).in_(ids))
        # In the order of their ids, so that two processes never wait for each other in a circle.
        await connection.execute(locked.order_by(col(BudgetRow.budget_id)).with_for_update())

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        """How every budget stands."""
        async with self._engine.connect() as connection:
            return await standings(connection, at_us)

    async def forget_boot(self, boot_id: str) -> None:
        """Take back what a process had that is dead and whose attempts are all closed."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(BudgetGrant).where(col(BudgetGrant.boot_id) == boot_id))

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:
        """Processes that have grants but no open reserve: those last seen before this time, and those not known."""
        granted = select(col(BudgetGrant.boot_id).label("boot_id")).distinct().subquery()
        query = (
            select(granted.c.boot_id, col(Boot.seen_us))
            .select_from(granted.outerjoin(Boot, col(Boot.boot_id) == granted.c.boot_id))
            .where(~_open_reserve(granted.c.boot_id))
            .order_by(granted.c.boot_id)
            .limit(_MAX_BOOTS)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return (
            [boot_id for boot_id, seen_us in rows if seen_us is not None and seen_us < seen_before_us],
            [boot_id for boot_id, seen_us in rows if seen_us is None],
        )


async def standings(connection: AsyncConnection, at_us: int, *where: ColumnElement[bool]) -> list[BudgetStatus]:
    """How budgets stand: those that the conditions leave, by scope."""
    held = _granted()
    query = select(*_COLUMNS, _spent(at_us), held).where(*where).limit(MAX_BUDGETS)
    query = query.order_by(col(BudgetRow.scope), col(BudgetRow.scope_id), col(BudgetRow.budget_id))
    rows = (await connection.execute(query)).all()
    return [
        BudgetStatus(budget=budget_of(row), at_us=at_us, spent_nanousd=int(row[-2]), held_nanousd=int(row[-1]))
        for row in rows
    ]


def budget_of(row: Sequence[Any]) -> Budget:
    """The budget of a row that begins with its columns."""
    return Budget(**dict(zip(Budget.__struct_fields__, row, strict=False)))


async def _rooms(connection: AsyncConnection, ids: Sequence[str], boot_id: str, at_us: int) -> dict[str, BudgetRoom]:
    others, mine = col(BudgetGrant.boot_id) != boot_id, col(BudgetGrant.boot_id) == boot_id
    query = select(*_COLUMNS, _spent(at_us), _spent(at_us, later=True), _granted(others), _granted(mine)).where(
        col(BudgetRow.budget_id).in_(ids), col(BudgetRow.kind) == "hard"
    )
    return {
        row.budget_id: BudgetRoom(
            budget=budget_of(row),
            # A process whose clock is ahead may have begun the next period already; grants count in both.
            spent_nanousd=max(int(row[-4]), int(row[-3])),
            others_nanousd=int(row[-2]),
            mine_nanousd=int(row[-1]),
        )
        for row in await connection.execute(query)
    }


async def _write(connection: AsyncConnection, boot_id: str, given: Mapping[str, Grant]) -> None:
    changed = {each: grant for each, grant in given.items() if grant.granted_nanousd != grant.room.mine_nanousd}
    if not changed:
        return
    mine = and_(col(BudgetGrant.boot_id) == boot_id, col(BudgetGrant.budget_id).in_(sorted(changed)))
    await connection.execute(delete(BudgetGrant).where(mine))
    rows = [
        {"budget_id": each, "boot_id": boot_id, "granted_nanousd": grant.granted_nanousd}
        for each, grant in sorted(changed.items())
        if grant.granted_nanousd
    ]
    if rows:
        await connection.execute(insert(BudgetGrant), rows)


_COLUMNS: Final = tuple(col(getattr(BudgetRow, name)) for name in Budget.__struct_fields__)


def _spent(at_us: int, *, later: bool = False) -> ScalarSelect[int]:
    """What was booked in the budget's period, or in later ones."""
    period = col(BudgetRow.period)
    start = case(
        (period == "day", literal(start_us("day", at_us), BigInteger)),
        (period == "week", literal(start_us("week", at_us), BigInteger)),
        else_=literal(start_us("month", at_us), BigInteger),
    )
    end = case(
        (period == "day", literal(end_us("day", at_us), BigInteger)),
        (period == "week", literal(end_us("week", at_us), BigInteger)),
        else_=literal(end_us("month", at_us), BigInteger),
    )
    day = col(SpendDay.day_us)
    when = day >= end if later else and_(day >= start, day < end)
    return (
        select(func.coalesce(func.sum(col(SpendDay.spent_nanousd)), 0))
        .where(col(SpendDay.scope) == col(BudgetRow.scope), col(SpendDay.scope_id) == col(BudgetRow.scope_id), when)
        .correlate(BudgetRow)
        .scalar_subquery()
    )


def _granted(*where: ColumnElement[bool]) -> ScalarSelect[int]:
    return (
        select(func.coalesce(func.sum(col(BudgetGrant.granted_nanousd)), 0))
        .where(col(BudgetGrant.budget_id) == col(BudgetRow.budget_id), *where)
        .correlate(BudgetRow)
        .scalar_subquery()
    )


def _open_reserve(boot_id: ColumnElement[str]) -> ColumnElement[bool]:
    reserve, closing = aliased(LedgerEntry), aliased(LedgerEntry)
    closed = exists().where(
        col(closing.request_id) == col(reserve.request_id),
        col(closing.attempt) == col(reserve.attempt),
        col(closing.entry).in_(sorted(TERMINAL)),
    )
    return exists().where(
        col(reserve.boot_id) == boot_id,
        # Written out, so that the partial index is known to serve.
        col(reserve.entry) == literal("reserve", literal_execute=True),
        ~closed,
    )
