"""The books agree, and where they do not, the figure that is wrong is named."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry, orphan_settlement, void_of
from cost.ledger.rebuild import rebuild
from cost.ledger.store import LedgerStore
from cost.ledger.verify import MOST_DIFFERENCES, check
from cost.tables import COARSER_DAYS
from cost.times import DAY_US, HOUR_US
from tests.cost.entries import reserve, settle
from tests.cost.ledger.verified import verify

pytestmark = pytest.mark.story

NOON_US = reserve().at_us
MIDNIGHT_US = NOON_US - NOON_US % DAY_US


def closed(request_id: str, **changes: Any) -> list[Entry]:
    """An attempt from its reserve to its end."""
    usual = {"input_nanousd": 600_000, "output_nanousd": 400_000, "served": True}
    at_us = changes.get("at_us", NOON_US)
    dims = {name: changes[name] for name in ("team_id", "key_id", "tag", "origin", "attempt") if name in changes}
    return [reserve(request_id, at_us=at_us, **dims), settle(request_id, **{**usual, **changes})]


def traffic(count: int, chance: random.Random) -> list[Entry]:
    """Attempts of all kinds over three days."""
    entries: list[Entry] = []
    for number in range(count):
        at_us = MIDNIGHT_US + chance.randrange(3 * DAY_US)
        request_id = f"req_{number:05}"
        held = reserve(
            request_id,
            at_us=at_us,
            team_id=chance.choice(("team_a", "team_b")),
            key_id=chance.choice(("k1", "k2", "")),
            tag=chance.choice(("", "blue")),
            origin=chance.choice(("caller", "caller", "shadow")),
            target_id=chance.choice(("small", "large")),
            price_version=chance.choice(("v1", "v2")),
        )
        end = chance.choice(("settle", "settle", "unpriced", "void", "orphan", "open", "cache"))
        if end == "cache":
            entries.append(given_again(held, chance.randrange(10**9)))
            continue
        entries.append(held)
        if end == "void":
            entries.append(void_of(held))
        elif end == "orphan":
            entries.append(orphan_settlement(held))
        elif end != "open":
            cost = None if end == "unpriced" else chance.randrange(10**9)
            entries.append(_settled(held, cost, at_us + chance.randrange(HOUR_US)))
    return entries


def given_again(held: Entry, saved: int) -> Entry:
    """An answer that was kept and given again: it stands by itself."""
    return msgspec.structs.replace(
        held,
        entry="cache",
        cost_nanousd=0,
        input_tokens=0,
        usage_source="none",
        status=200,
        replayed_input_tokens=700,
        replayed_output_tokens=30,
        cache_saved_nanousd=saved,
    )


async def test_an_answer_that_is_given_again_is_in_sums_of_its_own_alone(engine: AsyncEngine) -> None:
    """No request, no attempt, no token, no cost and no saving of routing; nothing is missing or open, either."""
    again = [given_again(reserve(f"req_{number}"), 1_000) for number in (2, 3)]
    await LedgerStore(engine).insert([*closed("req_1"), *again])
    found = await check(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US, now_us=NOON_US + DAY_US)
    assert (found.differences, found.open_reserves, found.rows) == (0, 0, 3)
    async with engine.connect() as connection:
        alone, summed = [
            (await connection.execute(text(query))).mappings().one()
            for query in (
                "SELECT * FROM rollup_team_day WHERE pool = ''",
                "SELECT count(*) AS rows, sum(cost_nanousd) AS cost FROM ledger_entry WHERE entry = 'cache'",
            )
        ]
    assert (alone["requests"], alone["attempts"], alone["served"], alone["input_tokens"]) == (1, 1, 1, 800)
    names = ("cache_hits", "replayed_input_tokens", "replayed_output_tokens", "cache_saved_nanousd")
    assert [alone[name] for name in names] == [2, 1_400, 60, 2_000]
    assert (summed["rows"], int(summed["cost"])) == (2, 0)


def _settled(held: Entry, cost: int | None, at_us: int) -> Entry:
    dims = ("team_id", "key_id", "tag", "origin", "target_id", "price_version")
    shares = {"input_nanousd": (cost or 0) // 3, "output_nanousd": (cost or 0) - (cost or 0) // 3}
    return settle(
        held.request_id,
        at_us=at_us,
        cost_nanousd=cost,
        hosted_nanousd=cost,
        served=held.origin == "caller",
        **shares,
        **{name: getattr(held, name) for name in dims},
    )


_ROLLUPS = ("rollup_hour", "rollup_day", *(table.name for table in COARSER_DAYS), "spend_day")


async def change(engine: AsyncEngine, statement: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement))


async def dump(engine: AsyncEngine) -> list[list[Any]]:
    """Every row of the roll-ups that entries of all kinds have."""
    async with engine.connect() as connection:
        return [
            sorted(tuple(row) for row in await connection.execute(text(f"SELECT * FROM {table}")))  # noqa: S608
            for table in _ROLLUPS
        ]


async def test_books_of_all_kinds_of_traffic_agree(engine: AsyncEngine) -> None:
    """Whatever the store wrote verifies clean, and what was checked adds up to what was booked."""
    entries = traffic(400, random.Random(1))
    await LedgerStore(engine).insert(entries)
    found = await check(engine, MIDNIGHT_US, MIDNIGHT_US + 4 * DAY_US, now_us=MIDNIGHT_US + 9 * DAY_US)
    counted = [entry for entry in entries if entry.entry != "reserve"]
    assert found.told == ()
    assert (found.rows, found.cost_nanousd) == (len(counted), sum(entry.cost_nanousd or 0 for entry in counted))
    assert found.open_reserves == len({e.request_id for e in entries} - {e.request_id for e in counted})


async def test_entries_count_once_however_they_are_written(engine: AsyncEngine) -> None:
    """Batches, parts of them and overlapping ones, by several writers at once, give the same roll-ups as one."""
    chance = random.Random(2)
    entries = traffic(120, chance)
    store = LedgerStore(engine)
    batches = [chance.sample(entries, chance.randrange(1, len(entries))) for _ in range(12)]
    await asyncio.gather(*(store.insert(batch) for batch in batches))
    await store.insert(entries)
    await store.insert([*entries, *entries])
    written = await dump(engine)
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + 4 * DAY_US) == []
    await change(engine, "DELETE FROM ledger_entry")
    for table in _ROLLUPS:
        await change(engine, f"DELETE FROM {table}")  # noqa: S608
    assert await store.insert(entries) == len(entries)
    assert await dump(engine) == written


@pytest.mark.parametrize(
    ("statement", "table", "column", "expected", "found"),
    [
        ("UPDATE rollup_hour SET cost_nanousd = cost_nanousd + 1", "rollup_hour", "cost_nanousd", 1_000_000, 1_000_001),
        ("UPDATE rollup_day SET requests = 7", "rollup_day", "requests", 1, 7),
        ("UPDATE rollup_day SET output_tokens = 0", "rollup_day", "output_tokens", 200, 0),
        ("UPDATE rollup_team_model_day SET requests = 7", "rollup_team_model_day", "requests", 1, 7),
        ("DELETE FROM rollup_team_day", "rollup_team_day", "cost_nanousd", 1_000_000, 0),
        ("UPDATE rollup_model_day SET cost_nanousd = 1", "rollup_model_day", "cost_nanousd", 1_000_000, 1),
        ("DELETE FROM spend_day WHERE scope = 'team'", "spend_day", "spent_nanousd", 1_000_000, 0),
        ("UPDATE ledger_entry SET output_nanousd = 0", "ledger_entry", "sum of meters", 1_000_000, 600_000),
        ("DELETE FROM ledger_entry WHERE entry = 'reserve'", "ledger_entry", "reserves", 1, 0),
    ],
)
async def test_a_wrong_figure_is_named(
    engine: AsyncEngine, statement: str, table: str, column: str, expected: int, found: int
) -> None:
    """One nano-dollar, one request or one missing row is found, with where it stands and what it should be."""
    await LedgerStore(engine).insert(closed("req_1"))
    await change(engine, statement)
    differences = await verify(engine, MIDNIGHT_US, NOON_US)
    first = next(each for each in differences if each.table == table and each.column == column)
    assert (first.expected, first.found) == (expected, found)


@pytest.mark.parametrize("table", ["rollup_day", *(table.name for table in COARSER_DAYS)])
async def test_a_roll_up_of_nothing_is_found(engine: AsyncEngine, table: str) -> None:
    """A roll-up row on a day without entries is a difference."""
    await LedgerStore(engine).insert(closed("req_1"))
    await change(engine, f"UPDATE {table} SET start_us = start_us + 86400000000")  # noqa: S608
    differences = await verify(engine, 0, MIDNIGHT_US + 9 * DAY_US)
    wrong = {(each.key["start_us"], each.found) for each in differences if each.column == "cost_nanousd"}
    assert wrong == {(MIDNIGHT_US, 0), (MIDNIGHT_US + DAY_US, 1_000_000)}


async def test_an_attempt_is_closed_once(engine: AsyncEngine) -> None:
    """Two ends of one attempt are a difference; a void without a reserve keeps something from counting, and is none."""
    await LedgerStore(engine).insert([*closed("req_1"), void_of(reserve("req_1")), void_of(reserve("req_2"))])
    told = await verify(engine, MIDNIGHT_US, NOON_US)
    assert [(each.column, each.expected, each.found) for each in told] == [("closings", 1, 2)]
    assert told[0].key == {"request_id": "req_1", "attempt": 1, "entry": "settle void"}


async def test_an_attempt_over_midnight_is_whole(engine: AsyncEngine) -> None:
    """A reserve of one day and its end of the next belong together, also when only one of the days is checked."""
    held, done = closed("req_1")
    later = settle("req_1", at_us=MIDNIGHT_US + DAY_US + 1, input_nanousd=1_000_000)
    await LedgerStore(engine).insert([reserve("req_1", at_us=MIDNIGHT_US + DAY_US - 1), later])
    for start_us in (MIDNIGHT_US, MIDNIGHT_US + DAY_US):
        assert await verify(engine, start_us, start_us + 1) == []
    assert (held.at_us, done.at_us) == (NOON_US, NOON_US)


async def test_many_differences_are_counted_and_the_first_told(engine: AsyncEngine) -> None:
    """A database that is wrong all over is told in a bounded answer."""
    await LedgerStore(engine).insert([each for n in range(400) for each in closed(f"req_{n}", key_id=f"k{n}")])
    await change(engine, "UPDATE rollup_hour SET cost_nanousd = 0, requests = 9, attempts = 9")
    found = await check(engine, MIDNIGHT_US, NOON_US, now_us=NOON_US)
    assert (found.differences, len(found.told)) == (1200, MOST_DIFFERENCES)


async def test_rebuilding_makes_the_books_agree(engine: AsyncEngine) -> None:
    """Roll-ups that were damaged or lost are exactly as they were, and the ledger is not touched."""
    await LedgerStore(engine).insert(traffic(200, random.Random(3)))
    before = await dump(engine)
    await change(engine, "UPDATE rollup_hour SET cost_nanousd = 1, served = 5")
    await change(engine, "DELETE FROM rollup_day WHERE team_id = 'team_a'")
    for table in COARSER_DAYS:
        await change(engine, f"UPDATE {table.name} SET cost_nanousd = 1, start_us = start_us + 86400000000 * 4")  # noqa: S608
    await change(
        engine, "UPDATE spend_day SET spent_nanousd = -1, scope_id = 'x' WHERE scope = 'key' AND scope_id = 'k1'"
    )
    assert await verify(engine, 0, MIDNIGHT_US + 9 * DAY_US) != []
    assert await rebuild(engine, 0, MIDNIGHT_US + 9 * DAY_US) >= 3
    assert await dump(engine) == before
    assert await rebuild(engine, MIDNIGHT_US + 20 * DAY_US, MIDNIGHT_US + 21 * DAY_US) == 0


async def test_rebuilding_while_others_write_loses_nothing(engine: AsyncEngine) -> None:
    """Entries that come during a rebuild are in the roll-ups, once."""
    store = LedgerStore(engine)
    await store.insert(traffic(100, random.Random(4)))

    async def write(lane: int) -> None:
        for number in range(15):
            await store.insert(closed(f"new_{lane}_{number}"))

    await asyncio.gather(*(write(lane) for lane in range(3)), *(rebuild(engine, 0, NOON_US) for _ in range(2)))
    assert await verify(engine, 0, MIDNIGHT_US + 9 * DAY_US) == []


async def test_a_check_while_others_write_finds_nothing(engine: AsyncEngine) -> None:
    """All is read as of one moment, so what is written meanwhile is whole or not there."""
    store = LedgerStore(engine)
    await store.insert(traffic(60, random.Random(5)))
    writing = True

    async def write() -> None:
        for number in range(25):
            await store.insert([each for n in range(5) for each in closed(f"new_{number}_{n}")])

    async def look() -> int:
        looks = 0
        while writing or not looks:
            assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + 3 * DAY_US) == []
            looks += 1
        return looks

    looking = asyncio.create_task(look())
    await write()
    writing = False
    assert await looking >= 1
