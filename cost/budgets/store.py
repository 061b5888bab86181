"""Budgets in the database, as operators set them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.budgets.budget import RAISE_FIELDS, Budget, BudgetStatus, check_id, check_limit, checked
from cost.budgets.budget_errors import BadBudget, BudgetConflict, UnknownBudget
from cost.budgets.budget_index import BudgetIndex
from cost.budgets.grants import MAX_BUDGETS, GrantStore, budget_of, standings
from cost.budgets.outlook import with_outlooks
from cost.budgets.periods import PERIODS, bounds_us, parts_of
from cost.budgets.topups import FIRST_TOPUP, MAX_TOPUPS, Topup, check_topup
from cost.calendar import Calendar
from cost.calendars import calendar_of
from cost.end_users import booked
from cost.scopes import ROWS, SCOPES, Scope, Spender
from cost.tables import BudgetGrant, BudgetRow, BudgetTopup, EndUserMonth, SpendDay, SpendQuarter, rollup_day
from cost.times import start_of, wall_us
from settings.key_ids import first_id

_FIXED: Final = ("scope", "scope_id", "period", "kind")
_COLUMNS: Final = tuple(col(getattr(BudgetRow, name)) for name in Budget.__struct_fields__)
MAX_OF_ORGANISATION: Final = 1_000
_MAX_TAGS: Final = 1_000
_TAGS_OF_US: Final = 62 * 86_400_000_000
"""Time after its last use for which a tag counts as a team's own."""


class EndUserStanding(msgspec.Struct, frozen=True):
    """What an end user of a team spent this month, and how the budgets stand that hold for them."""

    end_user: str
    spent_nanousd: int
    budgets: list[BudgetStatus]
    month_us: int = 0
    """First microsecond of the month."""


def new_budget_id() -> str:
    """Return a new random id."""
    return f"budget_{uuid4().hex[:16]}"


class BudgetStore:
    """The reader and only writer of the table `budget`."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._now_us = now_us

    async def put(self, budget: Budget) -> bool:
        """Insert or update a budget by its id; return True if it is new.

        Scope, scope id, period and kind never change: another budget has another id. Raises BudgetConflict when they
        would, or when another budget exists for the same; BadBudget when a field is not valid.
        """
        checked(budget)
        values = msgspec.structs.asdict(budget)
        async with self._engine.begin() as connection:
            found = await _read_budget(connection, col(BudgetRow.budget_id) == budget.budget_id)
            if found is not None:
                self._refuse_fixed_changes(found, budget)
                where = col(BudgetRow.budget_id) == budget.budget_id
                kept = {name: value for name, value in values.items() if name not in RAISE_FIELDS}
                if budget.period == "prepaid":
                    await _check_paid(connection, found, budget.limit_nanousd)
                    del kept["limit_nanousd"]
                await connection.execute(update(BudgetRow).where(where).values(**kept, updated_us=self._now_us()))
                return False
            await _check_room(connection, budget.organisation_id)
            now_us = self._now_us()
            values["opening_nanousd"] = 0
            try:
                await connection.execute(insert(BudgetRow).values(**values, created_us=now_us, updated_us=now_us))
            except IntegrityError as error:
                raise BudgetConflict(_conflict_message(budget)) from error
            if budget.period == "prepaid":
                # Only now is nothing of it deleted any more (`end_user_retention`).
                opening = {"opening_nanousd": await _ever_spent(connection, budget)}
                of_budget = col(BudgetRow.budget_id) == budget.budget_id
                await connection.execute(update(BudgetRow).where(of_budget).values(**opening))
            if budget.period == "prepaid" and budget.limit_nanousd:
                first = Topup(FIRST_TOPUP, budget.limit_nanousd, at_us=now_us)
                await connection.execute(delete(BudgetTopup).where(col(BudgetTopup.budget_id) == budget.budget_id))
                row = {"budget_id": budget.budget_id, **msgspec.structs.asdict(first)}
                await connection.execute(insert(BudgetTopup).values(row))
        return True

    async def set(self, budget: Budget) -> Budget:
        """Store a budget in place of the one with the same scope, period and kind, and return it as stored.

        It takes over the id of the one that it replaces. Raises as `put` does.
        """
        same = and_(*(col(getattr(BudgetRow, name)) == getattr(budget, name) for name in _FIXED))
        async with self._engine.connect() as connection:
            found = await _read_budget(connection, same)
        kept = budget if found is None else msgspec.structs.replace(budget, budget_id=found.budget_id)
        await self.put(kept)
        return kept

    async def raise_limit(self, budget_id: str, limit_nanousd: int, until_us: int) -> Budget:
        """Put another limit in force until a moment, after which the budget's own holds again; 0 ends a raise. Returns the budget.

        Raises UnknownBudget, and BadBudget for a moment that has passed and for a limit that raises nothing.
        """
        if until_us and until_us <= self._now_us():
            raise BadBudget("a raise ends in the future")
        check_id(budget_id)
        check_limit(limit_nanousd)
        values = {"raised_nanousd": limit_nanousd if until_us else 0, "raised_until_us": until_us}
        async with self._engine.begin() as connection:
            await lock_budget(connection, budget_id)
            found = await _read_budget(connection, col(BudgetRow.budget_id) == budget_id)
            if found is None:
                raise UnknownBudget(f"there is no budget {budget_id!r}")
            if until_us and limit_nanousd <= found.limit_nanousd:
                raise BadBudget("a raise is to more than the budget's own limit; set the budget itself to lower it")
            change = update(BudgetRow).where(col(BudgetRow.budget_id) == budget_id)
            await connection.execute(change.values(**values, updated_us=self._now_us()))
        return msgspec.structs.replace(found, **values)

    async def top_up(self, budget_id: str, topup: Topup) -> tuple[Budget, bool]:
        """Pay into a prepaid budget, or take back with a negative amount; once for each top-up's id. Returns the budget and whether it
        was new.

        Raises UnknownBudget, and BadBudget for another kind of budget and for what would leave less than nothing paid in.
        """
        check_id(budget_id)
        check_topup(topup)
        async with self._engine.begin() as connection:
            await lock_budget(connection, budget_id)
            found = await _read_budget(connection, col(BudgetRow.budget_id) == budget_id)
            if found is None:
                raise UnknownBudget(f"there is no budget {budget_id!r}")
            if found.period != "prepaid":
                raise BadBudget(
                    f"{budget_id!r} is a {PERIODS[found.period].adjective} budget; only a prepaid one is topped up"
                )
            known = (col(BudgetTopup.budget_id) == budget_id, col(BudgetTopup.topup_id) == topup.topup_id)
            before = await connection.scalar(select(col(BudgetTopup.amount_nanousd)).where(*known))
            if before is not None:
                if int(before) != topup.amount_nanousd:
                    raise BudgetConflict(f"the top-up {topup.topup_id!r} was made already, of another amount")
                return found, False
            paid = found.limit_nanousd + topup.amount_nanousd
            if paid < 0:
                raise BadBudget("more would be taken back than was paid in")
            check_limit(paid)
            now_us = self._now_us()
            row = {"budget_id": budget_id, **msgspec.structs.asdict(topup), "at_us": now_us}
            await connection.execute(insert(BudgetTopup).values(row))
            changed = update(BudgetRow).where(col(BudgetRow.budget_id) == budget_id)
            await connection.execute(changed.values(limit_nanousd=paid, updated_us=now_us))
        return msgspec.structs.replace(found, limit_nanousd=paid), True

    async def topups(self, budget_id: str) -> list[Topup]:
        """Return what was paid into a budget, oldest first."""
        columns = (*(col(getattr(BudgetTopup, name)) for name in Topup.__struct_fields__),)
        query = select(*columns).where(col(BudgetTopup.budget_id) == budget_id)
        query = query.order_by(col(BudgetTopup.at_us), col(BudgetTopup.topup_id)).limit(MAX_TOPUPS)
        async with self._engine.connect() as connection:
            return [Topup(*row) for row in await connection.execute(query)]

    async def remove(self, budget_id: str, organisation_id: str | None = None) -> Budget:
        """Delete a budget and its grants, and return it. None is any organisation. Raises UnknownBudget."""
        check_id(budget_id)
        async with self._engine.begin() as connection:
            found = await _read_budget(connection, col(BudgetRow.budget_id) == budget_id)
            if found is None or organisation_id not in {None, found.organisation_id}:
                raise UnknownBudget(f"there is no budget {budget_id!r}")
            await connection.execute(delete(BudgetRow).where(col(BudgetRow.budget_id) == budget_id))
            granted = col(BudgetGrant.budget_id)
            mine = or_(granted == budget_id, granted.startswith(f"{budget_id}/", autoescape=True))
            await connection.execute(delete(BudgetGrant).where(mine))
        return found

    async def get(self, budget_id: str, organisation_id: str | None = None) -> BudgetStatus:
        """Return the status of one budget. None is any organisation. Raises UnknownBudget."""
        check_id(budget_id)
        where = [col(BudgetRow.budget_id) == budget_id]
        if organisation_id is not None:
            where.append(col(BudgetRow.organisation_id) == organisation_id)
        found = await self._standings(*where)
        if not found:
            raise UnknownBudget(f"there is no budget {budget_id!r}")
        return found[0]

    async def all(self) -> list[BudgetStatus]:
        """Return every organisation's budgets, for operators."""
        return await self._standings()

    async def of_organisation(self, organisation_id: str) -> list[BudgetStatus]:
        """Return the budgets of one organisation."""
        return await self._standings(col(BudgetRow.organisation_id) == organisation_id)

    async def standings_of(self, organisation_id: str, scopes: Collection[Scope] | None = None) -> list[BudgetStatus]:
        """Return the same, all or those of some scopes, without what is expected of them, for those who tell nothing of that."""
        where = [col(BudgetRow.organisation_id) == organisation_id]
        if scopes is not None:
            where.append(col(BudgetRow.scope).in_(sorted(scopes)))
        async with self._engine.connect() as connection:
            return await standings(connection, self._now_us(), *where)

    async def of_member(self, organisation_id: str, team_id: str, key_id: str) -> list[BudgetStatus]:
        """Return the budgets of a team and its parts, of one of its keys, and of the tags that the team used in the last 62 days."""
        return await self.of_team(organisation_id, team_id, [key_id])

    async def of_team(
        self, organisation_id: str, team_id: str, key_ids: Sequence[str], budget_id: str | None = None
    ) -> list[BudgetStatus]:
        """Return the budgets of a team, of its models, providers and end users, of these of its keys, and of the tags that the team
        used in the last 62 days; or one of these.
        """
        owned = col(BudgetRow.organisation_id) == organisation_id
        only = [] if budget_id is None else [col(BudgetRow.budget_id) == budget_id]
        of_tags = select(col(BudgetRow.budget_id)).where(owned, col(BudgetRow.scope) == "tag", *only).limit(1)
        tags = (
            select(rollup_day.c.tag)
            .distinct()
            .where(
                rollup_day.c.team_id == team_id,
                rollup_day.c.organisation_id == organisation_id,
                rollup_day.c.start_us >= self._now_us() - _TAGS_OF_US,
                rollup_day.c.tag != "",
            )
        )
        async with self._engine.connect() as connection:
            # To find them, all that the team did is read.
            has_tags = await connection.scalar(of_tags) is not None
            used = (await connection.execute(tags.limit(_MAX_TAGS))).scalars().all() if has_tags else []
            parts = (_of_team(each.name, team_id) for each in SCOPES if each.owner == "team")
            mine = or_(
                _in_scope("team", [team_id]),
                _in_scope("key", sorted(set(map(first_id, key_ids)))),
                _in_scope("tag", [ROWS["tag"].stored(tag, organisation_id) for tag in used]),
                *parts,
            )
            return await with_outlooks(connection, await standings(connection, self._now_us(), owned, mine, *only))

    async def keys_with_one(self, organisation_id: str, budget_id: str | None = None) -> list[str]:
        """Return the ids of an organisation's keys that have a budget of their own, or of the one that this budget is of: they are
        few where a team has thousands of keys.
        """
        query = select(col(BudgetRow.scope_id)).distinct()
        query = query.where(col(BudgetRow.scope) == "key", col(BudgetRow.organisation_id) == organisation_id)
        if budget_id is not None:
            query = query.where(col(BudgetRow.budget_id) == budget_id)
        async with self._engine.connect() as connection:
            return list(await connection.scalars(query.limit(MAX_BUDGETS)))

    async def of_scope(self, organisation_id: str, scope: Scope, scope_id: str) -> list[BudgetStatus]:
        """Return the budgets of exactly one team, key or tag, and of nothing below it."""
        return await self._standings(col(BudgetRow.organisation_id) == organisation_id, _in_scope(scope, [scope_id]))

    async def largest_end_users(
        self,
        organisation_id: str,
        team_id: str,
        most: int = 10,
        *,
        month: date | None = None,
        after: tuple[int, str] | None = None,
        begins: str = "",
    ) -> list[EndUserStanding]:
        """Return the end users of a team that spent most in the month that begins with a day, usually this one, with the budgets that
        hold for each now; `after` the amount and name of another, or those whose name begins so.
        """
        now_us = self._now_us()
        calendar = await calendar_of(self._engine, organisation_id)

        def chosen(name: Any, amount: Any) -> Iterator[ColumnElement[bool]]:
            if after is not None:
                yield or_(amount < after[0], and_(amount == after[0], name > after[1]))
            if begins:
                yield or_(func.substr(name, 1, len(begins)) == begins, name == booked(begins))

        first = calendar.day(now_us).replace(day=1) if month is None else month
        async with self._engine.connect() as connection:
            found = [
                (str(name), int(amount))
                for query in _largest(team_id, calendar, first, now_us, most, chosen)
                for name, amount in await connection.execute(query)
            ]
            largest = dict(sorted(found, key=lambda each: (-each[1], each[0]))[:most])
            return await self._of_end_users(connection, organisation_id, team_id, largest, now_us, calendar)

    async def of_end_user(self, organisation_id: str, team_id: str, end_user: str) -> EndUserStanding:
        """Return what one end user of a team spent in this month, with the budgets that hold; one who never called has spent
        nothing.
        """
        now_us = self._now_us()
        calendar = await calendar_of(self._engine, organisation_id)
        parts = parts_of(*bounds_us("month", now_us, calendar))
        quarter = col(SpendQuarter.start_us)
        sums = [
            _spent_by(SpendDay, f"{team_id}/{end_user}").where(
                col(SpendDay.day_us) >= parts.days_from, col(SpendDay.day_us) < parts.days_to
            ),
            _spent_by(SpendQuarter, f"{team_id}/{end_user}").where(
                or_(
                    and_(quarter >= parts.head_from, quarter < parts.head_to),
                    and_(quarter >= parts.tail_from, quarter < parts.tail_to),
                )
            ),
        ]
        async with self._engine.connect() as connection:
            amounts = {end_user: sum([int(await connection.scalar(each) or 0) for each in sums])}
            return (await self._of_end_users(connection, organisation_id, team_id, amounts, now_us, calendar))[0]

    async def _of_end_users(
        self,
        connection: AsyncConnection,
        organisation_id: str,
        team_id: str,
        spent_nanousd: Mapping[str, int],
        now_us: int,
        calendar: Calendar,
    ) -> list[EndUserStanding]:
        row = ROWS["end_user"]
        names = {
            name: Spender(organisation_id=organisation_id, team_id=team_id, key_id="", end_user=name)
            for name in spent_nanousd
        }
        places = {place for each in names.values() for place in (row.id_of(each), *row.defaults_of(each))}
        known = {
            each.budget.budget_id: each
            for each in await standings(connection, now_us, _in_scope(row.name, sorted(places)))
        }
        month_us = bounds_us("month", now_us, calendar)[0]
        index = BudgetIndex(each.budget for each in known.values())
        holding = {name: [each.budget_id for each in index.of(spender)] for name, spender in names.items()}
        if made := [each for found in holding.values() for each in found if each not in known]:
            for status in await GrantStore(self._engine).standings_of_each(made, now_us):
                known[status.budget.budget_id] = status
        return [
            EndUserStanding(name, amount, [known[each] for each in holding[name] if each in known], month_us)
            for name, amount in spent_nanousd.items()
        ]

    async def _standings(self, *where: ColumnElement[bool]) -> list[BudgetStatus]:
        async with self._engine.connect() as connection:
            return await with_outlooks(connection, await standings(connection, self._now_us(), *where))

    @staticmethod
    def _refuse_fixed_changes(found: Budget, budget: Budget) -> None:
        if found.organisation_id != budget.organisation_id:
            raise BudgetConflict(f"the id {budget.budget_id!r} is taken")
        if any(getattr(found, name) != getattr(budget, name) for name in _FIXED):
            raise BudgetConflict(
                f"{budget.budget_id!r} is a {found.kind} budget of {found.in_words} for each "
                f"{found.period}; only its limit, on_exhausted and webhook can change. Use another id for another budget"
            )


async def lock_budget(connection: AsyncConnection, budget_id: str) -> None:
    """Wait for whoever changes this budget, before it is read."""
    if connection.dialect.name == "sqlite":
        # Another writer is kept out from the first write on.
        where = col(BudgetRow.budget_id) == budget_id
        await connection.execute(update(BudgetRow).where(where).values(updated_us=col(BudgetRow.updated_us)))
        return
    locked = select(col(BudgetRow.budget_id)).where(col(BudgetRow.budget_id) == budget_id).with_for_update()
    await connection.execute(locked)


async def _check_paid(connection: AsyncConnection, found: Budget, limit_nanousd: int) -> None:
    """Raise BadBudget for another amount of a prepaid budget than is paid in, or was at first, as whoever sets it again says."""
    of_first = (col(BudgetTopup.budget_id) == found.budget_id, col(BudgetTopup.topup_id) == FIRST_TOPUP)
    first = await connection.scalar(select(col(BudgetTopup.amount_nanousd)).where(*of_first))
    if limit_nanousd not in {found.limit_nanousd, first or 0}:
        raise BadBudget("a prepaid budget's amount is what was paid in: top it up instead")


async def _ever_spent(connection: AsyncConnection, budget: Budget) -> int:
    spent = select(func.coalesce(func.sum(col(SpendDay.spent_nanousd)), 0))
    of_budget = (col(SpendDay.scope) == budget.scope, col(SpendDay.scope_id) == budget.scope_id)
    return int(await connection.scalar(spent.where(*of_budget)) or 0)


async def _check_room(connection: AsyncConnection, organisation_id: str) -> None:
    """Raise BudgetConflict when the organisation, or the whole database, has its most budgets."""
    counted = select(func.count()).select_from(BudgetRow)
    mine = counted.where(col(BudgetRow.organisation_id) == organisation_id)
    for question, most in ((mine, MAX_OF_ORGANISATION), (counted, MAX_BUDGETS)):
        if (await connection.scalar(question) or 0) >= most:
            raise BudgetConflict(f"there are {most} budgets already; remove some first")


async def _read_budget(connection: AsyncConnection, where: ColumnElement[bool]) -> Budget | None:
    row: Sequence[Any] | None = (await connection.execute(select(*_COLUMNS).where(where))).first()
    return None if row is None else budget_of(row)


def _in_scope(scope: str, ids: Sequence[str]) -> ColumnElement[bool]:
    return and_(col(BudgetRow.scope) == scope, col(BudgetRow.scope_id).in_(ids))


def _spent_by(table: type[SpendDay | SpendQuarter], scope_id: str) -> Any:
    return select(func.sum(col(table.spent_nanousd))).where(
        col(table.scope) == "end_user", col(table.scope_id) == scope_id
    )


def _largest(
    team_id: str,
    calendar: Calendar,
    first: date,
    now_us: int,
    most: int,
    chosen: Callable[[Any, Any], Iterator[ColumnElement[bool]]],
) -> Iterator[Any]:
    """Yield the queries for the end users that spent most in a month of a calendar: of those that spent nothing where it
    differs from the month in UTC, and of those that did, who are few beside all of them.
    """
    own = bounds_us("month", calendar.start(first), calendar)
    utc = bounds_us("month", start_of(first))
    name, amount = col(EndUserMonth.end_user), col(EndUserMonth.spent_nanousd)
    within = (col(EndUserMonth.team_id) == team_id, col(EndUserMonth.month_us) == utc[0])
    months = select(name, amount).where(*within)
    edges = [
        (min(mine, theirs), max(mine, theirs), 1 if is_more else -1)
        for mine, theirs, is_more in ((own[0], utc[0], own[0] < utc[0]), (own[1], utc[1], own[1] > utc[1]))
        if min(mine, theirs) < min(max(mine, theirs), now_us + 1)
    ]
    if not edges:
        yield months.where(*chosen(name, amount)).order_by(amount.desc(), name).limit(most)
        return
    at, scope_id = col(SpendQuarter.start_us), col(SpendQuarter.scope_id)
    place = f"{team_id}/"
    sign = case(*((and_(at >= since, at < until), sign) for since, until, sign in edges), else_=0)
    others = (
        select(
            func.substr(scope_id, len(place) + 1).label("end_user"),
            func.sum(sign * col(SpendQuarter.spent_nanousd)).label("more"),
        )
        .where(
            col(SpendQuarter.scope) == "end_user",
            func.substr(scope_id, 1, len(place)) == place,
            or_(*(and_(at >= since, at < until) for since, until, _ in edges)),
        )
        .group_by(scope_id)
        .cte("others")
    )
    yield (
        months.where(name.not_in(select(others.c.end_user)), *chosen(name, amount))
        .order_by(amount.desc(), name)
        .limit(most)
    )
    whole = func.coalesce(amount, 0) + others.c.more
    joined = others.outerjoin(EndUserMonth, and_(*within, name == others.c.end_user))
    spent = select(others.c.end_user, whole).select_from(joined).where(whole != 0, *chosen(others.c.end_user, whole))
    yield spent.order_by(whole.desc(), others.c.end_user).limit(most)


def _of_team(scope: Scope, team_id: str) -> ColumnElement[bool]:
    """Return the condition for the parts of a team's spending that such a scope makes."""
    return and_(col(BudgetRow.scope) == scope, col(BudgetRow.scope_id).startswith(f"{team_id}/", autoescape=True))


def _conflict_message(budget: Budget) -> str:
    return (
        f"{budget.in_words} has a {budget.kind} budget for each {budget.period} already, or the id "
        f"{budget.budget_id!r} was taken just now"
    )
