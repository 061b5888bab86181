"""One process's view: who lives, by a clock that nobody sets, through outages."""

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine
from selfhosted.config import PoolConfig, SharedGpusConfig
from selfhosted.model_swap.swap_state import written
from selfhosted.model_swap.turns import Turns
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import Rollout
from selfhosted.scale.target import Targets
from tests.selfhosted.registry.registered import Clock, Process, pool


async def test_every_process_sees_who_registered_and_who_left(engine: AsyncEngine) -> None:
    """With the next look; each change is told once, and a sign of life is none."""
    clock = Clock()
    one, two = Process(engine, clock), Process(engine, clock)
    await one.says()
    assert await one.sees() == await two.sees() == {"one": "http://10.0.0.1:8000"}
    for _ in range(3):
        clock.at += 5
        await one.says()
        await two.sees()
    assert two.changes == 1
    await one.says(draining=True)
    await two.sees()
    assert two.registry.registered("own")[0].draining
    await one.store.leave("own", "one", "i1")
    assert await two.sees() == {}
    assert two.changes == 3


async def test_who_is_silent_for_its_time_is_gone(engine: AsyncEngine) -> None:
    """Also for a process that begins only now."""
    clock = Clock()
    old = Process(engine, clock)
    await old.says()
    for _ in range(15):
        assert await old.sees()
        clock.at += 1
    clock.at += 0.5
    assert await old.sees() == {}
    assert await Process(engine, clock).sees() == {}
    await old.says()
    assert await old.sees()


async def test_a_clock_that_is_set_takes_nobody_away(engine: AsyncEngine) -> None:
    """An hour forward and an hour back; and who is silent is gone all the same."""
    clock = Clock()
    process = Process(engine, clock)
    for jump in (3_600.0, -3_600.0):
        await process.says()
        assert await process.sees()
        clock.set_by += jump
        for _ in range(14):
            clock.at += 1
            assert await process.sees()
        clock.at += 2
        assert not await process.sees()


async def test_an_outage_keeps_what_was_known_and_its_time_does_not_count(engine: AsyncEngine) -> None:
    """Nobody could say that it is there; once somebody can, each has its whole time to do so."""
    clock = Clock()
    process = Process(engine, clock)
    await process.says()
    await process.store.order("own", "one", "key_1")
    await process.sees()
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE registered_replica RENAME TO elsewhere"))
    for _ in range(60):
        clock.at += 1
        assert await process.sees()
        assert process.registry.problem
        assert process.registry.ordered("own") == {"one"}
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE elsewhere RENAME TO registered_replica"))
    for _ in range(15):
        assert await process.sees()
        assert process.registry.problem == ""
        clock.at += 1
    clock.at += 1
    assert not await process.sees()
    assert process.changes == 2


async def test_an_address_that_is_not_allowed_any_more_is_told(engine: AsyncEngine) -> None:
    """The operator took its network away; a pool that takes no registrations has none."""
    clock = Clock()
    narrow = {"token": "env:POOL_TOKEN", "networks": ["10.9.0.0/16"]}
    process = Process(engine, clock, pool(registration=narrow))
    await process.says()
    assert await process.sees() == {}
    assert process.registry.refused("own")[0].startswith("one: 10.0.0.1 is in none")
    closed = Process(engine, clock, pool(registration=None))
    assert await closed.sees() == {}


async def test_a_database_that_never_answered_is_a_problem_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once."""
    engine = make_engine("postgresql://nobody@127.0.0.1:1/none")
    process = Process(engine, Clock())
    for _ in range(3):
        assert await process.sees() == {}
    assert process.registry.problem
    assert not process.registry.read
    assert len(caplog.records) == 1
    await engine.dispose()


async def test_every_process_sees_a_rollout(engine: AsyncEngine) -> None:
    """With the next look, as a change; one of a model that the pool no longer has means nothing."""
    process = Process(engine, Clock())
    await process.sees()
    assert process.registry.rollout("own") is None
    canary = Rollout(model="own-model", pool="own", candidate="v2", share_ppm=5, state="canary", since_us=1)
    for each in (canary, msgspec.structs.replace(canary, model="older-model")):
        await RolloutStore(engine).save(msgspec.structs.replace(each, since_us=0), each)
    before = process.changes
    for _ in range(2):
        await process.sees()
    assert process.registry.rollout("own") == canary
    assert process.changes == before + 1


async def test_whose_turn_it_is_on_shared_gpus(engine: AsyncEngine) -> None:
    """While nobody could read it, whoever is awake serves; once it is known that nobody decided yet, none does. Then everybody is told of each
    step, and who pays for the GPUs.
    """
    clock, store = Clock(), RegistryStore(engine)
    group = SharedGpusConfig(name="box", pools=("own", "other"), switch_s=10, least_awake_s=30)
    pools = (pool(), PoolConfig(name="other", targets=("m-other",)))
    registry = Registry(store, pools, clock=clock, shared=(group,))
    assert not registry.rests("own")
    assert registry.sleep_told("own") is None
    await registry.refresh()
    assert [registry.rests(name) for name in ("own", "other", "alone")] == [True, True, False]
    assert not registry.pays("own")
    assert await store.hold("box", "me", 60_000_000)
    targets = Targets(engine)
    told = []
    for turns in (
        Turns(awake="own", phase="awake"),
        Turns(awake="own", phase="draining", next="other"),
        Turns(awake="own", phase="waking", next="other", took={"wake other": 7.0}),
    ):
        clock.at += 5
        assert await targets.store_turns("box", "me", "why", written(turns))
        await registry.refresh()
        sleeps = [registry.sleep_told(name) for name in ("own", "other")]
        told.append(
            ([each is not None and each.rests for each in sleeps], registry.pays("own"), registry.pays("other"))
        )
    assert told == [([False, True], True, False), ([True, True], True, False), ([True, True], False, True)]
    other = registry.sleep_told("other")
    assert other is not None
    assert other.opens_in_s(clock()) == pytest.approx(7.0)
    clock.at += 3
    await registry.refresh()
    assert registry.sleep_told("other") == other
    assert other.opens_in_s(clock()) == pytest.approx(4.0)
    shared = registry.shared("own")
    assert shared is not None
    assert (shared.name, shared.others, shared.phase, shared.awake, shared.next) == (
        "box",
        ("other",),
        "waking",
        None,
        "other",
    )
    assert registry.shared("alone") is None
