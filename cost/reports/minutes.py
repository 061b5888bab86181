"""Cost and requests by minute and model, of a few hours: the ledger's own, as the roll-ups have hours at the finest."""

from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.dimensions import COLUMNS, UsageFilters
from cost.ledger.rollups import counted, ledger_amounts
from cost.reports.report_errors import BadQuery, refuse_archived
from cost.reports.scope import ReadScope
from cost.reports.usage import filtered, scoped
from cost.tables import LedgerEntry
from cost.times import HOUR_US, MINUTE_US

MAX_HOURS: Final = 4
_MOST_ROWS: Final = 20_000


class MinuteRow(NamedTuple):
    """One model's minute."""

    start_us: int
    model: str
    requests: int
    cost_nanousd: int


async def read_minutes(
    engine: AsyncEngine, scope: ReadScope, filters: UsageFilters, start_us: int, end_us: int
) -> list[MinuteRow]:
    """Return the minutes in which anything was booked. Raises BadQuery for more than `MAX_HOURS`."""
    if not 0 <= start_us < end_us <= start_us + MAX_HOURS * HOUR_US:
        raise BadQuery(f"minutes can be asked for of at most {MAX_HOURS} hours", param="end")
    columns = {name: getattr(LedgerEntry, name) for name in ("at_us", *COLUMNS.values())}
    # Inlined as a literal: two bound parameters would make GROUP BY and SELECT differ.
    minute: ColumnElement[Any] = columns["at_us"] - columns["at_us"] % literal_column(str(MINUTE_US))
    amounts = ledger_amounts()
    statement = (
        select(minute, columns["target_id"], func.sum(amounts["requests"]), func.sum(amounts["cost_nanousd"]))
        .where(*scoped(columns, scope), counted(start_us, end_us), *filtered(columns, filters))
        .group_by(minute, columns["target_id"])
        .limit(_MOST_ROWS)
    )
    async with engine.connect() as connection:
        await refuse_archived(connection, start_us, end_us)
        rows = (await connection.execute(statement)).all()
    return [MinuteRow(int(at), str(model), int(requests or 0), int(cost or 0)) for at, model, requests, cost in rows]
