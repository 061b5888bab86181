"""The link between a person and an account of an OpenID provider."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.people.tables import PersonRow


async def is_linked(engine: AsyncEngine, person_id: str, organisation_id: str) -> bool:
    """Return True when an OpenID subject is stored for this person of this organisation."""
    query = select(col(PersonRow.subject)).where(
        col(PersonRow.person_id) == person_id, col(PersonRow.organisation_id) == organisation_id
    )
    async with engine.connect() as connection:
        return await connection.scalar(query) is not None
