"""The outbox, on SQLite and on PostgreSQL."""

import asyncio
import json

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from api.webhooks.outbox import MAX_BODY_BYTES, MessageTooLarge, wire_id_of
from tests.api.webhooks.receiver import START_US, Bench

NOWHERE = "http://127.0.0.1:9/"
DAY_S = 86_400


@pytest.fixture
def bench(engine: AsyncEngine) -> Bench:
    return Bench(engine, NOWHERE)


async def test_an_id_is_kept_once(bench: Bench) -> None:
    """Of several puts of one id, at once or later, one is new and the first content stays."""
    assert sorted(await asyncio.gather(*(bench.put() for _ in range(5)))) == [False] * 4 + [True]
    assert not await bench.outbox.put("budget/b_1/2026-11/80", "ops", "other", {})
    (row,) = await bench.rows()
    assert (row.type, row.tries, row.next_try_us) == ("budget.threshold_reached", 0, START_US)


async def test_a_message_shares_its_callers_transaction(bench: Bench) -> None:
    """What is rolled back with the caller's own rows was never put."""
    connection = await bench.engine.connect()
    try:
        assert await bench.outbox.put_in(connection, "a", "ops", "t", {})
        await connection.rollback()
        assert await bench.rows() == []
        assert await bench.outbox.put_in(connection, "a", "ops", "t", {})
        await connection.commit()
    finally:
        await connection.close()
    assert [row.message_id for row in await bench.rows()] == ["a"]


async def test_the_body_has_the_fields_of_both_conventions(bench: Bench) -> None:
    """OpenAI's id, object, type, created_at and data; the standard's type, timestamp and data."""
    await bench.put()
    (row,) = await bench.rows()
    assert json.loads(row.body) == {
        "id": "budget/b_1/2026-11/80",
        "object": "event",
        "type": "budget.threshold_reached",
        "created_at": 1_790_000_000,
        "timestamp": "2026-09-21T14:13:20Z",
        "data": {"percent": 80},
    }


async def test_large_bodies_and_long_names_are_refused(bench: Bench) -> None:
    """A message stays below 20 kB, and an id, as a header carries it, within its column."""
    assert await bench.outbox.put("largest", "ops", "t", {"x": "x" * (MAX_BODY_BYTES - 200)})
    with pytest.raises(MessageTooLarge):
        await bench.outbox.put("larger", "ops", "t", {"x": "x" * MAX_BODY_BYTES})
    for message_id, kind in (("x" * 201, "t"), ("", "t"), ("x", ""), ("x", "t" * 65), ("é" * 100, "t")):
        with pytest.raises(ValueError, match="characters"):
            await bench.outbox.put(message_id, "ops", kind, {})


def test_ids_fit_into_a_header_and_stay_different() -> None:
    """Dots would be ambiguous in the signed text, and a header is ASCII."""
    assert wire_id_of("budget/b_1/2026-11/80") == "budget/b_1/2026-11/80"
    assert wire_id_of("a.b") == "a%2Eb"
    assert wire_id_of("a%2Eb") == "a%252Eb"
    assert wire_id_of("é\r\n") == "%C3%A9%0D%0A"


async def test_a_full_outbox_takes_no_more(bench: Bench) -> None:
    """Past the limit a message is dropped and logged; what finished does not count."""
    assert all([await bench.outbox.put(f"m{number}", "gone", "t", {}) for number in range(40)])
    assert not await bench.put()
    await bench.outbox.give_up("gone")
    assert await bench.put()


async def test_old_rows_are_forgotten(bench: Bench) -> None:
    """A finished message is remembered for more than a year, a waiting one for a week."""
    await bench.put("finished")
    (due,) = await bench.outbox.due("ops", 10)
    await bench.outbox.delivered(due, 204)
    await bench.put("waiting")
    bench.advance(6 * DAY_S)
    assert await bench.outbox.forget() == 0
    bench.advance(2 * DAY_S)
    assert await bench.outbox.forget() == 1
    assert not await bench.put("finished")
    bench.advance(366 * DAY_S)
    assert await bench.outbox.forget() == 1
    assert await bench.rows() == []


async def test_the_oldest_finished_rows_give_way(bench: Bench) -> None:
    """However many messages were sent, a bounded number of rows is kept, the newest."""
    for number in range(22):
        await bench.put(f"m{number:02}")
        bench.advance(1)
    await bench.outbox.give_up("ops")
    await bench.put("waiting")
    assert await bench.outbox.forget() == 2
    assert [row.message_id for row in await bench.rows()] == [*(f"m{number:02}" for number in range(2, 22)), "waiting"]
