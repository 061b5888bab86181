"""How many processes share a limit, by the database and by Redis."""

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col, select

from proxy.shared.redis.live_processes import LiveProcesses, ProcessCount
from proxy.shared.redis.process_tables import LiveProcess
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.redis_server import RedisServer


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def shown_as(engine: AsyncEngine, name: str, clock: Clock) -> LiveProcesses:
    return LiveProcesses(engine, lambda: (name,), clock=clock)


async def boots(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return sorted((await connection.scalars(select(col(LiveProcess.boot_id)))).all())


async def test_each_process_counts_those_that_were_seen_lately(engine: AsyncEngine) -> None:
    """One that shows itself is counted by all at their next look, and no longer once it was not seen for a while."""
    clock = Clock()
    first, second = (shown_as(engine, name, clock) for name in ("first", "second"))
    counts = [(first.live, first.known)]
    await first.refresh()
    await second.refresh()
    counts += [(first.live, first.known), (second.live, second.known)]
    for passed_s in (0, 6, 3):
        clock.now += passed_s
        await first.refresh()
        counts.append((first.live, first.known))
    assert counts == [(1, False), (1, True), (2, True), (2, True), (2, True), (1, True)]


async def test_one_that_stops_is_not_counted_from_then_on(engine: AsyncEngine) -> None:
    """The others need not wait until it was not seen for long."""
    first, second = LiveProcesses(engine, lambda: ("first",)), LiveProcesses(engine, lambda: ("second",))
    await second.refresh()
    await first.refresh()
    assert first.live == 2
    await second.withdraw("second")
    await first.refresh()
    assert first.live == 1
    assert await boots(engine) == ["first"]


async def test_rows_of_the_dead_are_deleted(engine: AsyncEngine) -> None:
    """Also those that a clock which was set back has left in the future; a process that was only frozen returns."""
    clock = Clock()
    old, ahead, live = (shown_as(engine, name, clock) for name in ("old", "ahead", "live"))
    await old.refresh()
    clock.now += 200
    await ahead.refresh()
    clock.now -= 100
    await live.refresh()
    assert live.live == 1
    assert await boots(engine) == ["live"]
    await old.refresh()
    assert old.live == 2


async def test_the_clock_is_the_databases(engine: AsyncEngine) -> None:
    """Without a clock of ours it comes from PostgreSQL, and on SQLite from this machine."""
    replicas = LiveProcesses(engine, lambda: ("boot",))
    await replicas.refresh()
    await asyncio.sleep(0.01)
    await replicas.refresh()
    assert replicas.live == 1
    assert await boots(engine) == ["boot"]


async def test_the_last_count_holds_while_the_database_is_down(engine: AsyncEngine) -> None:
    """Looking never raises, and neither does stopping."""
    counted, never = LiveProcesses(engine, lambda: ("first",)), LiveProcesses(engine, lambda: ("third",))
    await LiveProcesses(engine, lambda: ("second",)).refresh()
    await counted.refresh()
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE replica"))
    for replicas in (counted, counted, never):
        await replicas.refresh()
        await replicas.withdraw("a")
    assert (counted.live, counted.known) == (2, True)
    assert (never.live, never.known) == (1, False)


async def test_redis_is_believed_while_it_answers(engine: AsyncEngine, empty_redis: RedisServer) -> None:
    """The link's count while it is healthy, else the table's; and the link's last one when the table never answered."""
    replicas = LiveProcesses(engine, lambda: ("a",))
    assert ProcessCount(replicas, None).live() == 1
    await LiveProcesses(engine, lambda: ("b",)).refresh()
    await LiveProcesses(engine, lambda: ("c",)).refresh()
    links = [RedisLink(empty_redis.url, RedisSection(probe_s=0.05), name, heartbeat_s=0.02) for name in ("a", "b")]
    for link in links:
        await link.start()
    await until(lambda: links[0].live == 2)
    sharers = ProcessCount(replicas, links[0])
    assert sharers.live() == 2
    await links[1].aclose()
    empty_redis.kill()
    await until(lambda: not links[0].healthy)
    assert sharers.live() == links[0].live
    await replicas.refresh()
    assert sharers.live() == 3
    await links[0].aclose()
