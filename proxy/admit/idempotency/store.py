"""Storage of idempotent requests: inserting a key decides which process serves it.

A process that serves a key holds it until a moment that it lifts again and again. The keys of a dead process are taken
over by the next claimant: an update that names the holder it saw, so that of several one succeeds. The moments are the
database's own, for hosts' clocks may differ; processes on one SQLite share a machine.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, and_, delete, func, literal, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.times import wall_us
from proxy.admit.idempotency.tables import IdempotentRequest

IN_FLIGHT: Final = 0
NOT_KEPT: Final = "null"
"""The stored `headers` of an answer that was too large to keep."""
_MOST_OWN: Final = 50_000
"""A bound on the rows read by a renewal, above the number of requests that a process serves at once."""


class KeyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that is to be made on a key, by its request and process."""

    team_id: str
    key_digest: str
    body_digest: str
    request_id: str
    boot_id: str


class StoredClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A stored row of a key. `now_us` is the time of reading on the same clock as its other times."""

    body_digest: str
    request_id: str
    boot_id: str
    status: int
    headers: str
    body: bytes
    claimed_until_us: int
    expires_us: int
    now_us: int

    @property
    def is_over(self) -> bool:
        """True for an answer that has expired."""
        return self.status != IN_FLIGHT and self.expires_us <= self.now_us

    @property
    def is_abandoned(self) -> bool:
        """True for a request in flight whose process no longer renews it."""
        return self.status == IN_FLIGHT and self.claimed_until_us <= self.now_us


Outcome = StoredClaim | Literal["claimed", "taken over", "nothing"]
"""The result of a claim: an existing row, a new claim, a takeover, or `nothing` when the key was just freed or its team
has no room.
"""

_COLUMNS: Final = tuple(
    col(getattr(IdempotentRequest, name)) for name in StoredClaim.__struct_fields__ if name != "now_us"
)


class IdempotencyStore:
    """The only writer of the table `idempotent_request`."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] | None = None) -> None:
        """`now_us` replaces the database's clock in tests."""
        self._engine = engine
        self._now_us = now_us

    async def claim(self, wanted: KeyClaim, *, lease_us: int, keep_us: int, has_room: bool = True) -> Outcome:
        """Take a key, or return the row that holds it. Without `has_room` a key may be taken over but none is added."""
        async with self._engine.begin() as connection:
            if has_room and await self._insert(connection, wanted, lease_us, keep_us):
                return "claimed"
            found = await self._find(connection, wanted)
            if found is None:
                return "nothing"
            if not found.is_over and (not found.is_abandoned or found.body_digest != wanted.body_digest):
                return found
            if await self._take_over(connection, wanted, found, lease_us, keep_us):
                return "claimed" if found.is_over else "taken over"
            # Another process was faster; the next look shows it.
            return await self._find(connection, wanted) or "nothing"

    async def finish(self, wanted: KeyClaim, *, status: int, headers: str, body: bytes) -> bool:
        """Store the answer. Return False when another process has taken the key over. Idempotent."""
        values = {"status": status, "headers": headers, "body": body, "claimed_until_us": 0}
        async with self._engine.begin() as connection:
            written = await connection.execute(update(IdempotentRequest).where(_own(wanted)).values(**values))
            return written.rowcount == 1

    async def free(self, wanted: KeyClaim) -> bool:
        """Delete a claim in flight. Return False when it was taken over or freed already."""
        free = delete(IdempotentRequest).where(_own(wanted), col(IdempotentRequest.status) == IN_FLIGHT)
        async with self._engine.begin() as connection:
            return (await connection.execute(free)).rowcount == 1

    async def renew(self, boot_id: str, lease_us: int) -> set[str]:
        """Extend all claims of a process, and return the request ids that it holds keys for."""
        # An expired key need not be held any longer.
        mine = and_(
            col(IdempotentRequest.boot_id) == boot_id,
            col(IdempotentRequest.status) == IN_FLIGHT,
            col(IdempotentRequest.expires_us) > self._now(),
        )
        async with self._engine.begin() as connection:
            until = self._now() + literal(lease_us, BigInteger)
            await connection.execute(update(IdempotentRequest).where(mine).values(claimed_until_us=until))
            held = select(col(IdempotentRequest.request_id)).where(mine).limit(_MOST_OWN)
            return set((await connection.execute(held)).scalars())

    async def free_requests(self, boot_id: str, request_ids: Sequence[str]) -> int:
        """Delete a process's claims for requests that it no longer serves; return their number."""
        free = delete(IdempotentRequest).where(
            col(IdempotentRequest.boot_id) == boot_id,
            col(IdempotentRequest.status) == IN_FLIGHT,
            col(IdempotentRequest.request_id).in_(request_ids),
        )
        async with self._engine.begin() as connection:
            return (await connection.execute(free)).rowcount

    async def count(self, team_id: str) -> int:
        """Count a team's keys, expired ones that are not purged yet included."""
        question = select(func.count()).where(col(IdempotentRequest.team_id) == team_id)
        async with self._engine.connect() as connection:
            return await connection.scalar(question) or 0

    async def purge(self, limit: int) -> int:
        """Delete up to `limit` expired rows, and return their number. Safe to run in several processes."""
        places = (col(IdempotentRequest.team_id), col(IdempotentRequest.key_digest))
        expired = and_(
            col(IdempotentRequest.expires_us) <= self._now(), col(IdempotentRequest.claimed_until_us) <= self._now()
        )
        some = select(*places).where(expired).order_by(col(IdempotentRequest.expires_us)).limit(limit)
        async with self._engine.begin() as connection:
            # Rows that another process is purging are left to it.
            found = (await connection.execute(some.with_for_update(skip_locked=True))).all()
            if not found:
                return 0
            one_of = tuple_(*places).in_([tuple(row) for row in found])
            return (await connection.execute(delete(IdempotentRequest).where(one_of, expired))).rowcount

    async def _insert(self, connection: AsyncConnection, wanted: KeyClaim, lease_us: int, keep_us: int) -> bool:
        insert = sqlite_insert if self._engine.dialect.name == "sqlite" else postgresql_insert
        values = {
            **msgspec.structs.asdict(wanted),
            **self._fresh(lease_us, keep_us),
        }
        written = await connection.execute(insert(IdempotentRequest).values(**values).on_conflict_do_nothing())
        return written.rowcount == 1

    async def _find(self, connection: AsyncConnection, wanted: KeyClaim) -> StoredClaim | None:
        question = select(*_COLUMNS, self._now().label("now_us")).where(_place(wanted))
        row = (await connection.execute(question)).mappings().first()
        return None if row is None else StoredClaim(**row)

    async def _take_over(
        self, connection: AsyncConnection, wanted: KeyClaim, found: StoredClaim, lease_us: int, keep_us: int
    ) -> bool:
        still = and_(
            _place(wanted),
            col(IdempotentRequest.boot_id) == found.boot_id,
            col(IdempotentRequest.request_id) == found.request_id,
            col(IdempotentRequest.status) == found.status,
            col(IdempotentRequest.claimed_until_us) == found.claimed_until_us,
        )
        values = {
            "body_digest": wanted.body_digest,
            "request_id": wanted.request_id,
            "boot_id": wanted.boot_id,
            **self._fresh(lease_us, keep_us),
        }
        return (await connection.execute(update(IdempotentRequest).where(still).values(**values))).rowcount == 1

    def _fresh(self, lease_us: int, keep_us: int) -> dict[str, Any]:
        return {
            "status": IN_FLIGHT,
            "headers": "",
            "body": b"",
            "claimed_until_us": self._now() + literal(lease_us, BigInteger),
            "expires_us": self._now() + literal(keep_us, BigInteger),
        }

    def _now(self) -> ColumnElement[int]:
        """Return the database's clock as an SQL expression; on SQLite this machine's."""
        if self._now_us is None and self._engine.dialect.name == "postgresql":
            return DATABASE_US
        return literal((self._now_us or wall_us)(), BigInteger)


def _place(wanted: KeyClaim) -> ColumnElement[bool]:
    return and_(
        col(IdempotentRequest.team_id) == wanted.team_id, col(IdempotentRequest.key_digest) == wanted.key_digest
    )


def _own(wanted: KeyClaim) -> ColumnElement[bool]:
    return and_(
        _place(wanted),
        col(IdempotentRequest.boot_id) == wanted.boot_id,
        col(IdempotentRequest.request_id) == wanted.request_id,
    )
