"""One cache of compiled SQL for all engines of a test process.

Each test has databases of its own, so SQLAlchemy compiled the same few hundred statements anew for each: a third of the
processor time of a gateway's start. Dialects of one kind compile alike, since all tests have the same server and files.
"""

from typing import Any, Final

import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

_MOST: Final = 4_000


def pytest_configure(config: pytest.Config) -> None:
    """Before the first engine is made."""
    compiled: Any = LRUCache(_MOST)
    make = Engine.__init__

    def make_sharing(engine: Engine, *arguments: Any, **options: Any) -> None:
        make(engine, *arguments, **options)
        assert hasattr(engine, "_compiled_cache"), "SQLAlchemy keeps compiled statements elsewhere now"
        engine._compiled_cache = compiled

    patched_engine: Any = Engine
    patched_engine.__init__ = make_sharing
    for dialect in (PGDialect_asyncpg, SQLiteDialect_aiosqlite):
        patched: Any = dialect
        patched.__hash__ = lambda self: hash(type(self))
        patched.__eq__ = lambda self, other: type(self) is type(other)
