"""What each of some end users asked in a time: requests, tokens and failures of their newest attempts there.

One end user may have called millions of times, so each one's newest attempts are read alone, by their index.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, case, func, literal, select, union_all
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
    if not end_users:
        return {}
    statement = union_all(*(_newest(scope, each, start_us, end_us) for each in end_users))
    async with engine.connect() as connection:
        rows = (await connection.execute(statement)).all()
    return {
        str(end_user): EndUserFigures(
            attempts=int(attempts),
            requests=int(requests),
            served=int(served),
            failed=int(failed),
            tokens=int(tokens),
            last_us=int(last_us),
        )
        for end_user, attempts, requests, served, failed, tokens, last_us in rows
        if attempts
    }


def _newest(scope: ReadScope, end_user: str, start_us: int, end_us: int) -> Select[Any]:
    at_us = col(LedgerEntry.at_us)
    where = [
        col(LedgerEntry.organisation_id) == scope.organisation_id,
        col(LedgerEntry.end_user) == end_user,
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
        literal(end_user),
        func.count(),
        func.coalesce(func.sum(case((each.attempt == 1, 1), else_=0)), 0),
        func.coalesce(func.sum(case((each.served, 1), else_=0)), 0),
        func.coalesce(func.sum(case(((each.status >= _FAILED_FROM) | (each.status == 0), 1), else_=0)), 0),
        func.coalesce(func.sum(each.input_tokens + each.output_tokens), 0),
        func.coalesce(func.max(each.at_us), 0),
    )
