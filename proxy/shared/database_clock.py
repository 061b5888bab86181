"""The moment by the database's own clock, for leases and deadlines that several hosts must see alike."""

from collections.abc import Callable

from sqlalchemy import BigInteger, ColumnElement, literal
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.database_clock import DATABASE_US
from cost.times import wall_us


class DatabaseTime:
    """The database's clock as an SQL expression; on SQLite this machine's."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] | None = None) -> None:
        """`now_us` replaces the clock in tests."""
        self._is_shared = now_us is None and engine.dialect.name == "postgresql"
        self._now_us = now_us or wall_us

    def now(self) -> ColumnElement[int]:
        """Return the expression for microseconds since 1970."""
        return DATABASE_US if self._is_shared else literal(self._now_us(), BigInteger)

    def here_us(self) -> int:
        """Return microseconds since 1970 by this machine's clock, for times that people see."""
        return self._now_us()
