"""Rows that are counted, or changed in short transactions, so that an erasure that is cut off goes on where it was."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, delete, func, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.transactions import overwriting

BATCH: Final = 500


class Rows:
    """Counts rows, or changes them: what a dry run and an erasure have in common."""

    def __init__(self, engine: AsyncEngine, *, dry: bool) -> None:
        self.engine = engine
        self.dry = dry
        self.counts: dict[str, int] = {}

    def note(self, name: str, rows: int) -> None:
        """Add to what was found of a table or place."""
        self.counts[name] = self.counts.get(name, 0) + rows

    async def delete(self, table: Table, where: ColumnElement[bool]) -> None:
        """Delete rows, a batch at a time."""
        await self._each(table, where, lambda some: delete(table).where(some))

    async def blank(self, table: Table, where: ColumnElement[bool], column: str) -> None:
        """Empty a column. The condition has to be false of rows where it is empty."""
        await self._each(table, where, lambda some: update(table).where(some).values({column: ""}))

    async def count(self, table: Table, where: ColumnElement[bool]) -> int:
        """Return the number of rows."""
        async with self.engine.connect() as connection:
            return int(await connection.scalar(select(func.count()).select_from(table).where(where)) or 0)

    async def scrub(self, table: Table, where: ColumnElement[bool], column: str, without: Callable[[str], str]) -> None:
        """Replace texts by what `without` leaves of them."""
        keys = tuple(table.primary_key.columns)
        async with self.engine.connect() as connection:
            found = (await connection.execute(select(*keys, table.c[column]).where(where))).all()
        changed = [(row[:-1], without(row[-1])) for row in found if without(row[-1]) != row[-1]]
        self.note(table.name, len(changed))
        for start in range(0, 0 if self.dry else len(changed), BATCH):
            async with overwriting(self.engine) as connection:
                for place, left in changed[start : start + BATCH]:
                    there = [key == value for key, value in zip(keys, place, strict=True)]
                    await connection.execute(update(table).where(*there).values({column: left}))

    async def _each(self, table: Table, where: ColumnElement[bool], change: Any) -> None:
        if self.dry:
            self.note(table.name, await self.count(table, where))
            return
        keys = tuple(table.primary_key.columns)
        place = keys[0] if len(keys) == 1 else tuple_(*keys)
        some = place.in_(select(*keys).where(where).limit(BATCH))
        while True:
            async with overwriting(self.engine) as connection:
                changed = (await connection.execute(change(some))).rowcount
            self.note(table.name, changed)
            if changed < BATCH:
                return


async def settle(engine: AsyncEngine) -> None:
    """Bring SQLite's log of changes into its file, so that no earlier page is left in it. Best effort: a reader may hold it."""
    if engine.dialect.name == "sqlite":
        async with engine.connect() as connection:
            await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
