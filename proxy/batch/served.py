"""The targets that answered the latest lines of a batch, as the ledger has them."""

from typing import Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.tables import LedgerEntry
from proxy.batch.batch import LineState
from proxy.batch.tables import BatchLine

LATEST: Final = 500
"""The number of lines that are read, by the order in which they are begun: a page asks again every two seconds."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A target's part in a batch's latest lines. `cost_nanousd` is None where one of them has no price."""

    target_id: str
    pool: str
    """The pool of own engines; empty for a paid target."""
    lines: int
    tokens: int
    cost_nanousd: int | None


async def latest_served(engine: AsyncEngine, team_id: str, batch_id: str) -> list[Served]:
    """Return the targets, those with the most lines first. A line that failed at one and was answered by another
    counts at both.
    """
    latest = (
        select(col(BatchLine.request_id))
        .where(col(BatchLine.batch_id) == batch_id, col(BatchLine.state) == LineState.ANSWERED)
        .order_by(col(BatchLine.place).desc())
        .limit(LATEST)
        .subquery()
    )
    lines = func.count(col(LedgerEntry.request_id).distinct())
    query = (
        select(
            col(LedgerEntry.target_id),
            col(LedgerEntry.pool),
            lines.label("lines"),
            func.sum(col(LedgerEntry.input_tokens) + col(LedgerEntry.output_tokens)).label("tokens"),
            func.sum(col(LedgerEntry.cost_nanousd)).label("cost"),
            func.count().label("entries"),
            func.count(col(LedgerEntry.cost_nanousd)).label("priced"),
        )
        .where(
            col(LedgerEntry.request_id).in_(select(latest.c.request_id)),
            col(LedgerEntry.team_id) == team_id,
            col(LedgerEntry.entry) == "settle",
        )
        .group_by(col(LedgerEntry.target_id), col(LedgerEntry.pool))
        .order_by(lines.desc(), col(LedgerEntry.target_id))
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return [
        Served(
            target_id=row["target_id"],
            pool=row["pool"],
            lines=row["lines"],
            tokens=int(row["tokens"]),
            cost_nanousd=int(row["cost"]) if row["priced"] == row["entries"] else None,
        )
        for row in rows
    ]
