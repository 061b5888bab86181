"""What teams or keys have spent in all."""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.scopes import Scope
from cost.tables import SpendDay


async def ever_spent(engine: AsyncEngine, scope: Scope, ids: Collection[str]) -> dict[str, int]:
    """Return nano-dollars by scope id, 0 for those that have spent nothing."""
    found = dict.fromkeys(ids, 0)
    query = (
        select(col(SpendDay.scope_id), func.sum(col(SpendDay.spent_nanousd)))
        .where(col(SpendDay.scope) == scope, col(SpendDay.scope_id).in_(sorted(found)))
        .group_by(col(SpendDay.scope_id))
    )
    async with engine.connect() as connection:
        for scope_id, spent in await connection.execute(query):
            found[scope_id] = int(spent)
    return found
