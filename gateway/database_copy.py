"""Copies all rows of one database to another, empty one, of whatever kind: the way from SQLite to PostgreSQL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.backup import check_nobody_serves, is_empty
from gateway.database import metadata
from gateway.schema import read_state, refusal, require_schema

_BATCH: Final = 1_000


class CopyRefused(Exception):
    """A copy that would lose something, or cannot be made; says what to do."""


async def copy_database(
    source: AsyncEngine, target: AsyncEngine, copied: Callable[[str, int], None], *, journal_dir: Path | None = None
) -> int:
    """Copy all tables in one transaction, from one snapshot; return the number of rows. `copied` is told each table and its rows.

    The numbers of rows are compared before the end. `journal_dir` has the journals of this host's gateway. Raises CopyRefused, SchemaRefused, RestoreRefused, SQLAlchemyError.
    """
    state = await read_state(source)
    if state.fit != "newest":
        said = "it is empty" if state.fit == "empty" else refusal(state, sqlite=source.dialect.name == "sqlite")
        raise CopyRefused(f"the database to copy from: {said}")
    # What it writes after the copy would be in the old database alone.
    await check_nobody_serves(source, state, journal_dir)
    if not await is_empty(target, await read_state(target)):
        raise CopyRefused("the database to copy to is not empty, so nothing was copied")
    await require_schema(target)
    total = 0
    async with source.connect() as reading, target.begin() as writing:
        if source.dialect.name == "sqlite":
            await reading.exec_driver_sql("BEGIN")
        else:
            await reading.execution_options(isolation_level="REPEATABLE READ")
        for table in reversed(metadata.sorted_tables):
            await writing.execute(delete(table))
        for table in metadata.sorted_tables:
            try:
                rows = await _copy_table(reading, writing, table)
            except DBAPIError as failure:
                raise CopyRefused(
                    f"a row of `{table.name}` is not taken by the other database ({_why(failure)}); nothing was copied"
                ) from failure
            total += rows
            copied(str(table.name), rows)
        await reading.rollback()
    return total


async def _copy_table(reading: AsyncConnection, writing: AsyncConnection, table: Table) -> int:
    async with reading.stream(select(table)) as found:
        async for batch in found.mappings().partitions(_BATCH):
            await writing.execute(insert(table), [dict(row) for row in batch])
    count = select(func.count()).select_from(table)
    there, here = await reading.scalar(count), await writing.scalar(count)
    if there != here:
        raise CopyRefused(f"`{table.name}` has {there} rows, and {here} in the copy; nothing was copied")
    return int(here or 0)


def _why(failure: DBAPIError) -> str:
    # The driver's class alone: its message repeats the row.
    kind: Any = (
        failure.orig.__cause__ if failure.orig is not None and failure.orig.__cause__ is not None else failure.orig
    )
    return type(kind).__name__
