"""Storage of kept responses and conversations. Every query names the team, so none can reach another's."""

from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from proxy.responses.stored.tables import StoredResponse

_TRIM_BATCH: Final = 1_000


class Sealed(NamedTuple):
    """A record as it is stored, and the number of its changes."""

    pepper_id: str
    sealed: bytes
    version: int


class ResponseStore:
    """The only writer of the table `stored_response`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, added: StoredResponse | None, changed: StoredResponse | None = None) -> bool:
        """Add a row and change another one, or do neither: return False when another change of that one came first.
        `changed` has the version that it is to get.
        """
        async with self._engine.begin() as connection:
            return await self.write_in(connection, added, changed)

    async def write_in(
        self,
        connection: AsyncConnection,
        added: StoredResponse | None,
        changed: StoredResponse | None = None,
        *,
        replaces: bool = False,
    ) -> bool:
        """Write within the caller's transaction, before which nothing is written that False would have to undo. With
        `replaces` the row stands in place of one of that name that may be there. Return as `write` does.
        """
        if changed is not None:
            values = changed.model_dump(exclude={"team_id", "response_id"})
            place = _place(changed.team_id, changed.response_id)
            there = and_(place, col(StoredResponse.version) == changed.version - 1)
            if (await connection.execute(update(StoredResponse).where(there).values(**values))).rowcount != 1:
                return False
        if added is not None:
            if replaces:
                await connection.execute(delete(StoredResponse).where(_place(added.team_id, added.response_id)))
            await connection.execute(insert(StoredResponse).values(**added.model_dump()))
        return True

    async def find(self, team_id: str, response_id: str, now_us: int) -> Sealed | None:
        question = select(col(StoredResponse.pepper_id), col(StoredResponse.sealed), col(StoredResponse.version)).where(
            _place(team_id, response_id), col(StoredResponse.expires_us) > now_us
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(question)).first()
        return None if row is None else Sealed(*row)

    async def remove(self, team_id: str, response_id: str, now_us: int) -> bool:
        """Delete a response. Return False when there was none."""
        there = and_(_place(team_id, response_id), col(StoredResponse.expires_us) > now_us)
        async with self._engine.begin() as connection:
            return (await connection.execute(delete(StoredResponse).where(there))).rowcount == 1

    async def size(self, team_id: str) -> int:
        """Return the bytes that the team's responses take."""
        question = select(func.coalesce(func.sum(col(StoredResponse.size)), 0)).where(
            col(StoredResponse.team_id) == team_id
        )
        async with self._engine.connect() as connection:
            return int(await connection.scalar(question) or 0)

    async def trim(self, team_id: str, max_bytes: int) -> None:
        """Delete the team's oldest responses, a batch of them at most, until the rest fits."""
        newest_first = (col(StoredResponse.created_us).desc(), col(StoredResponse.response_id).desc())
        running = func.sum(col(StoredResponse.size)).over(order_by=newest_first).label("running")
        sizes = (
            select(col(StoredResponse.response_id), col(StoredResponse.created_us), running)
            .where(col(StoredResponse.team_id) == team_id)
            .subquery()
        )
        oldest = (
            select(sizes.c.response_id)
            .where(sizes.c.running > max_bytes)
            .order_by(sizes.c.created_us)
            .limit(_TRIM_BATCH)
        )
        async with self._engine.begin() as connection:
            names = (await connection.execute(oldest)).scalars().all()
            beyond = and_(col(StoredResponse.team_id) == team_id, col(StoredResponse.response_id).in_(names))
            await connection.execute(delete(StoredResponse).where(beyond))

    async def purge(self, now_us: int, limit: int) -> int:
        """Delete up to `limit` responses that expired, of any team, and return their number."""
        expired = (
            select(col(StoredResponse.team_id), col(StoredResponse.response_id))
            .where(col(StoredResponse.expires_us) <= now_us)
            .limit(limit)
        )
        async with self._engine.begin() as connection:
            found = (await connection.execute(expired)).all()
            for team_id, response_id in found:
                await connection.execute(delete(StoredResponse).where(_place(team_id, response_id)))
        return len(found)


def _place(team_id: str, response_id: str) -> ColumnElement[bool]:
    return and_(col(StoredResponse.team_id) == team_id, col(StoredResponse.response_id) == response_id)
