"""The ledger in the database, on SQLite and on PostgreSQL."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.errors import EntriesRefused
from cost.ledger.entries import void_of
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.cost.entries import reserve, settle


@pytest.fixture
def store(engine: AsyncEngine) -> LedgerStore:
    return LedgerStore(engine)


async def test_entries_come_back_as_they_were(store: LedgerStore) -> None:
    """Every field survives, also what is unknown, long, large or strange."""
    odd = settle(
        cost_nanousd=None,
        baseline_nanousd=2**62,
        flags=("absurd_usage", "caller_gone"),
        complexity=0.1 + 0.2,
        reason="é ' ; -- \n \\ {}",
        at_us=reserve().at_us + 1,
    )
    assert await store.insert([reserve(), odd]) == 2
    assert await store.entries("req_1") == [reserve(), odd]


async def test_writing_again_changes_nothing(store: LedgerStore) -> None:
    """A batch may be written any number of times; the first version of an entry stays."""
    entries = [reserve(f"req_{number}") for number in range(7)]
    assert await store.insert(entries[:5]) == 5
    assert await store.insert(entries) == 2
    assert await store.insert([reserve("req_0", cost_nanousd=1)]) == 0
    assert (await store.entries("req_0"))[0].cost_nanousd == 5_000_000
    assert await store.insert([]) == 0
    assert await store.insert([reserve("twice"), reserve("twice")]) == 1


async def test_concurrent_writers_of_the_same_entries(store: LedgerStore) -> None:
    """Several processes with overlapping batches write each entry once and none fails."""
    entries = [reserve(f"req_{number:03}") for number in range(100)]
    batches = [entries[start:] + entries[:start] for start in (0, 25, 50, 75)]
    assert sum(await asyncio.gather(*(store.insert(batch) for batch in batches))) == 100


async def test_open_reserves_are_those_that_nothing_closed(store: LedgerStore) -> None:
    """Settled, voided and expired reserves are closed; so are not those of other processes or attempts."""
    await store.insert(
        [
            *(reserve(name) for name in ("settled", "voided", "expired", "open", "retried")),
            settle("settled"),
            void_of(reserve("voided")),
            settle("expired", entry="expire"),
            settle("retried", attempt=2),
            reserve("adjusted"),
            settle("adjusted", entry="adjust"),
            reserve("elsewhere", boot_id="boot2"),
        ]
    )
    found = {entry.request_id for entry in await store.open_reserves(["boot1"])}
    assert found == {"open", "retried", "adjusted"}
    assert len(await store.open_reserves(["boot1", "boot2"])) == 4
    assert await store.open_reserves([]) == []


async def test_bad_data_is_refused_and_nothing_of_the_batch_is_written(store: LedgerStore) -> None:
    """An entry that no column takes is told apart from a database that is down, and the batch stays whole."""
    with pytest.raises(EntriesRefused):
        await store.insert([reserve("good"), reserve("bad", input_tokens=2**63)])
    assert await store.entries("good") == []


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_what_postgresql_takes_no_text_for_is_bad_data(store: LedgerStore) -> None:
    """A NUL and a text that is too long are the entry's fault, not the database's."""
    for bad in (reserve(reason="a\x00b"), reserve(alias="x" * 201)):
        with pytest.raises(EntriesRefused):
            await store.insert([bad])


async def test_a_missing_table_is_not_the_entries_fault(empty_database_url: str) -> None:
    """A database that was not migrated is in a bad state; its entries wait."""
    engine = make_engine(empty_database_url)
    with pytest.raises(DBAPIError):
        await LedgerStore(engine).insert([reserve()])
    await engine.dispose()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_locked_database_is_not_the_entries_fault(store: LedgerStore, database_url: str) -> None:
    """Another writer that holds SQLite's lock for long makes entries wait, not go astray."""
    holder = make_engine(database_url)
    impatient = make_engine(f"{database_url}?timeout=0.05")
    async with holder.connect() as connection:
        await connection.execute(text("BEGIN IMMEDIATE"))
        with pytest.raises(OperationalError):
            await LedgerStore(impatient).insert([reserve()])
        await connection.rollback()
    assert await store.insert([reserve()]) == 1
    await holder.dispose()
    await impatient.dispose()
