"""Targets that are set aside for hard budgets, over the real link: what one worker found, all know."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.wiring.overruns import SharedOverruns, exchange_overruns, share_overruns
from gateway.wiring.told_hosts import ToldHosts
from proxy.plan.overruns import Overruns
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.processes import until
from tests.redis_server import RedisServer


async def test_what_one_worker_found_all_know() -> None:
    """The other worker, the control plane, and a worker that starts later; the day ends for all at once."""
    now = [100.0]

    def worker(path: Path, boot_id: str) -> tuple[Link, Overruns]:
        link, overruns = Link(path, VOCABULARY), Overruns(lambda: now[0])
        exchange_overruns(link, overruns)
        link.start(Hello(boot_id, 1))
        return link, overruns

    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path, hub, control = Path(folder) / "link.sock", Hub(VOCABULARY), Overruns(lambda: now[0])
        share_overruns(hub, control)
        await hub.start(path)
        (one, found), (two, told) = worker(path, "one"), worker(path, "two")
        links = [one, two]
        try:
            await one.synced(30)
            await two.synced(30)
            found.record("gpt", "wrote 3,000 tokens")
            await until(lambda: bool(told.current()))
            control.record("claude", "told 250,000 prompt tokens")
            await until(lambda: len(found.current()) == 2)
            late, learnt = worker(path, "late")
            links.append(late)
            await late.synced(30)
            await until(lambda: len(learnt.current()) == 2)
            everywhere = {"gpt": "wrote 3,000 tokens", "claude": "told 250,000 prompt tokens"}
            assert found.current() == told.current() == learnt.current() == control.current() == everywhere
            now[0] += 86_401
            assert not any(each.current() for each in (found, told, learnt, control))
        finally:
            for link in links:
                await link.aclose()
            await hub.aclose()


def test_what_is_learnt_is_not_told_again_and_stays_bounded() -> None:
    """Two processes that tell each other do not go on for ever, nor does their memory grow."""
    told: list[str] = []
    one, two = Overruns(lambda: 0.0), Overruns(lambda: 0.0)
    two.tell = lambda target_id, _overrun: told.append(target_id)
    for number in range(1_200):
        one.record(f"name-{number}", "wrote on")
        two.learn(one.known)
    assert not told
    assert len(one.known) == len(two.known) == 1_000


@contextlib.asynccontextmanager
async def worker_of_a_host(server: RedisServer, name: str) -> AsyncIterator[tuple[ToldHosts, Overruns]]:
    """A worker on a host of its own, whose clock began at another time."""
    link, began = RedisLink(server.url, RedisSection(), name), float(len(name)) * 1_000_000

    def clock() -> float:
        return began

    overruns = Overruns(clock)
    await link.start()
    try:
        yield ToldHosts(link, SharedOverruns.key, SharedOverruns(overruns), clock), overruns
    finally:
        await link.aclose()


async def test_what_one_host_found_the_others_know(empty_redis: RedisServer) -> None:
    """Through Redis, for the rest of its day by each one's clock; what Redis lost is told again, and what others write there costs nothing."""
    async with (
        worker_of_a_host(empty_redis, "one") as (one, found),
        worker_of_a_host(empty_redis, "another") as (another, told),
    ):
        passed_on: list[str] = []
        told.tell = lambda target_id, _overrun: passed_on.append(target_id)
        found.record("gpt é", "wrote 3,000 tokens where 10 were asked for")
        for each in (one, another, another, one):
            await each.exchange()
        assert told.current() == found.current() == {"gpt é": "wrote 3,000 tokens where 10 were asked for"}
        assert passed_on == ["gpt é"]
        ends = told.known["gpt é"].until - len("another") * 1_000_000
        assert ends == pytest.approx(86_400, abs=5)

        client = redis.Redis.from_url(empty_redis.url)
        client.flushall()
        await one.exchange()
        await one.exchange()
        key = f"{RedisSection().prefix}set-aside"
        assert client.hlen(key) == 1
        assert 0 < client.ttl(key) <= 86_400
        client.hset(
            key,
            mapping={
                "odd": "words",
                b"\xff": b"99999999999 x",
                "over": "1 long ago",
                "long": "99999999999 " + "x" * 9_000,
            },
        )
        client.close()
        await another.exchange()
        assert set(told.current()) == {"gpt é", "long"}
        assert len(told.current()["long"]) == 300


async def test_without_redis_each_host_goes_on_alone() -> None:
    """Nothing is raised, and what was found here holds here."""
    link, overruns = RedisLink("redis://127.0.0.1:1", RedisSection(), "one"), Overruns(lambda: 0.0)
    overruns.record("gpt", "wrote on")
    await ToldHosts(link, SharedOverruns.key, SharedOverruns(overruns), lambda: 0.0).exchange()
    assert set(overruns.current()) == {"gpt"}
    await link.aclose()
