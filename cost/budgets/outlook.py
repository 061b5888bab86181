"""Whether budgets last until their reset, and when they run out. Pages, APIs and commands all tell what is found here."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from cost.budgets.budget import BudgetStatus, Outlook
from cost.forecast import LOOKS_BACK_DAYS, coming_days
from cost.scopes import Scope
from cost.tables import SpendDay
from cost.times import DAY_US

AHEAD_DAYS: Final = 90
"""Days that are looked at of a budget that never resets."""
_AT_ONCE: Final = 500
"""Scope ids that one query asks for."""


def outlook(standing: BudgetStatus, days: Mapping[int, int]) -> Outlook | None:
    """Return what is expected of a budget by what it counted on each UTC day.

    None where that is not known: with fewer than three whole days, of an hourly budget, whose hours no day tells, and of
    one for each of many.
    """
    budget, ends_us = standing.budget, standing.renews_us
    if budget.for_each or budget.period == "hour":
        return None
    until_us = standing.at_us + AHEAD_DAYS * DAY_US if ends_us is None else ends_us
    coming = coming_days(days, now_us=standing.at_us, end_us=until_us)
    if coming is None:
        return None
    spent, runs_out_us = standing.spent_nanousd, None
    for day_us, expected in coming:
        spent += expected
        # A raise may end before the period does.
        if runs_out_us is None and spent >= budget.limit_at(max(day_us, standing.at_us)):
            runs_out_us = day_us
    return Outlook(expected_nanousd=None if ends_us is None else spent, runs_out_us=runs_out_us)


async def with_outlooks(connection: AsyncConnection, standings: Sequence[BudgetStatus]) -> list[BudgetStatus]:
    """Return the budgets with what is expected of each."""
    days = await _days(connection, standings)
    nothing: dict[int, int] = {}
    return [
        msgspec.structs.replace(
            each, outlook=outlook(each, days.get((each.budget.scope, each.budget.scope_id), nothing))
        )
        for each in standings
    ]


async def _days(
    connection: AsyncConnection, standings: Sequence[BudgetStatus]
) -> dict[tuple[str, str], dict[int, int]]:
    """Return what each of the budgets' scopes spent, by UTC day, as budgets count it."""
    scopes: dict[Scope, set[str]] = {}
    for each in standings:
        if not each.budget.for_each:
            scopes.setdefault(each.budget.scope, set()).add(each.budget.scope_id)
    since_us = min((each.at_us for each in standings), default=0) // DAY_US * DAY_US - LOOKS_BACK_DAYS * DAY_US
    found: dict[tuple[str, str], dict[int, int]] = {}
    for scope, ids in scopes.items():
        ordered = sorted(ids)
        for begin in range(0, len(ordered), _AT_ONCE):
            query = select(col(SpendDay.scope_id), col(SpendDay.day_us), col(SpendDay.spent_nanousd)).where(
                col(SpendDay.scope) == scope,
                col(SpendDay.scope_id).in_(ordered[begin : begin + _AT_ONCE]),
                col(SpendDay.day_us) >= since_us,
            )
            for scope_id, day_us, spent in await connection.execute(query):
                found.setdefault((scope, scope_id), {})[int(day_us)] = int(spent)
    return found
