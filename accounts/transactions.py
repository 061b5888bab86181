"""Several stores in one transaction: all of their changes are committed, or none."""

import contextlib
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import cast

from sqlalchemy import text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class _ConnectionEngine:
    """The part of an AsyncEngine that stores use, on one connection whose transaction is managed elsewhere."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a savepoint: a part that fails is rolled back alone, so that a store can still query for the reason."""
        async with self._connection.begin_nested():
            yield self._connection

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """Return the same connection, without a savepoint."""
        yield self._connection


def within(connection: AsyncConnection) -> AsyncEngine:
    """Return an engine for stores that runs everything on this connection, in its transaction.

    The connection must have written already: SQLite's driver begins a transaction at the first write, and a savepoint
    outside of one would commit by itself.
    """
    return cast("AsyncEngine", _ConnectionEngine(connection))


async def one_at_a_time(connection: AsyncConnection, *names: str) -> None:
    """Hold a lock on these names until the transaction ends: another one that asks for a name of them, in any process,
    waits.

    For rows that are counted before one is added. It is the transaction's first statement, and may be called once in
    it.
    """
    if connection.dialect.name == "sqlite":
        # Of those that write there is one at a time in any case; it must not have read before.
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    number = int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "big", signed=True)
    # A statement of its own: the next one sees all that was committed before the lock was taken.
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": number})


@contextlib.asynccontextmanager
async def overwriting(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Return a transaction in which SQLite overwrites with zeros what is deleted or replaced. It is slower, and for erasures alone."""
    async with engine.begin() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        if is_sqlite:
            await connection.exec_driver_sql("PRAGMA secure_delete=1")
        try:
            yield connection
        finally:
            if is_sqlite:
                await connection.exec_driver_sql("PRAGMA secure_delete=0")
