"""Budgets in the database, as operators set them."""

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.budgets.budget import Budget, BudgetStatus, Scope, check_id, checked, tag_id
from cost.budgets.budget_errors import BudgetConflict, UnknownBudget
from cost.budgets.grants import MAX_BUDGETS, budget_of, standings
from cost.tables import BudgetGrant, BudgetRow, rollup_day
from cost.times import wall_us
from settings.key_ids import first_id

_FIXED: Final = ("scope", "scope_id", "period", "kind")
_COLUMNS: Final = tuple(col(getattr(BudgetRow, name)) for name in Budget.__struct_fields__)
MAX_OF_ORGANISATION: Final = 1_000
_MAX_TAGS: Final = 1_000
_TAGS_OF_US: Final = 62 * 86_400_000_000
"""Time after its last use for which a tag counts as a team's own."""


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
                await connection.execute(update(BudgetRow).where(where).values(**values, updated_us=self._now_us()))
                return False
            await _check_room(connection, budget.organisation_id)
            now_us = self._now_us()
            try:
                await connection.execute(insert(BudgetRow).values(**values, created_us=now_us, updated_us=now_us))
            except IntegrityError as error:
                raise BudgetConflict(_conflict_message(budget)) from error
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

    async def remove(self, budget_id: str, organisation_id: str | None = None) -> Budget:
        """Delete a budget and its grants, and return it. None is any organisation. Raises UnknownBudget."""
        check_id(budget_id)
        async with self._engine.begin() as connection:
            found = await _read_budget(connection, col(BudgetRow.budget_id) == budget_id)
            if found is None or organisation_id not in {None, found.organisation_id}:
                raise UnknownBudget(f"there is no budget {budget_id!r}")
            await connection.execute(delete(BudgetRow).where(col(BudgetRow.budget_id) == budget_id))
            await connection.execute(delete(BudgetGrant).where(col(BudgetGrant.budget_id) == budget_id))
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
        """Return all budgets of one organisation."""
        return await self._standings(col(BudgetRow.organisation_id) == organisation_id)

    async def of_member(self, organisation_id: str, team_id: str, key_id: str) -> list[BudgetStatus]:
        """Return the budgets of a team, of one of its keys, and of the tags that the team used in the last 62 days."""
        return await self.of_team(organisation_id, team_id, [key_id])

    async def of_team(self, organisation_id: str, team_id: str, key_ids: Sequence[str]) -> list[BudgetStatus]:
        """Return the budgets of a team, of these of its keys, and of the tags that the team used in the last 62 days."""
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
            used = (await connection.execute(tags.limit(_MAX_TAGS))).scalars().all()
            mine = or_(
                _in_scope("team", [team_id]),
                _in_scope("key", sorted(set(map(first_id, key_ids)))),
                _in_scope("tag", [tag_id(organisation_id, tag) for tag in used]),
            )
            return await standings(connection, self._now_us(), col(BudgetRow.organisation_id) == organisation_id, mine)

    async def of_scope(self, organisation_id: str, scope: Scope, scope_id: str) -> list[BudgetStatus]:
        """Return the budgets of exactly one team, key or tag, and of nothing below it."""
        return await self._standings(col(BudgetRow.organisation_id) == organisation_id, _in_scope(scope, [scope_id]))

    async def _standings(self, *where: ColumnElement[bool]) -> list[BudgetStatus]:
        async with self._engine.connect() as connection:
            return await standings(connection, self._now_us(), *where)

    @staticmethod
    def _refuse_fixed_changes(found: Budget, budget: Budget) -> None:
        if found.organisation_id != budget.organisation_id:
            raise BudgetConflict(f"the id {budget.budget_id!r} is taken")
        if any(getattr(found, name) != getattr(budget, name) for name in _FIXED):
            raise BudgetConflict(
                f"{budget.budget_id!r} is a {found.kind} budget of {found.scope} {found.scope_id!r} for each "
                f"{found.period}; only its limit, on_exhausted and webhook can change. Use another id for another budget"
            )


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


def _conflict_message(budget: Budget) -> str:
    return (
        f"{budget.scope} {budget.scope_id!r} has a {budget.kind} budget for each {budget.period} already, or the id "
        f"{budget.budget_id!r} was taken just now"
    )
