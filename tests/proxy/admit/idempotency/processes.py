"""Several gateway processes on one database, with a clock that the test turns and a database that fails when told to."""

import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine, metadata
from proxy.admit.idempotency.claims import Claim, Idempotency, Replay
from proxy.admit.idempotency.idempotency_config import IdempotencySection
from proxy.admit.idempotency.store import IdempotencyStore, KeyClaim, Outcome, StoredClaim
from proxy.admit.idempotency.tables import IdempotentRequest

START_US = 1_790_000_000_000_000
HOUR_S = 3_600
JSON = ((b"content-type", b"application/json"),)

_Answer = TypeVar("_Answer")


class Clock:
    """The database's and the processes' at once."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return START_US + int(self.now_s * 1_000_000)


class Store(IdempotencyStore):
    """The real one, behind a line that can be cut."""

    down = False
    cut_after = False
    """What is asked is done, but its answer does not arrive."""
    refuses_answers = False

    async def claim(self, wanted: KeyClaim, **options: Any) -> Outcome:
        return await self._over_the_line(super().claim(wanted, **options))

    async def finish(self, wanted: KeyClaim, **values: Any) -> bool:
        work = super().finish(wanted, **values)
        if self.refuses_answers:
            work.close()
            raise ValueError("no such bytes here")
        return await self._over_the_line(work)

    async def free(self, wanted: KeyClaim) -> bool:
        return await self._over_the_line(super().free(wanted))

    async def renew(self, boot_id: str, lease_us: int) -> set[str]:
        return await self._over_the_line(super().renew(boot_id, lease_us))

    async def _over_the_line(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        if self.down:
            work.close()
            raise OperationalError("statement", {}, OSError("the line is cut"))
        answer = await work
        if self.cut_after:
            raise OperationalError("statement", {}, OSError("the line is cut"))
        return answer


class Process:
    """One process: its door to the table, and what it asks through it."""

    def __init__(self, name: str, engine: AsyncEngine, clock: Clock, **fields: Any) -> None:
        options = {name: fields.pop(name) for name in ("max_recorded_bytes", "counted", "close_s") if name in fields}
        self.store = Store(engine, clock.now_us)
        section = IdempotencySection(**{"timeout_s": 30.0, **fields})
        self.once = Idempotency(self.store, name, section, clock, **options)
        self.name = name
        self._requests = 0

    async def claim(self, key: str = "k", body: bytes = b"{}", team: str = "team_a") -> Claim | Replay:
        self._requests += 1
        return await self.once.claim(team, key, body, f"req_{self.name}_{self._requests}")

    async def claimed(self, key: str = "k", body: bytes = b"{}", team: str = "team_a") -> Claim:
        claim = await self.claim(key, body, team)
        assert isinstance(claim, Claim)
        return claim

    async def replayed(self, key: str = "k", body: bytes = b"{}", team: str = "team_a") -> Replay:
        found = await self.claim(key, body, team)
        assert isinstance(found, Replay)
        return found


@contextlib.asynccontextmanager
async def processes(url: str, clock: Clock, count: int) -> AsyncIterator[list[Process]]:
    """Processes with connections of their own."""
    engines = [make_engine(url) for _ in range(count)]
    try:
        yield [Process(f"boot_{index}", engine, clock) for index, engine in enumerate(engines)]
    finally:
        for engine in engines:
            await engine.dispose()


@contextlib.asynccontextmanager
async def small_database(folder: Path) -> AsyncIterator[AsyncEngine]:
    """An SQLite file with the one table, for what does not hang on which database it is."""
    engine = make_engine(f"sqlite:///{folder}/small.sqlite")
    table = metadata.tables[IdempotentRequest.__tablename__]
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all, tables=[table])
    yield engine
    await engine.dispose()


async def rows(engine: AsyncEngine) -> list[StoredClaim]:
    """All that is in the table, by request."""
    names = [name for name in StoredClaim.__struct_fields__ if name != "now_us"]
    columns = [getattr(IdempotentRequest, name) for name in names]
    async with engine.connect() as connection:
        found = await connection.execute(select(*columns).order_by(IdempotentRequest.request_id))
        return [msgspec.convert({**row, "now_us": 0}, StoredClaim) for row in found.mappings()]
