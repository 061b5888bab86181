"""The FOCUS export with its inputs: unit prices from the price store, names of organisations and teams."""

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
    """Return an export of this database, with the names that organisations and teams have now."""
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
            # The booked cost is known all the same; only the unit price is missing.
            return None

    return FocusExport(engine, figures, names, wall_us)
