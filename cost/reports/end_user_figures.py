"""What each of some end users asked in a time: requests, tokens and failures of their newest attempts there.

One end user may have called millions of times, so each one's newest attempts are read alone, by their index.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, String, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.entries import TERMINAL
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import HAS_END_USER
from cost.tables import LedgerEntry

MOST_ATTEMPTS: Final = 500
MOST_END_USERS: Final = 50
_FAILED_FROM: Final = 400


class EndUserFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an end user's newest attempts, `MOST_ATTEMPTS` at most."""

    attempts: int
    requests: int
    served: int
    failed: int
    """Attempts that ended with an error, or without a status."""
    tokens: int
    last_us: int

    @property
    def is_whole(self) -> bool:
        """True where these are all attempts of the time."""
        return self.attempts < MOST_ATTEMPTS


async def read_end_user_figures(
    engine: AsyncEngine, scope: ReadScope, end_users: Sequence[str], start_us: int, end_us: int
) -> dict[str, EndUserFigures]:
    """Return the figures of those end users who called. Raises BadQuery for too many."""
    if len(end_users) > MOST_END_USERS:
        raise BadQuery(f"at most {MOST_END_USERS} can be asked for at once", param="end_user")
    found: dict[str, EndUserFigures] = {}
    statement = _newest(scope, start_us, end_us)
    async with engine.connect() as connection:
        # One statement for each is quicker than one of all: that is as long to write as these are to run.
        for end_user in end_users:
            row = (await connection.execute(statement, {"sought": end_user})).one()
            if row[0]:
                figures = dict(zip(EndUserFigures.__struct_fields__, map(int, row), strict=True))
                found[end_user] = EndUserFigures(**figures)
    return found


def _newest(scope: ReadScope, start_us: int, end_us: int) -> Select[Any]:
    at_us = col(LedgerEntry.at_us)
    where = [
        col(LedgerEntry.organisation_id) == scope.organisation_id,
        col(LedgerEntry.end_user) == bindparam("sought", type_=String()),
        HAS_END_USER,
        at_us >= start_us,
        at_us < end_us,
        col(LedgerEntry.entry).in_(sorted(TERMINAL)),
        col(LedgerEntry.origin) == "caller",
    ]
    if scope.team_id is not None:
        # Written so that no other index serves it.
        where.append(col(LedgerEntry.team_id).concat("") == scope.team_id)
    columns = ("at_us", "attempt", "served", "status", "input_tokens", "output_tokens")
    newest = (
        select(*(getattr(LedgerEntry, name) for name in columns))
        .where(*where)
        .order_by(at_us.desc())
        .limit(MOST_ATTEMPTS)
        .subquery()
    )
    each = newest.c
    return select(
        func.count(),
        func.coalesce(func.sum(case((each.attempt == 1, 1), else_=0)), 0),
        func.coalesce(func.sum(case((each.served, 1), else_=0)), 0),
        func.coalesce(func.sum(case(((each.status >= _FAILED_FROM) | (each.status == 0), 1), else_=0)), 0),
        func.coalesce(func.sum(each.input_tokens + each.output_tokens), 0),
        func.coalesce(func.max(each.at_us), 0),
    )
