"""The newest attempts of all processes, from the ledger. The number of index rows read is bounded, however large the
ledger is.
"""

from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.entries import TERMINAL
from cost.tables import LedgerEntry

LOOKED_AT: Final = 3
"""Index rows read for each attempt wanted: an attempt's reservation and postings stand between the ends."""


class EndedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's end: figures and names, nothing of prompt or answer."""

    request_id: str
    attempt: int
    entry: str
    at_us: int
    organisation_id: str
    team_id: str
    tier: str
    alias: str
    target_id: str
    deployment_id: str
    reason: str
    complexity: float | None
    status: int
    stream: bool
    served: bool
    origin: str
    arm: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_nanousd: int | None
    baseline_nanousd: int | None
    ttft_us: int | None
    given_us: int | None
    duration_us: int | None

    @property
    def key(self) -> tuple[str, int, str]:
        """The attempt's unique key in the ledger: request, attempt number and entry."""
        return (self.request_id, self.attempt, self.entry)

    @property
    def failed(self) -> bool:
        """True if the upstream failed: an error, a broken stream, or no end at all."""
        return is_failure(self.entry, self.status)

    @property
    def turned_away(self) -> bool:
        """True if the upstream, or a queue before it, had no room (429)."""
        return self.status == _TOO_MANY


_FIRST_FAILURE: Final = 500
_TOO_MANY: Final = 429
_NAMES: Final = EndedAttempt.__struct_fields__


def is_failure(entry: str, status: int) -> bool:
    """Return True for an attempt's end that says that the upstream failed."""
    return entry == "expire" or status >= _FIRST_FAILURE or status == 0


async def newest(engine: AsyncEngine, most: int, *, since_us: int = 0, until_us: int = 2**62) -> list[EndedAttempt]:
    """Return the newest attempts that ended in a time range, newest first; fewer than `most` where other entries take up the
    rows that are read.
    """
    at = col(LedgerEntry.at_us)
    looked_at = (
        select(*(getattr(LedgerEntry, name) for name in _NAMES))
        .where(at >= since_us, at < until_us)
        .order_by(at.desc())
        .limit(most * LOOKED_AT)
        .subquery()
    )
    wanted = (
        select(looked_at)
        .where(looked_at.c.entry.in_(sorted(TERMINAL)))
        .order_by(looked_at.c.at_us.desc(), looked_at.c.request_id, looked_at.c.attempt)
        .limit(most)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(wanted)).all()
    return [EndedAttempt(**dict(zip(_NAMES, row, strict=True))) for row in rows]
