"""The table of idempotent requests, on SQLite and on PostgreSQL, by the database's own clock."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.admit.idempotency.store import IdempotencyStore, KeyClaim, StoredClaim
from tests.proxy.admit.idempotency.processes import START_US, Clock, rows

LEASE: dict[str, Any] = {"lease_us": 60_000_000, "keep_us": 86_400_000_000}
WANTED = KeyClaim(team_id="team_a", key_digest="k" * 64, body_digest="b" * 64, request_id="req_1", boot_id="boot_1")
OTHER = msgspec.structs.replace(WANTED, request_id="req_2", boot_id="boot_2")


@pytest.fixture
def store(engine: AsyncEngine) -> IdempotencyStore:
    return IdempotencyStore(engine)


async def test_a_key_is_claimed_once(store: IdempotencyStore) -> None:
    """Of many inserts at once one succeeds; all others find it, still held by the database's clock."""
    wanted = [msgspec.structs.replace(WANTED, request_id=f"req_{index}") for index in range(20)]
    outcomes = await asyncio.gather(*(store.claim(each, **LEASE) for each in wanted))
    found = [each for each in outcomes if isinstance(each, StoredClaim)]
    assert [each for each in outcomes if not isinstance(each, StoredClaim)] == ["claimed"]
    assert len({each.request_id for each in found}) == 1
    assert all(0 < each.claimed_until_us - each.now_us <= 60_000_000 for each in found)


async def test_an_answer_comes_back_as_it_was_kept(store: IdempotencyStore) -> None:
    """Any bytes, any status."""
    await store.claim(WANTED, **LEASE)
    body = bytes(range(256)) * 300
    assert await store.finish(WANTED, status=502, headers='[["a","b"]]', body=body)
    assert await store.finish(WANTED, status=502, headers='[["a","b"]]', body=body)
    found = await store.claim(OTHER, **LEASE)
    assert isinstance(found, StoredClaim)
    assert (found.status, found.headers, found.body, found.request_id) == (502, '[["a","b"]]', body, "req_1")


async def test_only_the_holder_frees_and_finishes(store: IdempotencyStore) -> None:
    """A process and a request together are the holder; what is answered is not freed."""
    await store.claim(WANTED, **LEASE)
    for stranger in (
        OTHER,
        msgspec.structs.replace(WANTED, boot_id="boot_2"),
        msgspec.structs.replace(WANTED, team_id="t"),
    ):
        assert not await store.free(stranger)
        assert not await store.finish(stranger, status=200, headers="[]", body=b"")
    assert await store.free(WANTED)
    assert await store.claim(OTHER, **LEASE) == "claimed"
    assert await store.finish(OTHER, status=200, headers="[]", body=b"")
    assert not await store.free(OTHER)


async def test_without_room_no_key_is_added(store: IdempotencyStore) -> None:
    """But what is there is found."""
    assert await store.claim(WANTED, **LEASE, has_room=False) == "nothing"
    await store.claim(WANTED, **LEASE)
    assert isinstance(await store.claim(OTHER, **LEASE, has_room=False), StoredClaim)


async def test_what_is_held_no_longer_is_taken_over_by_one(engine: AsyncEngine) -> None:
    """Not a moment before its lease ends, and by nobody with another body."""
    clock = Clock()
    store = IdempotencyStore(engine, clock.now_us)
    await store.claim(WANTED, **LEASE)
    clock.now_s = 59.999
    assert isinstance(await store.claim(OTHER, **LEASE), StoredClaim)
    clock.now_s = 60
    assert isinstance(await store.claim(msgspec.structs.replace(OTHER, body_digest="c" * 64), **LEASE), StoredClaim)
    many = [msgspec.structs.replace(OTHER, request_id=f"req_{index}") for index in range(2, 10)]
    outcomes = await asyncio.gather(*(store.claim(each, **LEASE) for each in many))
    assert [each for each in outcomes if not isinstance(each, StoredClaim)] == ["taken over"]
    (row,) = await rows(engine)
    assert (row.boot_id, row.claimed_until_us) == ("boot_2", START_US + 120_000_000)


async def test_one_update_lifts_all_that_a_process_holds(engine: AsyncEngine) -> None:
    """Not what is answered, and not another's."""
    clock = Clock()
    store = IdempotencyStore(engine, clock.now_us)
    for index in range(4):
        each = msgspec.structs.replace(WANTED, key_digest=f"k{index}", request_id=f"req_{index}")
        await store.claim(msgspec.structs.replace(each, boot_id="boot_2") if index == 3 else each, **LEASE)
        if index == 0:
            await store.finish(each, status=200, headers="[]", body=b"")
    clock.now_s = 30
    assert await store.renew("boot_1", 60_000_000) == {"req_1", "req_2"}
    until = [row.claimed_until_us - START_US for row in await rows(engine)]
    assert until == [-START_US, 90_000_000, 90_000_000, 60_000_000]
    assert await store.free_requests("boot_1", ["req_0", "req_1", "req_3"]) == 1


async def test_what_is_kept_no_longer_is_purged_in_batches(engine: AsyncEngine) -> None:
    """By several processes at once; what is held stays, and so does what has not expired."""
    clock = Clock()
    store = IdempotencyStore(engine, clock.now_us)
    for index in range(10):
        each = msgspec.structs.replace(WANTED, key_digest=f"k{index}", request_id=f"req_{index}")
        clock.now_s = 0 if index < 8 else 10
        await store.claim(each, **LEASE)
        if index != 0:
            await store.finish(each, status=200, headers="[]", body=b"x")
    clock.now_s = 86_390
    # One is still being served, whatever the clock says.
    assert await store.renew("boot_1", 60_000_000) == {"req_0"}
    clock.now_s = 86_400
    assert max(await asyncio.gather(store.purge(3), store.purge(3))) == 3
    while await store.purge(3):
        pass
    assert [row.request_id for row in await rows(engine)] == ["req_0", "req_8", "req_9"]
    assert await store.count("team_a") == 3
    assert await store.count("team_b") == 0
