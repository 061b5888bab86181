"""Searches that people keep: each person's own, by team, and so many at most."""

from typing import Any, Final

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from dashboards.requests.tables import SavedView

MOST: Final = 20
"""Most kept searches of a person in one team."""

_table: Final[Table] = SavedView.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.


class SavedViews:
    """The searches that one person keeps of one team's requests; the only reader and writer of `saved_view`."""

    def __init__(self, engine: AsyncEngine, person_id: str, team_id: str) -> None:
        self._engine = engine
        self._own: dict[str, Any] = {"person_id": person_id, "team_id": team_id}

    async def read(self) -> list[tuple[str, str]]:
        """Return names and parameters, by name."""
        query = select(_table.c.name, _table.c.query).where(*self._mine()).order_by(_table.c.name).limit(MOST)
        async with self._engine.connect() as connection:
            return [(str(name), str(kept)) for name, kept in await connection.execute(query)]

    async def keep(self, name: str, query: str, now_us: int) -> bool:
        """Keep a search under a name, instead of what had it; False where there are as many as there may be."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(_table).where(*self._mine(), _table.c.name == name))
            kept = await connection.scalar(select(func.count()).select_from(_table).where(*self._mine()))
            if (kept or 0) >= MOST:
                return False
            row = {**self._own, "name": name, "query": query, "created_us": now_us}
            await connection.execute(insert(_table).values(**row))
        return True

    async def remove(self, name: str) -> None:
        """Remove a search; one that is not there is removed already."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(_table).where(*self._mine(), _table.c.name == name))

    def _mine(self) -> list[Any]:
        return [_table.c[name] == value for name, value in self._own.items()]
