"""PostgreSQL: connections that can write, and connections through a pooler."""

import logging
import uuid
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.database_address import read_address

_LOG: Final = logging.getLogger(__name__)
_RECYCLE_S: Final = 1_800
"""Connections are made anew after so long, so that a change of the address's DNS name is followed."""
_GONE: Final = frozenset({"25006", "57P01", "57P02", "57P03"})
"""SQLSTATEs after which a connection is of no use: its server is read-only now, or ends."""


def make_postgres_engine(url: str) -> AsyncEngine:
    """Create an engine for the address. Its connections can write: of several hosts the primary is used (`postgres_primary.py`), and a
    connection whose server has become read-only is dropped, with all others of its time.

    Raises UnknownDatabase.
    """
    from gateway.postgres_primary import PrimaryFinder  # noqa: PLC0415 - SQLite needs no driver

    address = read_address(url)
    engine = create_async_engine(
        URL.create("postgresql+asyncpg", host=address.host or None, database=address.database or None),
        async_creator=PrimaryFinder(address).connect,
        pool_size=10,
        max_overflow=10,
        pool_timeout=5.0,
        pool_recycle=_RECYCLE_S,
        # A connection that the server dropped is noticed before it is used.
        pool_pre_ping=True,
        # No two connections that share a server's session through a pooler name a statement alike.
        connect_args={"prepared_statement_name_func": lambda: f"weighbridge_{uuid.uuid4().hex}"},
    )
    event.listen(engine.sync_engine, "handle_error", _drop_useless)
    event.listen(engine.sync_engine, "connect", _PoolerCheck())
    return engine


def _drop_useless(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) in _GONE:
        context.is_disconnect = True


# Some servers have no such setting; what the address asks for is left as it is.
_WITHOUT_JIT: Final = "SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit' AND setting = 'on' AND source <> 'client'"


class _PoolerCheck:
    """Recognizes a pooler such as PgBouncer: the process it names is not the one that answers.

    Behind one that changes the server's session between transactions, a statement that was prepared before may be gone. So
    none is kept there. A session that is this process's own compiles no statements: those of reports look dear enough, but take
    less time than their compilation, which is made anew each time.
    """

    def __init__(self) -> None:
        self._told = False

    def __call__(self, connection: Any, _record: Any) -> None:
        driver = connection.driver_connection
        cursor = connection.cursor()
        try:
            cursor.execute("SELECT pg_backend_pid()")
            (answering,) = cursor.fetchone()
            if is_own := answering == driver.get_server_pid():
                cursor.execute(_WITHOUT_JIT)
            connection.commit()
        finally:
            cursor.close()
            connection.rollback()
        if is_own:
            return
        connection._prepared_statement_cache = None  # noqa: SLF001 - SQLAlchemy decides it for a whole engine.
        if not self._told:
            self._told = True
            _LOG.info("the database is reached through a pooler, so no prepared statements are kept")
