"""Days that were compared with a provider's own books, so that a month's close knows which were not."""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, cast

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.reconcile.matching import Reconciliation
from cost.reconcile.reconciliation_report import Tolerance, differing
from cost.tables import ComparedDay
from cost.times import DAY_US

Outcome = Literal["agrees", "differs", "posted"]
Compared = Mapping[str, Mapping[int, Outcome]]
"""Results of each compared day, by provider in lower case."""
_MOST_CHARS: Final = 200


def outcomes(
    reconciliation: Reconciliation, tolerance: Tolerance, now_us: int, *, posted: bool = False
) -> dict[int, Outcome]:
    """Return the result of each past day that the files cover whole. With `posted` its differences are booked."""
    wrong = {line.day_us for line in differing(reconciliation, tolerance)}
    differs: Outcome = "posted" if posted else "differs"
    over = [day for day in reconciliation.whole_days if day + DAY_US <= now_us]
    return {day: differs if day in wrong else "agrees" for day in over}


async def keep_compared(
    connection: AsyncConnection,
    organisation_id: str,
    providers: Collection[str],
    found: Mapping[int, Outcome],
    now_us: int,
) -> None:
    """Keep the results of these days; the latest comparison of a day counts."""
    rows = [
        {
            "organisation_id": organisation_id,
            "day_us": day,
            "provider": provider[:_MOST_CHARS],
            "outcome": outcome,
            "compared_us": now_us,
        }
        for provider in sorted({name.lower() for name in providers})
        for day, outcome in sorted(found.items())
    ]
    if not rows:
        return
    kind: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    upsert = kind(ComparedDay)
    newer = {name: upsert.excluded[name] for name in ("outcome", "compared_us")}
    await connection.execute(
        upsert.on_conflict_do_update(index_elements=["organisation_id", "day_us", "provider"], set_=newer), rows
    )


async def compared_days(engine: AsyncEngine, organisation_id: str, start_us: int, end_us: int) -> Compared:
    """Return the result of each compared day of a time range, by provider."""
    query = select(col(ComparedDay.provider), col(ComparedDay.day_us), col(ComparedDay.outcome)).where(
        col(ComparedDay.organisation_id) == organisation_id,
        col(ComparedDay.day_us) >= start_us,
        col(ComparedDay.day_us) < end_us,
    )
    found: dict[str, dict[int, Outcome]] = {}
    async with engine.connect() as connection:
        for provider, day, outcome in await connection.execute(query):
            found.setdefault(provider, {})[day] = cast("Outcome", outcome)
    return found
