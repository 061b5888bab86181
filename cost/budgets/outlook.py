"""Whether budgets last until their reset, and when they run out. Pages, APIs and commands all tell what is found here."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Select, String, bindparam, case, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from cost.budgets.budget import BudgetStatus, Outlook
from cost.forecast import LOOKS_BACK_DAYS, WEEK, Habits, Mean, coming_days, rest_of
from cost.scopes import Scope
from cost.tables import SpendDay
from cost.times import DAY_US

AHEAD_DAYS: Final = 90
"""Days that are looked at of a budget that never resets."""
_AT_ONCE: Final = 500
"""Scope ids that one query asks for."""


def outlook(standing: BudgetStatus, habits: Habits | None) -> Outlook | None:
    """Return what is expected of a budget by what it counted on each UTC day.

    None where that is not known: with fewer than three whole days, of an hourly budget, whose hours no day tells, and of
    one for each of many.
    """
    budget, ends_us, now_us = standing.budget, standing.renews_us, standing.at_us
    if habits is None or budget.for_each or budget.period == "hour":
        return None
    means = habits.means(now_us - now_us % DAY_US)
    if means is None:
        return None
    until_us = now_us + AHEAD_DAYS * DAY_US if ends_us is None else ends_us
    spent = standing.spent_nanousd + rest_of(means, now_us=now_us, end_us=until_us)
    return Outlook(
        expected_nanousd=None if ends_us is None else spent,
        # What is counted never falls and a limit never rises, so only one that is reached in the end is reached before.
        runs_out_us=_reached_us(standing, means, until_us) if spent >= _limit_on(standing, until_us - 1) else None,
    )


def _reached_us(standing: BudgetStatus, means: Sequence[Mean], until_us: int) -> int | None:
    """Return the first day on which the limit is reached."""
    spent = standing.spent_nanousd
    for day_us, expected in coming_days(means, now_us=standing.at_us, end_us=until_us):
        spent += expected
        if spent >= _limit_on(standing, day_us):
            return day_us
    return None


def _limit_on(standing: BudgetStatus, at_us: int) -> int:
    """Return the limit on the day of a moment, today's being that of now: a raise may end before the period does."""
    return standing.budget.limit_at(max(at_us - at_us % DAY_US, standing.at_us))


async def with_outlooks(connection: AsyncConnection, standings: Sequence[BudgetStatus]) -> list[BudgetStatus]:
    """Return the budgets with what is expected of each."""
    habits = await _habits(connection, standings)
    return [
        msgspec.structs.replace(each, outlook=outlook(each, habits.get((each.budget.scope, each.budget.scope_id))))
        for each in standings
    ]


async def _habits(connection: AsyncConnection, standings: Sequence[BudgetStatus]) -> dict[tuple[str, str], Habits]:
    """Return what the days of each of the budgets' scopes tell, as budgets count them; summed up by the database, which of a
    thousand budgets has thirty thousand days.
    """
    scopes: dict[Scope, set[str]] = {}
    for each in standings:
        if not each.budget.for_each:
            scopes.setdefault(each.budget.scope, set()).add(each.budget.scope_id)
    today_us = min((each.at_us for each in standings), default=0) // DAY_US * DAY_US
    found: dict[tuple[str, str], Habits] = {}
    for scope, ids in scopes.items():
        ordered = sorted(ids)
        for begin in range(0, len(ordered), _AT_ONCE):
            some = ordered[begin : begin + _AT_ONCE]
            when = {"scope": scope, "ids": some, "since": today_us - LOOKS_BACK_DAYS * DAY_US, "today": today_us}
            for scope_id, first_us, *sums in await connection.execute(_HABITS, when):
                found[scope, scope_id] = Habits(int(first_us), [int(each) for each in sums])
    return found


def _habits_query() -> Select[Any]:
    day_us, scope_id = col(SpendDay.day_us), col(SpendDay.scope_id)
    weekday = day_us // literal_column(str(DAY_US), BigInteger) % literal_column(str(WEEK), BigInteger)
    sums = [
        func.sum(case((weekday == literal_column(str(each), BigInteger), col(SpendDay.spent_nanousd)), else_=0))
        for each in range(WEEK)
    ]
    columns: list[Any] = [scope_id, func.min(day_us), *sums]
    return (
        select(*columns)
        .where(
            col(SpendDay.scope) == bindparam("scope", type_=String),
            scope_id.in_(bindparam("ids", expanding=True, type_=String)),
            day_us >= bindparam("since", type_=BigInteger),
            day_us < bindparam("today", type_=BigInteger),
        )
        .group_by(scope_id)
    )


_HABITS: Final = _habits_query()
"""Made once."""
