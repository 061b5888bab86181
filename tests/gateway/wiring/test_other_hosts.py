"""Gateways of several hosts over a real Redis: what one sent to a replica is load for the other, and nobody else can read it."""

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis
from prometheus_client import CollectorRegistry

from accounts.keys import Pepper
from gateway.wiring.other_hosts import HostMetrics, OtherHosts
from proxy.responses.stored.sealing import Sealing
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from selfhosted.balance.blocks import HASHES
from selfhosted.balance.sharing import PromptsSent, SentPrompt
from tests.redis_server import RedisServer


def message(process: str, number: int = 1) -> PromptsSent:
    sent = SentPrompt(number, "a", b"12345678", 128.0, 500, 10)
    return PromptsSent(pool="p", hashes=HASHES, process=process, sent=(sent,))


@contextlib.asynccontextmanager
async def host(
    server: RedisServer, name: str, pepper: bytes = b"p" * 32
) -> AsyncIterator[tuple[OtherHosts, list[PromptsSent]]]:
    """One host, and what it heard."""
    link = RedisLink(server.url, RedisSection(prefix="{weighbridge}:hosts:"), name)
    await link.start()
    heard: list[PromptsSent] = []
    try:
        yield OtherHosts(name, link, Sealing((Pepper(id=pepper[:1].decode(), secret=pepper),)), heard.append), heard
    finally:
        await link.aclose()


async def test_hosts_hear_of_each_other(empty_redis: RedisServer) -> None:
    """Each once, in order, and never its own; who comes later hears what is told from then on. Redis has none of the text or
    hashes, and a host with another pepper reads nothing and goes on.
    """
    async with (
        host(empty_redis, "one") as (one, heard_by_one),
        host(empty_redis, "two") as (two, heard_by_two),
        host(empty_redis, "odd", b"q" * 32) as (odd, heard_by_odd),
    ):
        for each in (one, two, odd):
            await each.exchange()
        one.tell(message("w1", 1))
        one.tell(message("w1", 2))
        await one.exchange()
        two.tell(message("w2", 3))
        odd.tell(message("w3", 4))
        for each in (two, odd, one, two):
            await each.exchange()
        assert heard_by_two == [message("w1", 1), message("w1", 2)]
        assert heard_by_one == [message("w2", 3)]
        assert heard_by_odd == []

        client = redis.Redis.from_url(empty_redis.url)
        kept = str(client.xrange("{weighbridge}:hosts:prompts"))
        assert client.ttl("{weighbridge}:hosts:prompts") > 0
        client.close()
        assert "12345678" not in kept

        async with host(empty_redis, "late") as (late, heard_by_late):
            await late.exchange()
            one.tell(message("w1", 5))
            await one.exchange()
            await late.exchange()
            assert heard_by_late == [message("w1", 5)]


async def test_what_is_told_is_bounded(empty_redis: RedisServer) -> None:
    """The oldest of what waits goes, and Redis keeps no more than some seconds of it."""
    async with host(empty_redis, "one") as (one, _), host(empty_redis, "two") as (two, heard):
        await one.exchange()
        await two.exchange()
        for number in range(700):
            one.tell(message("w1", number))
        await one.exchange()
        await two.exchange()
        assert [each.sent[0].number for each in heard] == list(range(200, 700))
        for number in range(800):
            one.tell(message("w1", number))
            await one.exchange()
        client = redis.Redis.from_url(empty_redis.url)
        assert client.xlen("{weighbridge}:hosts:prompts") < 700
        client.close()


@pytest.mark.parametrize(
    "poison",
    [
        msgspec.msgpack.encode(("p", b"sealed")).replace(b"p", b"\xff"),
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(("p" * 100_000, b"")),
        msgspec.msgpack.encode((5, 6)),
        b"",
    ],
    ids=["no UTF-8", "no msgpack", "nested", "long", "of other types", "empty"],
)
async def test_one_poisoned_entry_costs_itself_alone(
    empty_redis: RedisServer, caplog: pytest.LogCaptureFixture, poison: bytes
) -> None:
    """Entries before and behind it are heard; it is told of once, without a traceback."""
    async with host(empty_redis, "one") as (one, _), host(empty_redis, "two") as (two, heard):
        one.tell(message("w1", 0))
        await one.exchange()
        await two.exchange()
        client = redis.Redis.from_url(empty_redis.url)
        for number in range(1, 4):
            one.tell(message("w1", number))
            await one.exchange()
            client.xadd("{weighbridge}:hosts:prompts", {"host": "nobody", "news": poison})
        client.close()
        await two.exchange()
    assert heard == [message("w1", number) for number in range(1, 4)]
    said = [record for record in caplog.records if record.name == "weighbridge.hosts"]
    assert [record.exc_info for record in said] == [None, None], "each host once"


async def test_what_hearing_fails_at_costs_no_other_entry(empty_redis: RedisServer) -> None:
    """A message that is well formed and makes no sense here is left out like one that cannot be read."""
    heard: list[int] = []

    def hear(told: PromptsSent) -> None:
        if told.sent[0].number == 1:
            raise OverflowError
        heard.append(told.sent[0].number)

    link = RedisLink(empty_redis.url, RedisSection(prefix="{weighbridge}:hosts:"), "me")
    await link.start()
    me = OtherHosts("me", link, Sealing((Pepper(id="p", secret=b"p" * 32),)), hear)
    try:
        async with host(empty_redis, "one") as (one, _):
            for number in range(3):
                one.tell(message("w1", number))
                await one.exchange()
                # It begins with what is told after its first look.
                await me.exchange()
            for number in range(3):
                one.tell(message("w1", number))
                await one.exchange()
            await me.exchange()
    finally:
        await link.aclose()
    assert heard == [2, 0, 2]


async def test_a_host_that_cannot_be_understood_is_told_of(
    empty_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Another pepper, another way to hash, another version: nothing of it is counted as load, the log says once what to do, and a metric how often."""
    registry, now = CollectorRegistry(), 0.0
    async with (
        host(empty_redis, "one") as (one, _),
        host(empty_redis, "odd", b"q" * 32) as (odd, _),
        host(empty_redis, "old") as (old, _),
    ):
        link = RedisLink(empty_redis.url, RedisSection(prefix="{weighbridge}:hosts:"), "me")
        await link.start()
        heard: list[PromptsSent] = []
        sealing = Sealing((Pepper(id="p", secret=b"p" * 32),))
        observer = HostMetrics(registry)
        me = OtherHosts("me", link, sealing, heard.append, count=observer.count_news, clock=lambda: now)
        try:
            one.tell(message("w1"))
            await one.exchange()
            await me.exchange()
            for _ in range(3):
                one.tell(message("w1"))
                odd.tell(message("w2"))
                old.tell(msgspec.structs.replace(message("w3"), hashes=HASHES + 1))
                for each in (one, odd, old, me):
                    await each.exchange()
            client = redis.Redis.from_url(empty_redis.url)
            client.xadd("{weighbridge}:hosts:prompts", {"host": "new", "news": b"what"})
            client.close()
            await me.exchange()
            counted = {
                result: registry.get_sample_value("weighbridge_hosts_news_total", {"result": result})
                for result in ("heard", "other_pepper", "other_hashes", "unreadable")
            }
            assert counted == {"heard": 3, "other_pepper": 3, "other_hashes": 3, "unreadable": 1}
            assert heard == [message("w1")] * 3
            said = [record.getMessage() for record in caplog.records if record.name == "weighbridge.hosts"]
            assert len(said) == 7, "each host once for each fault: three here, two at one, one at odd, one at old"
            for word in ("WEIGHBRIDGE_PEPPER", "one kind of Python", "one version of weighbridge"):
                assert any(word in line for line in said)
            caplog.clear()
            now = 601.0
            odd.tell(message("w2"))
            await odd.exchange()
            await me.exchange()
            assert "WEIGHBRIDGE_PEPPER" in caplog.text
        finally:
            await link.aclose()
