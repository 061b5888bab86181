"""Time that stands in files, for tests of what is shown of it."""

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.tables import ArchivedFile, ArchivedMonth
from cost.times import DAY_US, month_of


async def put_in_files(engine: AsyncEngine, at_us: int) -> None:
    """Note a file of the UTC day of a moment whose entries are in the ledger no more."""
    file = {"month_us": month_of(at_us), "number": 1, "name": "date=x/part-00001.parquet", "sha256": "", "bytes": 1}
    file |= {"rows": 1, "day_us": at_us - at_us % DAY_US, "last_key": "[]", "sums": "{}", "is_gone": True}
    month = {"month_us": month_of(at_us), "place": "/gone", "run": "x", "state": "archived", "holder": ""}
    month |= {"held_until_us": 0, "changed_us": 0}
    async with engine.begin() as connection:
        await connection.execute(insert(ArchivedMonth).values(month))
        await connection.execute(insert(ArchivedFile).values(file))
