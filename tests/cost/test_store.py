"""The ledger in the database, on SQLite and on PostgreSQL."""

import asyncio
from datetime import date

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.entries import void_of
from cost.errors import EntriesRefused
from cost.store import LedgerStore
from proxy.db import make_engine
from tests.cost.entries import reserve, settle

DAY = date(2026, 4, 5)
MIDNIGHT_US = 1_775_347_200_000_000
DAY_US = 86_400_000_000


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


async def test_usage_of_a_day(store: LedgerStore) -> None:
    """A failed attempt costs and has no baseline; what is unpriced or estimated is counted."""
    await store.insert(
        [
            reserve("a"),
            settle("a", cached_input_tokens=100),
            reserve("b"),
            settle("b", attempt=1, status=502, cost_nanousd=300_000),
            settle("b", attempt=2, target_id="gpt-4o", cost_nanousd=4_000_000, usage_source="estimated"),
            settle("c", target_id="gpt-4o", cost_nanousd=None, baseline_nanousd=None),
            void_of(reserve("d")),
            settle("a", entry="adjust", input_tokens=0, output_tokens=-50, cost_nanousd=-250_000, baseline_nanousd=0),
        ]
    )
    report = await store.usage("team_payments", DAY)
    assert (report.requests, report.input_tokens, report.cached_input_tokens, report.output_tokens) == (
        3,
        3200,
        100,
        750,
    )
    assert (report.cost_nanousd, report.baseline_nanousd, report.savings_nanousd) == (5_050_000, 8_000_000, 2_950_000)
    assert (report.unpriced_requests, report.estimated_requests, report.estimated_rows) == (1, 1, 1)
    assert [(model.target_id, model.requests) for model in report.models] == [("gpt-4o", 2), ("llama-3-70b", 2)]
    assert sum(model.cost_nanousd for model in report.models) == report.cost_nanousd
    assert sum(model.savings_nanousd for model in report.models) == report.savings_nanousd


async def test_a_day_begins_and_ends_at_midnight_in_utc(store: LedgerStore) -> None:
    """The first microsecond of a day belongs to it and the first of the next does not; other teams never do."""
    await store.insert(
        [
            settle("before", at_us=MIDNIGHT_US - 1),
            settle("first", at_us=MIDNIGHT_US),
            settle("last", at_us=MIDNIGHT_US + DAY_US - 1),
            settle("after", at_us=MIDNIGHT_US + DAY_US),
            settle("other", team_id="team_other"),
        ]
    )
    assert (await store.usage("team_payments", DAY)).requests == 2
    nobody = await store.usage("team_nobody' OR '1'='1", DAY)
    assert (nobody.requests, nobody.cost_nanousd, nobody.models) == (0, 0, ())


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
