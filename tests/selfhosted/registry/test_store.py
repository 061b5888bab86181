"""Registrations, orders and leases in the database, on both kinds of it."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from selfhosted.registry.store import MOST_PER_POOL, NameTaken, PoolFull, RegistryStore
from selfhosted.tables import RegisteredReplica
from tests.selfhosted.registry.registered import TTL_US, Clock, Process


async def test_a_replica_registers_says_so_again_and_leaves(engine: AsyncEngine) -> None:
    """The database's own clock says when; a second process of the name does not take it away."""
    store = RegistryStore(engine)
    fields: dict[str, Any] = {"url": "http://10.0.0.1:8000", "instance": "i1", "draining": False, "ttl_us": TTL_US}
    assert await store.register("own", "one", **fields) == "registered"
    assert await store.register("own", "one", **{**fields, "draining": True}) == "renewed"
    state = await store.read(["own"])
    (row,) = state.registrations
    assert (row.name, row.instance, row.draining) == ("one", "i1", True)
    assert 0 <= state.now_us - row.seen_us < 60_000_000
    assert not await store.leave("own", "one", "i2")
    assert await store.leave("own", "one", "i1")
    assert not await store.leave("own", "one", "i1")
    assert (await store.read(["own"])).registrations == ()


async def test_a_living_name_is_nobody_elses(engine: AsyncEngine) -> None:
    """Neither another process nor the same one at another address gets it, until it was silent for its time."""
    clock = Clock()
    process = Process(engine, clock)
    await process.says()
    clock.at += 14.9
    for taker in ({"instance": "i2"}, {"url": "http://10.0.0.2:8000"}):
        with pytest.raises(NameTaken):
            await process.says(**taker)
    await process.says()
    clock.at += 14.9
    with pytest.raises(NameTaken):
        await process.says(instance="i2")
    clock.at += 0.2
    assert await process.says(instance="i2", url="http://10.0.0.2:8000") == "registered"
    with pytest.raises(NameTaken):
        await process.says()


async def test_of_many_that_claim_a_free_name_at_once_one_gets_it(engine: AsyncEngine) -> None:
    """The others are told so."""
    process = Process(engine, Clock())
    told = await asyncio.gather(
        *(process.says(instance=f"i{at}", url=f"http://10.0.0.{at}:80") for at in range(1, 7)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in told) == ["NameTaken"] * 5 + ["str"]


async def test_a_pool_takes_so_many(engine: AsyncEngine) -> None:
    """More are refused, until dead ones have made room; those that are there go on."""
    clock = Clock()
    process = Process(engine, clock)
    async with engine.begin() as connection:
        rows = [
            {
                "pool": "own",
                "name": f"r{at}",
                "url": f"http://10.1.{at // 250}.{at % 250}:80",
                "instance": "i",
                "draining": False,
                "registered_us": clock.now_us(),
                "seen_us": clock.now_us(),
            }
            for at in range(MOST_PER_POOL)
        ]
        await connection.execute(RegisteredReplica.__table__.insert(), rows)  # type: ignore[attr-defined]
    with pytest.raises(PoolFull):
        await process.says("late")
    assert await process.says("r0", "i", "http://10.1.0.0:80") == "renewed"
    clock.at += 3_601
    assert await process.says("late") == "registered"
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(RegisteredReplica)) == 1


async def test_orders_stand_until_they_are_taken_back(engine: AsyncEngine) -> None:
    """For each pool by itself; old ones of replicas that are long gone are forgotten with the next."""
    clock = Clock()
    store = Process(engine, clock).store
    assert await store.order("own", "one", "key_1")
    assert not await store.order("own", "one", "key_2")
    assert await store.order("other", "one", "key_1")
    assert await store.take_back("other", "one")
    assert not await store.take_back("other", "one")
    assert (await store.read(["own", "other"])).orders == {("own", "one")}
    clock.at += 8 * 86_400
    await store.order("own", "two", "key_1", known={"one", "two"})
    assert (await store.read(["own"])).orders == {("own", "one"), ("own", "two")}
    clock.at += 8 * 86_400
    await store.order("own", "three", "key_1", known={"two", "three"})
    assert (await store.read(["own"])).orders == {("own", "two"), ("own", "three")}


async def test_one_holds_a_lease_until_it_runs_out(engine: AsyncEngine) -> None:
    """Its holder prolongs it; nobody decided yet how many there should be."""
    clock = Clock()
    store = Process(engine, clock).store
    told = await asyncio.gather(*(store.hold("own", name, 10_000_000) for name in ("a", "b", "c")))
    assert told.count(True) == 1
    holder = "abc"[told.index(True)]
    other = "b" if holder == "a" else "a"
    clock.at += 9
    assert await store.hold("own", holder, 10_000_000)
    clock.at += 9
    assert not await store.hold("own", other, 10_000_000)
    clock.at += 2
    assert await store.hold("own", other, 10_000_000)
    assert not await store.hold("own", holder, 10_000_000)
    (wish,) = (await store.read(["own"])).wishes
    assert (wish.desired, wish.holder) == (None, other)
    await store.release(other, ["own"])
    clock.at += 0.001
    assert await store.hold("own", holder, 10_000_000)


async def test_a_lease_of_a_clock_that_was_wrong_binds_nobody(engine: AsyncEngine) -> None:
    """A database whose clock was a year ahead would otherwise leave the pool without a leader for a year."""
    clock = Clock()
    store = Process(engine, clock).store
    clock.set_by = 365 * 86_400
    assert await store.hold("own", "a", 10_000_000)
    clock.set_by = 0
    assert await store.hold("own", "b", 10_000_000)
