"""Conversion of an entry to and from a row of the table `ledger_entry`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cost.ledger.entries import Entry
from cost.tables import LedgerEntry

COLUMNS: Final = Entry.__struct_fields__
ALL: Final = select(*(getattr(LedgerEntry, name) for name in COLUMNS))
_FLAGS: Final = COLUMNS.index("flags")


def row_of(entry: Entry) -> list[Any]:
    """Return the entry's values in the order of `COLUMNS`."""
    values = list(msgspec.structs.astuple(entry))
    values[_FLAGS] = msgspec.json.encode(entry.flags).decode() if entry.flags else "[]"
    return values


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry of a row that `ALL` selected."""
    values = list(row)
    flags = values[_FLAGS]
    values[_FLAGS] = () if flags == "[]" else msgspec.json.decode(flags, type=tuple[str, ...])
    return Entry(**dict(zip(COLUMNS, values, strict=True)))


async def read(connection: AsyncConnection, query: Select[Any]) -> list[Entry]:
    """Return the entries that a query based on `ALL` finds."""
    return [entry_of(row) for row in await connection.execute(query)]
