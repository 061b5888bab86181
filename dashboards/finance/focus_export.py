"""The FOCUS export with what it must be told: prices' figures, and what accounts are called."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.tables import Organisation, Team
from cost.errors import PriceError
from cost.price_book.store import PriceStore
from cost.prices import Price
from cost.reports.focus import FocusExport, FocusNames
from cost.times import wall_us


async def focus_export(engine: AsyncEngine) -> FocusExport:
    """An export of this database. It knows the names as they are now."""
    async with engine.connect() as connection:
        organisations = await connection.execute(select(col(Organisation.organisation_id), col(Organisation.name)))
        teams = await connection.execute(select(col(Team.team_id), col(Team.name)))
        names = FocusNames(
            organisations={each.organisation_id: each.name for each in organisations},
            teams={each.team_id: each.name for each in teams},
        )
    store = PriceStore(engine)

    async def figures(target_id: str, version: str) -> Price | None:
        try:
            return await store.figures(target_id, version)
        except PriceError:
            # What was booked is known all the same; only its unit price is not.
            return None

    return FocusExport(engine, figures, names, wall_us)
