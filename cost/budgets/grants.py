"""Grants: the part of a hard budget that one process may spend without asking the database again.

A grant covers what the process holds, what it settled but the database does not have yet, and a little more for the
next requests. Spending and all grants together never exceed the limit: whoever changes a grant locks the budget, reads
both in one statement, and takes no more than is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ScalarSelect,
    Select,
    SQLColumnExpression,
    String,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.budgets.budget import Budget, BudgetStatus, split_id
from cost.budgets.periods import NEVER_US, PERIODS, bounds_us, parts_of
from cost.calendar import UTC_CALENDAR, Calendar
from cost.calendars import read_calendars
from cost.ledger.entries import TERMINAL
from cost.tables import Boot, BudgetGrant, BudgetRow, LedgerEntry, SpendDay, SpendQuarter

MAX_BUDGETS: Final = 10_000
"""Most budgets in the database: every process reads all of them every few seconds."""
_AHEAD: Final = 8
"""Multiple of the need that is granted ahead, and divisor that caps it: at most this fraction of what is left."""
_MAX_BOOTS: Final = 1_000
_COLUMNS: Final = tuple(col(getattr(BudgetRow, name)) for name in Budget.__struct_fields__)
_BUDGET_ID: Final = col(BudgetRow.budget_id)
_SCOPE_ID: Final = col(BudgetRow.scope_id)


class GrantNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One process's need of one budget: `floor_nanousd` it cannot give back, `keep_nanousd` it would like to keep."""

    floor_nanousd: int
    keep_nanousd: int = 0


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting hold: the amount is taken from every budget named, or from none."""

    amount_nanousd: int
    budget_ids: tuple[str, ...]


class BudgetRoom(msgspec.Struct, frozen=True, kw_only=True):
    """One budget's limit, spending and grants, read while its row is locked."""

    budget: Budget
    spent_nanousd: int
    others_nanousd: int
    """Granted to other processes."""
    mine_nanousd: int = 0
    at_us: int = 0
    calendar: Calendar = UTC_CALENDAR

    @property
    def limit_nanousd(self) -> int:
        """The limit in force."""
        return self.budget.limit_at(self.at_us)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The grant that a process has after a change."""

    room: BudgetRoom
    granted_nanousd: int
    lacking: bool
    """True if at least one waiting hold was refused because this budget had too little."""
    scarce: bool
    """True if less was granted than the process would have been given of an ample budget."""
    left_nanousd: int = 0
    """What one more hold could have been of."""
    over_nanousd: int = 0
    """What cannot be given back and the limit, lowered since, has no room for."""


class Grants(Protocol):
    """Storage of grants; implemented by GrantStore and MemoryGrants."""

    async def renew_grants(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        """Replace this process's grants of the budgets in `asks`, and return the new ones by budget id, also of budgets that
        `Budget.of_each` made.

        Budgets that are gone or not hard are left out. `wants` are served in order, each whole or not at all. `at_us`
        picks the period.
        """
        ...

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        """Return the status of every budget at a moment in microseconds since 1970."""
        ...

    async def standings_of_each(self, ids: Sequence[str], at_us: int) -> list[BudgetStatus]:
        """Return the status of budgets that `Budget.of_each` made, by their ids; those that are gone are left out."""
        ...

    async def forget_boot(self, boot_id: str) -> None:
        """Delete the grants of a dead process whose attempts are all closed."""
        ...

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:
        """Return ids of boots with grants but no open reserve.

        The first list has those last seen before this time, the second those without a `boot` row.
        """
        ...


def share_out(
    rooms: Mapping[str, BudgetRoom], asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest]
) -> dict[str, Grant]:
    """Divide the room among the holds in order, each whole or not at all, then grant some ahead for the next ones."""
    left = {each: _room_left(room, asks[each]) for each, room in rooms.items()}
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


def _room_left(room: BudgetRoom, ask: GrantNeed) -> int:
    return max(0, _room_or_debt(room, ask))


def _room_or_debt(room: BudgetRoom, ask: GrantNeed) -> int:
    return room.limit_nanousd - room.spent_nanousd - room.others_nanousd - ask.floor_nanousd


def _grant(room: BudgetRoom, ask: GrantNeed, taken_nanousd: int, *, lacking: bool) -> Grant:
    """Return the new grant; the floor stays granted even where the limit has no room for it."""
    after = _room_left(room, ask) - taken_nanousd
    liked = max(ask.keep_nanousd, _AHEAD * taken_nanousd)
    ahead = 0 if lacking else min(liked, after // _AHEAD)
    return Grant(
        room=room,
        granted_nanousd=ask.floor_nanousd + taken_nanousd + ahead,
        lacking=lacking,
        scarce=lacking or ahead < liked,
        left_nanousd=max(0, after),
        over_nanousd=max(0, -_room_or_debt(room, ask)),
    )


class GrantStore:
    """Grants in the table `budget_grant`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        # Made once, as they are asked for each request of an end user whom this process has not served lately.
        self._rooms, self._each_standing = _queries_for_asked(sqlite=self._sqlite)

    async def renew_grants(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        """Replace this process's grants of these budgets in one transaction."""
        if not asks:
            return {}
        ids = sorted(asks)
        async with self._engine.begin() as connection:
            await self._lock(connection, ids)
            # Lock first: the next statement then sees all that was committed before the locks were taken.
            rooms = await self._read_rooms(connection, ids, boot_id, at_us)
            given = share_out(rooms, asks, wants)
            await _write_grants(connection, boot_id, given)
        return given

    async def _lock(self, connection: AsyncConnection, ids: Sequence[str]) -> None:
        if self._sqlite:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        stored = sorted({split_id(each)[0] for each in ids})
        locked = select(col(BudgetRow.budget_id)).where(col(BudgetRow.budget_id).in_(stored))
        # In the order of their ids, so that two processes never deadlock.
        await connection.execute(locked.order_by(col(BudgetRow.budget_id)).with_for_update())

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        """Return the status of every budget at a moment in microseconds since 1970."""
        async with self._engine.connect() as connection:
            return await standings(connection, at_us)

    async def standings_of_each(self, ids: Sequence[str], at_us: int) -> list[BudgetStatus]:
        """Return the status of budgets that `Budget.of_each` made, by their ids."""
        async with self._engine.connect() as connection:
            rows = await _by_calendar(connection, self._each_standing, at_us, asked=_as_asked(ids))
            return [
                BudgetStatus(
                    budget=_asked_budget(row),
                    at_us=at_us,
                    spent_nanousd=int(row.spent),
                    held_nanousd=int(row.granted),
                    calendar=calendar,
                )
                for calendar, row in rows
            ]

    async def _read_rooms(
        self, connection: AsyncConnection, ids: Sequence[str], boot_id: str, at_us: int
    ) -> dict[str, BudgetRoom]:
        found = await _by_calendar(connection, self._rooms, at_us, asked=_as_asked(ids), mine=boot_id)
        return {
            row.asked_id: BudgetRoom(
                budget=_asked_budget(row),
                # A process whose clock is ahead may have begun the next period already; grants count in both.
                spent_nanousd=max(int(row.spent), int(row.spent_later)),
                others_nanousd=int(row.granted),
                mine_nanousd=int(row.granted_mine),
                at_us=at_us,
                calendar=calendar,
            )
            for calendar, row in found
        }

    async def forget_boot(self, boot_id: str) -> None:
        """Delete the grants of a dead process whose attempts are all closed."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(BudgetGrant).where(col(BudgetGrant.boot_id) == boot_id))

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:
        """Return ids of boots with grants but no open reserve.

        The first list has those last seen before this time, the second those without a `boot` row.
        """
        granted = select(col(BudgetGrant.boot_id).label("boot_id")).distinct().subquery()
        query = (
            select(granted.c.boot_id, col(Boot.seen_us))
            .select_from(granted.outerjoin(Boot, col(Boot.boot_id) == granted.c.boot_id))
            .where(~_has_open_reserve(granted.c.boot_id))
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
    """Return the status of the budgets that match `where`, by scope, scope id and id; at most `MAX_BUDGETS`."""
    query = _STANDINGS.where(*where) if where else _STANDINGS
    found = [
        BudgetStatus(
            budget=budget_of(row),
            at_us=at_us,
            spent_nanousd=int(row[-2]),
            held_nanousd=int(row[-1]),
            calendar=calendar,
        )
        for calendar, row in await _by_calendar(connection, query, at_us)
    ]
    return sorted(found, key=lambda each: (each.budget.scope, each.budget.scope_id, each.budget.budget_id))[
        :MAX_BUDGETS
    ]


async def _by_calendar(
    connection: AsyncConnection, query: Select[Any], at_us: int, **more: str
) -> list[tuple[Calendar, Any]]:
    """Return the rows of a query of budgets and their sums, each with its organisation's calendar, which bounds its period."""
    others, owner = (await read_calendars(connection)).others(), col(BudgetRow.organisation_id)
    own = [each for organisations in others.values() for each in organisations]
    parts = [(UTC_CALENDAR, query.where(owner.not_in(own)) if own else query)]
    parts += [(calendar, query.where(owner.in_(organisations))) for calendar, organisations in others.items()]
    return [
        (calendar, row)
        for calendar, part in parts
        for row in await connection.execute(part, {**_bounds(at_us, calendar), **more})
    ]


def budget_of(row: Sequence[Any]) -> Budget:
    """Return the budget of a row that begins with the budget columns."""
    return _budget_of(tuple(row[: len(Budget.__struct_fields__)]))


@lru_cache(maxsize=MAX_BUDGETS)
def _budget_of(values: tuple[Any, ...]) -> Budget:
    """Every process reads all budgets every few seconds, and few are others than before."""
    return Budget(**dict(zip(Budget.__struct_fields__, values, strict=True)))


async def _write_grants(connection: AsyncConnection, boot_id: str, given: Mapping[str, Grant]) -> None:
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


def _bounds(at_us: int, calendar: Calendar) -> dict[str, int]:
    """Return the parameters of `_spent_subquery`: where the periods at a moment, and what comes after them, begin and end."""
    bounds: dict[str, int] = {}
    for period in PERIODS:
        start, end = bounds_us(period, at_us, calendar)
        for when, parts in (("now", parts_of(start, end)), ("later", parts_of(end, NEVER_US))):
            bounds |= {f"{period}_{when}_{name}": value for name, value in parts._asdict().items()}
    return bounds


def _bound(when: str, name: str) -> ColumnElement[int]:
    # No `else_`: a period that the table does not name must not be taken for another one. Reading such a budget raises KeyError.
    branches = {period: bindparam(f"{period}_{when}_{name}", type_=BigInteger) for period in PERIODS}
    return case(branches, value=col(BudgetRow.period))


def _spent_subquery(scope_id: SQLColumnExpression[str] = _SCOPE_ID, *, later: bool = False) -> ColumnElement[int]:
    """Build the sum of what was booked in the budget's period, or with `later` after that period; see `_bounds`."""
    when = "later" if later else "now"
    days = _sum(SpendDay, col(SpendDay.day_us), scope_id, when, "days")
    # Most periods begin and end where days of UTC do, and so have no quarters to be looked up.
    quarters = [
        case(
            (
                _bound(when, f"{part}_from") < _bound(when, f"{part}_to"),
                _sum(SpendQuarter, col(SpendQuarter.start_us), scope_id, when, part),
            ),
            else_=literal_column("0"),
        )
        for part in ("head", "tail")
    ]
    return days + quarters[0] + quarters[1] - (0 if later else col(BudgetRow.opening_nanousd))


def _sum(
    table: type[SpendDay | SpendQuarter], start: Any, scope_id: SQLColumnExpression[str], when: str, part: str
) -> ScalarSelect[int]:
    of_budget = and_(col(table.scope) == col(BudgetRow.scope), col(table.scope_id) == scope_id)
    within = and_(start >= _bound(when, f"{part}_from"), start < _bound(when, f"{part}_to"))
    return (
        select(func.coalesce(func.sum(col(table.spent_nanousd)), 0))
        .where(of_budget, within)
        .correlate_except(table)
        .scalar_subquery()
    )


def _granted_subquery(
    *where: ColumnElement[bool], budget_id: SQLColumnExpression[str] = _BUDGET_ID
) -> ScalarSelect[int]:
    return (
        select(func.coalesce(func.sum(col(BudgetGrant.granted_nanousd)), 0))
        .where(col(BudgetGrant.budget_id) == budget_id, *where)
        .correlate_except(BudgetGrant)
        .scalar_subquery()
    )


def _queries_for_asked(*, sqlite: bool) -> tuple[Select[Any], Select[Any]]:
    """Build the queries for the rooms of asked budgets, and for the standings of those among them that are made for each one.

    The budgets come as one JSON list (`_as_asked`), however many they are, so that the database knows the statement.
    """
    if sqlite:
        each = func.json_each(bindparam("asked")).table_valued("value").alias("asked")
        parts = [func.json_extract(each.c.value, f"$[{place}]") for place in range(3)]
    else:
        asked = cast(bindparam("asked", type_=Text), JSONB)
        each = func.jsonb_array_elements(asked).table_valued(column("value", JSONB)).render_derived(name="asked")
        parts = [each.c.value[place].astext for place in range(3)]
    asked_id, stored, each_id = parts
    scope_id = case((each_id == "", _SCOPE_ID), else_=each_id)
    spent = _spent_subquery(scope_id).label("spent")
    base = select(*_COLUMNS, asked_id.label("asked_id"), each_id.label("each_id")).select_from(each)
    base = base.join(BudgetRow, stored == _BUDGET_ID)
    mine = col(BudgetGrant.boot_id) == bindparam("mine", type_=String)
    rooms = base.add_columns(
        spent,
        _spent_subquery(scope_id, later=True).label("spent_later"),
        _granted_subquery(~mine, budget_id=asked_id).label("granted"),
        _granted_subquery(mine, budget_id=asked_id).label("granted_mine"),
    ).where(col(BudgetRow.kind) == "hard")
    return rooms, base.add_columns(spent, _granted_subquery(budget_id=asked_id).label("granted"))


def _as_asked(ids: Iterable[str]) -> str:
    return msgspec.json.encode([(each, *split_id(each)) for each in ids]).decode()


def _asked_budget(row: Any) -> Budget:
    """Return the budget of a row of `_queries_for_asked` as it holds for whom it was asked."""
    return budget_of(row).of_each(row.each_id) if row.each_id else budget_of(row)


def _has_open_reserve(boot_id: ColumnElement[str]) -> ColumnElement[bool]:
    reserve, closing = aliased(LedgerEntry), aliased(LedgerEntry)
    closed = exists().where(
        col(closing.request_id) == col(reserve.request_id),
        col(closing.attempt) == col(reserve.attempt),
        col(closing.entry).in_(sorted(TERMINAL)),
    )
    return exists().where(
        col(reserve.boot_id) == boot_id,
        # Inlined as a literal, so that the planner can use the partial index.
        col(reserve.entry) == literal("reserve", literal_execute=True),
        ~closed,
    )


_STANDINGS: Final = (
    select(*_COLUMNS, _spent_subquery(), _granted_subquery())
    .order_by(col(BudgetRow.scope), col(BudgetRow.scope_id), col(BudgetRow.budget_id))
    .limit(MAX_BUDGETS)
)
"""Made once: every process asks it every few seconds, and making it took longer than its answer."""
