"""Parameters that targets refused, over the real link: what one worker met, all know."""

import tempfile
from pathlib import Path

import redis

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.wiring.refused_parameters import (
    SharedRefusals,
    exchange_refused_parameters,
    share_refused_parameters,
)
from gateway.wiring.told_hosts import ToldHosts
from proxy.plan.refused_parameters import RefusedParameters
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.processes import until
from tests.redis_server import RedisServer


async def test_what_one_worker_met_all_know() -> None:
    """The other worker, the control plane, whose pages tell it, and a worker that starts later; the day ends for all at once."""
    now = [100.0]

    def worker(path: Path, boot_id: str) -> tuple[Link, RefusedParameters]:
        link, refused = Link(path, VOCABULARY), RefusedParameters(lambda: now[0])
        exchange_refused_parameters(link, refused)
        link.start(Hello(boot_id, 1))
        return link, refused

    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path, hub, control = Path(folder) / "link.sock", Hub(VOCABULARY), RefusedParameters(lambda: now[0])
        share_refused_parameters(hub, control)
        await hub.start(path)
        (one, met), (two, told) = worker(path, "one"), worker(path, "two")
        links = [one, two]
        try:
            await one.synced(30)
            await two.synced(30)
            met.record("gpt", "temperature")
            await until(lambda: bool(told.current()))
            told.record("gpt", "seed")
            await until(lambda: len(met.current()["gpt"]) == 2)
            late, learnt = worker(path, "late")
            links.append(late)
            await late.synced(30)
            await until(lambda: bool(learnt.current()))
            everywhere = {"gpt": {"temperature", "seed"}}
            assert met.current() == told.current() == learnt.current() == control.current() == everywhere
            now[0] += 86_401
            assert not any(each.current() for each in (met, told, learnt, control))
        finally:
            for link in links:
                await link.aclose()
            await hub.aclose()


async def test_what_one_host_met_the_others_know(empty_redis: RedisServer) -> None:
    """Through Redis, at which efforts too, and told on to the control plane once; what others write there is bounded by known names."""
    links = [RedisLink(empty_redis.url, RedisSection(), name) for name in ("one", "another")]
    hosts = []
    for number, link in enumerate(links):
        await link.start()
        began = number * 1_000_000.0
        refused = RefusedParameters(lambda began=began: began)  # type: ignore[misc]
        hosts.append((ToldHosts(link, SharedRefusals.key, SharedRefusals(refused), refused._clock), refused))
    (one, met), (another, told) = hosts
    passed_on: list[str] = []
    told.tell = lambda each: passed_on.append(f"{each.target_id} {each.name}")
    try:
        met.record("a b/gpt é", "temperature")
        met.record("gpt", "top_p", "none")
        for each in (one, another, another):
            await each.exchange()
        assert told.current() == met.current() == {"a b/gpt é": {"temperature"}, "gpt": {"top_p"}}
        assert told.current("none") == met.current("none") == {"gpt": {"top_p"}}
        assert sorted(passed_on) == ["a b/gpt é temperature", "gpt top_p"]
        # Met at no effort on one host, where another knew it of others.
        met.record("a b/gpt é", "temperature", "none")
        for each in (one, another):
            await each.exchange()
        assert told.current("none") == {"a b/gpt é": {"temperature"}, "gpt": {"top_p"}}

        client = redis.Redis.from_url(empty_redis.url)
        odd = ("gpt messages", "gpt model", "gpt tools", "gpt", " seed", "x" * 300 + " seed", b"\xff seed")
        client.hset(f"{RedisSection().prefix}{SharedRefusals.key}", mapping=dict.fromkeys(odd, "99999999999 refused"))
        client.close()
        await another.exchange()
        assert told.current() == met.current()
        (ends,) = {round(each.until - 1_000_000) for each in told.known if each.name == "top_p"}
        assert abs(ends - 86_400) <= 5
    finally:
        for link in links:
            await link.aclose()
