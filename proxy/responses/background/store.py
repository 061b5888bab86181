"""Storage of responses that are made in the background: begun with a lease and a generation, ended once.

Beginning one counts its generation up and names the end of a lease, which its process extends. When the lease ends, the
next process begins it with a higher generation, and later writes of an older one are dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.transactions import one_at_a_time
from proxy.responses.background.tables import BackgroundEvents, BackgroundResponse
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.tables import StoredResponse
from proxy.shared.database_clock import DatabaseTime

State = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
OPEN: Final = ("queued", "in_progress")
_STATES: Final[Mapping[str, State]] = {each: each for each in get_args(State)}


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A response that this process runs now."""

    response_id: str
    team_id: str
    key_id: str
    generation: int
    failures: int
    events: int
    streams: bool
    pepper_id: str
    sealed: bytes
    created_us: int


_BEGUN: Final = tuple(col(getattr(BackgroundResponse, name)) for name in Begun.__struct_fields__)


class Standing(NamedTuple):
    """The progress of a response, as its team may know it."""

    state: State
    streams: bool


class BackgroundStore:
    """The only writer of the tables `background_response` and `background_events`."""

    def __init__(self, engine: AsyncEngine, time: DatabaseTime, responses: ResponseStore) -> None:
        self._engine = engine
        self._time = time
        self._responses = responses

    async def add(self, row: BackgroundResponse, record: StoredResponse, most: int) -> bool:
        """Queue a response with its record. Return False where the team has `most` that have not ended."""
        count = select(func.count()).where(
            col(BackgroundResponse.team_id) == row.team_id, col(BackgroundResponse.state).in_(OPEN)
        )
        async with self._engine.begin() as connection:
            await one_at_a_time(connection, "background_response", row.team_id)
            if int(await connection.scalar(count) or 0) >= most:
                return False
            await connection.execute(insert(BackgroundResponse).values(**row.model_dump()))
            await self._responses.write_in(connection, record)
        return True

    async def standing(self, team_id: str, response_id: str) -> Standing | None:
        """Return the progress of a response; None for one that is not made in the background, or was deleted after
        its end.
        """
        question = select(col(BackgroundResponse.state), col(BackgroundResponse.streams)).where(
            _of(team_id, response_id)
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(question)).first()
        return None if row is None else Standing(_STATES[row[0]], row[1])

    async def events(
        self, team_id: str, response_id: str, after: int, limit: int
    ) -> tuple[Standing, list[BackgroundEvents]]:
        """Return its progress, and rows of events beyond the number `after`. An ended response has no later ones. An
        unknown one counts as cancelled, without events.
        """
        question = (
            select(BackgroundEvents)
            .where(
                col(BackgroundEvents.response_id) == response_id,
                col(BackgroundEvents.first) + col(BackgroundEvents.count) > after + 1,
            )
            .order_by(col(BackgroundEvents.first))
            .limit(limit)
        )
        # The state first: if it has ended by now, its events are there.
        standing = await self.standing(team_id, response_id)
        if standing is None:
            return Standing("cancelled", False), []
        async with self._engine.connect() as connection:
            rows = (await connection.execute(question)).mappings().all()
        return standing, [BackgroundEvents(**row) for row in rows]

    async def begin(self, limit: int, lease_us: int) -> list[Begun]:
        """Begin up to `limit` responses, the oldest first: those that wait, and those whose lease has ended."""
        now = self._time.now()
        ready = and_(col(BackgroundResponse.state).in_(OPEN), col(BackgroundResponse.held_until_us) <= now)
        async with self._engine.connect() as connection:
            # Nearly always none is, and on SQLite whoever writes waits for an update that finds none, too.
            if not await connection.scalar(select(exists().where(ready))):
                return []
        oldest = (
            select(col(BackgroundResponse.response_id))
            .where(ready)
            .order_by(col(BackgroundResponse.created_us))
            .limit(limit)
            .with_for_update(skip_locked=True)
            # By itself, so that PostgreSQL looks for them once.
            .cte("oldest")
        )
        taken = (
            update(BackgroundResponse)
            .where(col(BackgroundResponse.response_id).in_(select(oldest.c.response_id)), ready)
            .values(
                state="in_progress", generation=col(BackgroundResponse.generation) + 1, held_until_us=now + lease_us
            )
            .returning(*_BEGUN)
        )
        async with self._engine.begin() as connection:
            return [Begun(**row) for row in (await connection.execute(taken)).mappings()]

    async def go_on(self, begun: Begun, lease_us: int, events: BackgroundEvents | None) -> bool:
        """Extend the lease, and write the events that came. Return False when it is no longer this process's to run."""
        values = {"held_until_us": self._time.now() + lease_us, **_counted(events)}
        async with self._engine.begin() as connection:
            if not await _changed(connection, _mine(begun), values):
                return False
            await _add_events(connection, events)
        return True

    async def give_back(self, begun: Begun, wait_us: int, *, failed: bool) -> None:
        """Let it wait again, `wait_us` microseconds at least. With `failed` it counts as a failure."""
        values = {
            "state": "queued",
            "held_until_us": self._time.now() + wait_us,
            "failures": col(BackgroundResponse.failures) + int(failed),
        }
        async with self._engine.begin() as connection:
            await _changed(connection, _mine(begun), values)

    async def end(
        self,
        begun: Begun,
        state: State,
        record: StoredResponse,
        events: BackgroundEvents | None,
        changed: StoredResponse | None = None,
    ) -> Literal["ended", "lost", "outrun"]:
        """Write its end: the response, its last events and its turn in a conversation; all of it, or nothing. `lost`:
        it is no longer this process's. `outrun`: another change of the conversation came since it was read.
        """
        async with self._engine.begin() as connection:
            if not await _changed(connection, _mine(begun), {**self._ended(state), **_counted(events)}):
                return "lost"
            await _add_events(connection, events)
            if not await self._responses.write_in(connection, record, changed, replaces=True):
                await connection.rollback()
                return "outrun"
        return "ended"

    async def cancel(self, team_id: str, response_id: str, record: StoredResponse) -> bool:
        """End one that has not ended; its process learns that when it extends its lease. Return False for one that
        has.
        """
        mine = and_(_of(team_id, response_id), col(BackgroundResponse.state).in_(OPEN))
        async with self._engine.begin() as connection:
            if not await _changed(connection, mine, self._ended("cancelled")):
                return False
            await self._responses.write_in(connection, record, replaces=True)
        return True

    async def forget(self, team_id: str, response_id: str) -> None:
        """Delete one, whatever its state: its process stops."""
        async with self._engine.begin() as connection:
            found = (
                await connection.execute(
                    delete(BackgroundResponse)
                    .where(_of(team_id, response_id))
                    .returning(col(BackgroundResponse.response_id))
                )
            ).scalars()
            await _forget_events(connection, list(found))

    async def purge(self, ended_before_us: int, limit: int) -> int:
        """Delete up to `limit` that ended before that time, and return their number."""
        old = (
            select(col(BackgroundResponse.response_id))
            .where(col(BackgroundResponse.ended_us) < ended_before_us)
            .limit(limit)
        )
        async with self._engine.begin() as connection:
            found = list((await connection.execute(old)).scalars())
            await connection.execute(delete(BackgroundResponse).where(col(BackgroundResponse.response_id).in_(found)))
            await _forget_events(connection, found)
        return len(found)

    def _ended(self, state: State) -> dict[str, object]:
        return {"state": state, "ended_us": self._time.here_us(), "sealed": b""}


def _of(team_id: str, response_id: str) -> ColumnElement[bool]:
    return and_(col(BackgroundResponse.team_id) == team_id, col(BackgroundResponse.response_id) == response_id)


def _mine(begun: Begun) -> ColumnElement[bool]:
    return and_(
        col(BackgroundResponse.response_id) == begun.response_id,
        col(BackgroundResponse.generation) == begun.generation,
        col(BackgroundResponse.state) == "in_progress",
    )


def _counted(events: BackgroundEvents | None) -> dict[str, object]:
    return {} if events is None else {"events": events.first + events.count}


async def _changed(connection: AsyncConnection, where: ColumnElement[bool], values: Mapping[str, object]) -> bool:
    return (await connection.execute(update(BackgroundResponse).where(where).values(**values))).rowcount == 1


async def _add_events(connection: AsyncConnection, events: BackgroundEvents | None) -> None:
    if events is not None:
        await connection.execute(insert(BackgroundEvents).values(**events.model_dump()))


async def _forget_events(connection: AsyncConnection, response_ids: Sequence[str]) -> None:
    await connection.execute(delete(BackgroundEvents).where(col(BackgroundEvents.response_id).in_(response_ids)))
