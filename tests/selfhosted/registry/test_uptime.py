"""Time up is counted once: over crashes anywhere, two leaders, outages, clocks that are set, and the hour's end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlmodel import SQLModel, col

from cost.fleet.hours import HoursStore, up_us
from cost.tables import PoolHour
from cost.times import DAY_US, HOUR_US
from selfhosted.registry.uptime import BRIDGE_S, STARTING_MOST_S, Hours, HoursObserver, PoolFacts, Run, by_hours, count
from selfhosted.replica import Address, PoolSnapshot, Replica, ReplicaState
from selfhosted.tables import ReplicaClock
from tests.cost.fleet.pools import pool as costed
from tests.selfhosted.registry.registered import START_US, Clock

US = 1_000_000
TICK_S = 10.0


class Killed(OSError):
    """The process, or its way to the database, ended here."""


class Faults:
    """Ends a step before its n-th statement, or just after what it committed."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.dialect = engine.dialect
        self.statements_left: int | None = None
        self.lose_the_answer = False
        event.listen(engine.sync_engine, "before_cursor_execute", self._count)

    def _count(self, *_args: Any) -> None:
        if self.statements_left is not None:
            if self.statements_left <= 0:
                raise Killed
            self.statements_left -= 1

    def connect(self) -> AsyncConnection:
        return self.engine.connect()

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        async with self.engine.begin() as connection:
            yield connection
        if self.lose_the_answer:
            raise Killed


def replica(name: str, state: ReplicaState = "ready", since: float = 0.0) -> Replica:
    address = Address(pool="own", name=name, url=f"http://{name}", kind="vllm", source="dns")
    return Replica(address=address, state=state, since=since)


class Process:
    """A gateway process that watches one pool and leads it when it is told to."""

    def __init__(self, world: "World", *, complete: bool = True) -> None:
        self.leads = False
        self.world = world
        self.hours = Hours(
            # It has what is used of an engine.
            cast("AsyncEngine", world.faults),
            hours=HoursStore(world.engine),
            lease=self,
            snapshots=lambda: [PoolSnapshot(pool="own", at=world.clock(), replicas=tuple(world.replicas.values()))],
            complete=lambda _pool: complete,
            observer=world,
            clock=world.clock,
            now_us=world.clock.now_us,
            every_s=world.every_s,
            # A busy machine is no database that is away.
            patience_s=60,
        )

    def held(self, pool: str) -> bool:
        return self.leads

    async def step(self, *, leads: bool = True, until: int | None = None, lose_the_answer: bool = False) -> None:
        """`until`: so many statements reach the database."""
        faults = self.world.faults
        self.leads, faults.statements_left, faults.lose_the_answer = leads, until, lose_the_answer
        try:
            with contextlib.suppress(Killed):
                await self.hours.step()
        finally:
            faults.statements_left, faults.lose_the_answer = None, False


class World(HoursObserver):
    """A clock, a pool and a database."""

    def __init__(self, engine: AsyncEngine, every_s: float = TICK_S) -> None:
        self.engine = engine
        self.faults = Faults(engine)
        self.clock = Clock()
        self.every_s = every_s
        self.replicas: dict[str, Replica] = {}
        self.unwatched_s: list[float] = []

    def hours_unwatched(self, pool: str, seconds: float) -> None:
        self.unwatched_s.append(seconds)

    def shows(self, name: str, state: ReplicaState | None) -> None:
        if state is None:
            self.replicas.pop(name, None)
        else:
            self.replicas[name] = replica(name, state, self.clock())

    async def counted(self) -> dict[str, dict[int, int]]:
        """Replica → hour → seconds."""
        found: dict[str, dict[int, int]] = {}
        async with self.engine.connect() as connection:
            rows = (await connection.execute(select(PoolHour.replica, PoolHour.hour_us, PoolHour.up_us))).all()  # type: ignore[call-overload]
        for name, hour, up in rows:
            found.setdefault(name.removeprefix("fleet/"), {})[hour] = up
        return found

    async def silent_s(self) -> float:
        """Since the last count."""
        async with self.engine.connect() as connection:
            found = await connection.scalar(select(func.max(col(ReplicaClock.counted_us))))
        return (self.clock.now_us() - int(found or 0)) / US

    async def total_s(self, name: str) -> float:
        return sum((await self.counted()).get(name, {}).values()) / US


@pytest.fixture
def world(engine: AsyncEngine) -> World:
    return World(engine)


async def test_each_replica_is_counted_from_when_it_was_seen_to_when_it_was_gone(world: World) -> None:
    """Whether it works, starts, is suspect or drains; not while it is down."""
    process = Process(world)
    states: dict[str, list[ReplicaState | None]] = {
        "works": ["ready"] * 7,
        "rests": ["ready", "ready", "down", "down", "ready", "ready", "ready"],
        "drains": ["starting", "starting", "ready", "suspect", "draining", "draining", None],
        "never": ["down"] * 7,
    }
    for step in range(7):
        for name, each in states.items():
            if step == 0 or each[step] != each[step - 1]:
                world.shows(name, each[step])
        await process.step()
        world.clock.at += 10
    totals = {name: await world.total_s(name) for name in states}
    assert totals == {"works": 60, "rests": 10 + 20, "drains": 50, "never": 0}


async def test_ranks_of_a_process_are_billed_once(world: World) -> None:
    """They are up on the same GPUs, as long as one of them is."""
    process = Process(world)
    for name in ("a-dp0", "a-dp1"):
        world.shows(name, "ready")
        at = msgspec.structs.replace(world.replicas[name].address, rank=int(name[-1]))
        world.replicas[name] = msgspec.structs.replace(world.replicas[name], address=at)
    for _ in range(4):
        await process.step()
        world.clock.at += TICK_S
    world.shows("a-dp0", None)
    await process.step()
    assert {name: await world.total_s(name) for name in ("a", "a-dp0", "a-dp1")} == {
        "a": 4 * TICK_S,
        "a-dp0": 0,
        "a-dp1": 0,
    }


async def test_an_hours_end_is_where_it_is(world: World) -> None:
    """The time is split there, and no hour of a replica has more than an hour."""
    world.every_s = 100.0
    process = Process(world)
    world.shows("one", "ready")
    world.clock.at += 3_600 - START_US % HOUR_US / US - 25
    for _ in range(38):
        await process.step()
        world.clock.at += 100
    first = START_US - START_US % HOUR_US
    assert (await world.counted())["one"] == {
        first: 25 * US,
        first + HOUR_US: HOUR_US,
        first + 2 * HOUR_US: 75 * US,
    }


async def test_another_leader_goes_on_where_the_last_one_stopped(world: World) -> None:
    """Nothing is lost, since each process watches; nothing is counted twice when both believe to lead."""
    one, two = Process(world), Process(world)
    world.shows("one", "ready")
    for step in range(40):
        if step < 10 or step > 30:
            await one.step(leads=step < 5 or step > 32)
        await two.step(leads=step >= 8)
        world.clock.at += 10
    assert await world.total_s("one") == 390
    assert world.unwatched_s == []


async def test_a_restart_is_bridged_and_a_long_gap_is_told_instead(world: World) -> None:
    """Only for who was up before and after it."""
    world.shows("one", "ready")
    world.shows("two", "ready")
    first = Process(world)
    await first.step()
    world.clock.at += 10
    await first.step()
    world.shows("two", "down")
    world.clock.at += 10
    await first.step()
    world.clock.at += BRIDGE_S - 10
    world.shows("two", "ready")
    second = Process(world)
    await second.step()
    assert (await world.total_s("one"), await world.total_s("two")) == (20 + BRIDGE_S - 10, 10)
    world.clock.at += 300
    third = Process(world)
    await third.step()
    world.clock.at += 10
    await third.step()
    assert (await world.total_s("one"), await world.total_s("two")) == (20 + BRIDGE_S - 10 + 10, 10 + 10)
    assert world.unwatched_s == [300]


async def test_an_outage_of_the_database_loses_nothing_that_was_seen(world: World) -> None:
    """Hours of it, with a replica that comes and one that goes in between."""
    process = Process(world)
    world.shows("stays", "ready")
    world.shows("goes", "ready")
    for step in range(400):
        if step == 100:
            world.shows("comes", "ready")
        if step == 200:
            world.shows("goes", None)
        await process.step(until=0 if 3 <= step < 390 else None)
        world.clock.at += 10
    assert await world.total_s("stays") == 3_990
    assert await world.total_s("comes") == 2_990
    # What was not written of one that is gone is not known any more.
    assert await world.total_s("goes") == 20
    assert world.unwatched_s == []


async def test_a_pool_that_is_empty_is_not_billed_as_configured(engine: AsyncEngine, world: World) -> None:
    """It was looked at, and nobody was there; unless nobody can tell who is there. An hour without a look is configured."""
    hours = HoursStore(engine)
    pool = costed(name="own", replicas=3)
    start = START_US - START_US % HOUR_US
    await Process(world, complete=False).step()
    assert not (await hours.read([pool], start, start + DAY_US))["own"].hours
    process = Process(world)
    for _ in range(4):
        await process.step()
        world.clock.at += 10
    record = (await hours.read([pool], start, start + DAY_US))["own"]
    later = start + 10 * DAY_US
    assert up_us(pool, record, start, start + HOUR_US, later) == 0
    assert up_us(pool, record, start, start + 2 * HOUR_US, later) == 3 * HOUR_US


async def test_a_replica_that_never_starts_stops_to_cost(world: World) -> None:
    """Later than an hour nothing is there that could."""
    world.every_s = 100.0
    process = Process(world)
    world.shows("one", "starting")
    for _ in range(50):
        await process.step()
        world.clock.at += 100
    assert await world.total_s("one") == STARTING_MOST_S


async def test_old_replicas_are_forgotten(world: World) -> None:
    """Names of pods never come again."""
    process = Process(world)
    for name in ("one", "two"):
        world.shows(name, "ready")
    await process.step()
    world.shows("one", None)
    world.clock.at += 8 * 86_400
    for _ in range(2):
        await process.step()
        world.clock.at += 10
    async with world.engine.connect() as connection:
        names = (await connection.execute(select(ReplicaClock.name))).scalars().all()  # type: ignore[call-overload]
    assert sorted(names) == ["-", "two"]


@given(st.integers(0, 3 * HOUR_US), st.integers(0, 30 * HOUR_US))
def test_a_time_is_split_without_loss(into_us: int, length_us: int) -> None:
    """Every part lies in its hour, and together they are the whole."""
    end = START_US + into_us
    parts = by_hours(end, length_us)
    assert sum(parts.values()) == length_us
    assert all(hour % HOUR_US == 0 and 0 < part <= HOUR_US for hour, part in parts.items())


@given(
    st.floats(0, 10_000),
    st.integers(-10_000 * US, 10_000 * US) | st.none(),
    st.booleans(),
    st.integers(-10_000 * US, 0),
    st.floats(0, 10_000),
)
def test_nobody_is_counted_for_longer_than_anybody_can_know(
    watched_s: float, counted_ago_us: int | None, blind: bool, clock_behind_us: int, up_s: float
) -> None:
    """At most since the last count and, but for a short restart, since this process saw it up; never less than nothing."""
    counted_us = None if counted_ago_us is None else START_US - counted_ago_us
    standing = PoolFacts(
        now=20_000.0,
        now_us=START_US,
        watched_since=20_000.0 - watched_s,
        counted_us=counted_us,
        counted_at=None if counted_ago_us is None or counted_ago_us < 0 else 20_000.0 - counted_ago_us / US,
        clocks={} if counted_us is None else {"one": counted_us + clock_behind_us},
        runs={"one": Run(20_000.0 - min(up_s, watched_s), blind)},
    )
    found = count(standing)
    if found is None:
        assert counted_ago_us is not None
        assert counted_ago_us < 0
        return
    most_us = min(up_s, watched_s) * US + BRIDGE_S * US + 1
    if counted_ago_us is not None:
        most_us = min(most_us, max(0, counted_ago_us) - clock_behind_us + 1)
    assert 0 <= found.up_us["one"] <= most_us


def _played(play: Callable[[World], Any]) -> None:
    """In a database in memory, which costs nothing."""

    async def run() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        async with engine.begin() as connection:
            await connection.run_sync(SQLModel.metadata.create_all)
        try:
            world = World(engine)
            # An hour ends soon.
            world.clock.at += 3_600 - START_US % HOUR_US / US - 100
            await play(world)
        finally:
            await engine.dispose()

    asyncio.run(run())


_crash = st.none() | st.integers(0, 9)
_turn = st.tuples(st.sampled_from(("witness", "other", "both", "nobody")), _crash, st.booleans(), st.booleans())
Turn = tuple[str, int | None, bool, bool]
# Each example is a life of many turns in a database.
_quick = settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])


@_quick
@given(st.lists(_turn, min_size=5, max_size=25))
def test_whatever_breaks_a_witness_makes_the_count_whole(turns: list[Turn]) -> None:
    """Steps that end before any statement, answers of commits that are lost, leaders that change, restart or are two:
    as long as whoever counts watched before, or a short restart is all that was between, it is exact in each hour.
    """

    async def play(world: World) -> None:
        witness, other = Process(world), Process(world)
        world.shows("one", "ready")
        await witness.step()
        for leader, until, lost, restarts in turns:
            world.clock.at += TICK_S
            await witness.step(leads=leader in {"witness", "both"}, until=until, lose_the_answer=lost)
            if restarts and await world.silent_s() < BRIDGE_S - TICK_S:
                other = Process(world)
            await other.step(leads=leader in {"other", "both"}, until=until, lose_the_answer=lost)
        world.clock.at += TICK_S
        await witness.step()
        up = len(turns) + 1
        assert (await world.counted())["one"] == by_hours(world.clock.now_us(), int(up * TICK_S * US))
        assert not world.unwatched_s

    _played(play)


@_quick
@given(st.lists(st.tuples(_turn, st.sampled_from((0.0, 0.0, 45.0, -45.0, 7_200.0, -7_200.0))), min_size=5, max_size=25))
def test_a_clock_that_is_set_makes_no_time(turns: list[tuple[Turn, float]]) -> None:
    """Forward or back, by seconds or hours: the sum is what passed, but for the hour that a replica cannot be up twice."""

    async def play(world: World) -> None:
        witness, other = Process(world), Process(world)
        world.shows("one", "ready")
        await witness.step()
        # Who never looked before knows the wall's clock alone.
        await other.step(leads=False)
        forward = True
        for (leader, until, lost, _), jump in turns:
            world.clock.at += TICK_S
            world.clock.set_by += jump
            forward = forward and jump >= 0
            await witness.step(leads=leader in {"witness", "both"}, until=until, lose_the_answer=lost)
            await other.step(leads=leader in {"other", "both"}, until=until, lose_the_answer=lost)
        world.clock.at += TICK_S
        await witness.step()
        passed_s = (len(turns) + 1) * TICK_S
        hours = (await world.counted())["one"]
        total_s = sum(hours.values()) / US
        assert all(0 <= up <= HOUR_US for up in hours.values())
        # Of another's count a process knows to a step when it was made.
        unsure_s = TICK_S * sum(leader in {"other", "both"} for (leader, *_), _ in turns)
        jumped = any(jump for _, jump in turns)
        assert total_s <= passed_s + (unsure_s if jumped else 0)
        if forward:
            assert total_s >= passed_s - (unsure_s if jumped else 0)

    _played(play)


_life = st.lists(st.tuples(st.booleans(), st.booleans(), _crash, st.booleans()), min_size=5, max_size=25)


@_quick
@given(_life)
def test_who_restarts_again_and_again_never_counts_too_much(life: list[tuple[bool, bool, int | None, bool]]) -> None:
    """One process alone, that is killed at any statement, and a replica that comes and goes: never more than it was up."""

    async def play(world: World) -> None:
        process = Process(world)
        up_s = bridged_s = 0.0
        for up, restarts, until, lost in life:
            if ("one" in world.replicas) != up:
                world.shows("one", "ready" if up else None)
            # The state is what it was through all of the tick that ends now.
            world.clock.at += TICK_S
            up_s += TICK_S * up
            if restarts:
                process = Process(world)
                # Whoever restarts knows nothing of what could not be written.
                bridged_s += BRIDGE_S
            await process.step(until=until, lose_the_answer=lost)
            assert await world.total_s("one") <= up_s + bridged_s
        if all(up and not restarts for up, restarts, *_ in life):
            await process.step()
            assert await world.total_s("one") == up_s - TICK_S

    _played(play)


@pytest.mark.parametrize("switch_s", [3.0, 10.0, 47.0])
async def test_gpus_that_pools_share_are_counted_once(engine: AsyncEngine, switch_s: float) -> None:
    """Whoever has them when counts, to the moment of the switch; both pools' hours together are the time that went by."""
    clock, paying = Clock(), ["own"]
    pools = ("own", "other")

    class Leader:
        def held(self, _pool: str) -> bool:
            return True

    def address(pool: str) -> Address:
        return Address(pool=pool, name=f"{pool}-1", url=f"http://{pool}", kind="vllm", source="dns", draining=True)

    hours = Hours(
        engine,
        hours=HoursStore(engine),
        lease=Leader(),
        snapshots=lambda: [
            PoolSnapshot(pool=each, at=clock(), replicas=(Replica(address=address(each), state="draining", since=0.0),))
            for each in pools
        ],
        pays=lambda pool: pool == paying[0],
        clock=clock,
        now_us=clock.now_us,
        every_s=TICK_S,
        patience_s=60,
    )
    await hours.step()
    began = clock()
    for turn in range(6):
        for _ in range(int(switch_s // TICK_S)):
            clock.at += TICK_S
            await hours.step()
        clock.at += switch_s % TICK_S
        paying[0] = pools[(turn + 1) % 2]
        hours.look_now()
        assert hours._wanted.is_set()
        await hours.step()
    async with engine.connect() as connection:
        rows = (
            await connection.execute(select(col(PoolHour.pool), func.sum(PoolHour.up_us)).group_by(col(PoolHour.pool)))
        ).all()
    found = {pool: int(up) / US for pool, up in rows}
    assert found == pytest.approx({"own": (clock() - began) / 2, "other": (clock() - began) / 2})
