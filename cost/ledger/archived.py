"""Which months of the ledger stand in files (`cost.ledger.archiving`), and what that means to those who read or write entries.

Only requests' attempts are archived. Postings, late entries and attempts that were closed for a lost host stay, and so does an attempt
until it is closed: so what comes late finds in the ledger what it needs, or is refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import exists, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.ledger.entries import Entry
from cost.tables import ROLLUP_SUMS, ArchivedFile, ArchivedMonth, LedgerEntry
from cost.times import DAY_US, day_of

State = Literal["writing", "removing", "archived", "restoring", "restored"]
_BATCH: Final = 500


class ArchivedTime(Exception):
    """What was asked for needs entries that stand in files; says which months, and what to do."""


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an archived month."""

    month_us: int
    number: int
    name: str
    sha256: str
    bytes: int
    rows: int
    day_us: int
    last_key: str
    sums: str
    is_gone: bool


_FILE: Final = select(*(getattr(ArchivedFile, name) for name in FileRow.__struct_fields__))


def month_text(month_us: int) -> str:
    """Return a month as it is written, such as 2026-05."""
    return f"{day_of(month_us):%Y-%m}"


async def archived_months(connection: AsyncConnection, start_us: int = 0, end_us: int = 2**62) -> list[int]:
    """Return the UTC months of which something between these moments stands in files and no more in the ledger."""
    month, day = col(ArchivedMonth.month_us), col(ArchivedFile.day_us)
    # Of a month the first file tells, of thousands.
    gone = exists().where(
        col(ArchivedFile.month_us) == month, day > start_us - DAY_US, day < end_us, col(ArchivedFile.is_gone)
    )
    query = select(month).where(month > start_us - 32 * DAY_US, month < end_us, gone).order_by(month)
    return list(await connection.scalars(query))


async def all_archived(engine: AsyncEngine) -> list[int]:
    """Return all months of which something stands in files and no more in the ledger."""
    async with engine.connect() as connection:
        return await archived_months(connection)


async def refuse_archived(connection: AsyncConnection, start_us: int, end_us: int, what: str) -> None:
    """Raise ArchivedTime where something of a time stands in files. `what` begins the sentence: what cannot be done."""
    if months := await archived_months(connection, start_us, end_us):
        raise ArchivedTime(f"{what}: {told_months(months)}")


def told_months(months: Sequence[int]) -> str:
    """Return the sentence that says which months are archived, and how they come back."""
    names = ", ".join(map(month_text, months))
    first = month_text(months[0])
    return f"the entries of {names} are archived; `weighbridge ledger restore --month {first}` puts them back"


async def archived_note(engine: AsyncEngine, start_us: int, end_us: int) -> str:
    """Return the sentence for a time whose entries are archived, at least in part; empty for any other."""
    async with engine.connect() as connection:
        months = await archived_months(connection, start_us, end_us)
    return told_months(months) if months else ""


async def files_of_day(connection: AsyncConnection, day_us: int) -> list[FileRow]:
    """Return the files of a UTC day whose entries are in the ledger no more."""
    query = _FILE.where(col(ArchivedFile.day_us) == day_us, col(ArchivedFile.is_gone))
    return _rows(await connection.execute(query.order_by(col(ArchivedFile.number))))


def sums_of(files: Iterable[FileRow]) -> dict[str, int]:
    """Return what the files' entries sum up to, by column of the roll-ups."""
    sums = dict.fromkeys(ROLLUP_SUMS, 0)
    for file in files:
        for column, amount in msgspec.json.decode(file.sums, type=dict[str, int]).items():
            sums[column] = sums.get(column, 0) + amount
    return sums


async def files_of_month(connection: AsyncConnection, month_us: int) -> list[FileRow]:
    """Return all files of a month."""
    query = _FILE.where(col(ArchivedFile.month_us) == month_us)
    return _rows(await connection.execute(query.order_by(col(ArchivedFile.number))))


async def place_of(connection: AsyncConnection, month_us: int) -> tuple[str, str] | None:
    """Return where the files of a month are: the place and the folder in it."""
    query = select(col(ArchivedMonth.place), col(ArchivedMonth.run)).where(col(ArchivedMonth.month_us) == month_us)
    row = (await connection.execute(query)).first()
    return None if row is None else (row[0], row[1])


async def unknowable(connection: AsyncConnection, entries: Iterable[Entry]) -> bool:
    """Return True if one of these entries may be in a file: it belongs to an archived time, and its attempt is not in the ledger.

    Booked once more it would count twice. Postings are never archived, and their keys tell.
    """
    asked = [entry for entry in entries if entry.entry != "adjust"]
    if not asked or not (months := await archived_months(connection)):
        return False
    days = {each - each % DAY_US for entry in asked for each in (entry.at_us,)}
    query = select(col(ArchivedFile.day_us)).where(
        col(ArchivedFile.month_us).in_(months), col(ArchivedFile.day_us).in_(sorted(days)), col(ArchivedFile.is_gone)
    )
    gone = set(await connection.scalars(query.distinct()))
    places = sorted(
        {(entry.request_id, entry.attempt) for entry in asked if entry.at_us - entry.at_us % DAY_US in gone}
    )
    place = (col(LedgerEntry.request_id), col(LedgerEntry.attempt))
    for start in range(0, len(places), _BATCH):
        batch = places[start : start + _BATCH]
        found = await connection.execute(select(*place).where(tuple_(*place).in_(batch)).distinct())
        if len(found.all()) < len(batch):
            return True
    return False


def _rows(found: Iterable[Sequence[Any]]) -> list[FileRow]:
    return [FileRow(**dict(zip(FileRow.__struct_fields__, row, strict=True))) for row in found]
