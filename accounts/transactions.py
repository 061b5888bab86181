"""Several stores in one transaction: what they change is there together, or not at all."""

import contextlib
from collections.abc import AsyncIterator
from typing import cast

from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class _Within:
    """What stores use of an engine, on a connection whose transaction somebody else began and ends."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A part that fails is undone alone, so that a store may look what the reason was."""
        async with self._connection.begin_nested():
            yield self._connection

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        yield self._connection


def within(connection: AsyncConnection) -> AsyncEngine:
    """To be given to a store in an engine's place. The connection must have written already: SQLite's driver begins a
    transaction at the first write, and a savepoint outside of one would commit by itself.
    """
    return cast("AsyncEngine", _Within(connection))
