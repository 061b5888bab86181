"""Two gateways, one limit: with Redis they are one, and without it each enforces its share."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.processes import until
from tests.redis_server import RedisServer
from tests.running_gateway import model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.neighbours import Neighbour, neighbours

OK = {"ok": "ok", "hangs": "hang"}
# The bucket fills by one a minute: while a test runs there is only what was in it.
SLOWLY: dict[str, Any] = {"requests_per_minute": 1, "request_burst": 10}


async def test_two_gateways_let_through_what_one_limit_allows(
    tmp_path: Path, upstream: Upstream, empty_redis: RedisServer
) -> None:
    """Of 30 requests sent at once to both, exactly the burst is let through, and refusals take nothing."""
    async with neighbours(tmp_path, upstream, OK, redis_url=empty_redis.url, limits={"team": SLOWLY}) as gates:
        for gate in gates:
            await gate.becomes("shared", 2)
        statuses = await asyncio.gather(*(gates[number % 2].ask() for number in range(30)))
        assert sorted(statuses) == [200] * 10 + [429] * 20
        error, headers = await gates[1].refused()
        assert error["code"] == "rate_limit_exceeded"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert 0 < int(headers["retry-after"]) <= 60
    assert len(upstream.arrived()) == 10


async def test_tokens_are_settled_for_both(tmp_path: Path, upstream: Upstream, empty_redis: RedisServer) -> None:
    """What one gateway gives back of an estimate, the other has to give; what was used is gone for both."""
    limits = {"team": {"tokens_per_minute": 1, "token_burst": 1_000}}
    async with neighbours(tmp_path, upstream, OK, redis_url=empty_redis.url, limits=limits) as (one, other):
        for _ in range(4):
            assert await one.ask(max_tokens=400) == 200
        # The script used 12 and 3 tokens each time.
        await until(lambda: _remains(other, "tokens", 1_000 - 4 * 15))
        error, headers = await other.refused(max_tokens=2_000)
        assert (error["type"], headers["x-should-retry"]) == ("tokens", "false")
        assert await other.remaining("tokens") == 1_000 - 4 * 15


async def _remains(gate: Neighbour, kind: str, amount: int) -> bool:
    return await gate.remaining(kind) == amount


@pytest.mark.long
async def test_concurrency_is_counted_across_gateways(
    tmp_path: Path, upstream: Upstream, empty_redis: RedisServer
) -> None:
    """What runs at one gateway fills the other's places, and a caller that hangs up frees its own."""
    limits = {"team": {"concurrency": 2}}
    async with neighbours(tmp_path, upstream, OK, redis_url=empty_redis.url, limits=limits) as (one, other):
        running = [asyncio.create_task(gate.ask("hangs")) for gate in (one, other)]
        await until(lambda: len(upstream.arrived()) == 2)
        for gate in (one, other):
            await gate.refused()
        running[0].cancel()
        await until(lambda: _passes(other))
        running[1].cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await until(lambda: _remains(one, "concurrency", 2))


async def _passes(gate: Neighbour) -> bool:
    return await gate.ask() == 200


@pytest.mark.long
async def test_without_redis_each_enforces_its_share(tmp_path: Path, upstream: Upstream) -> None:
    """Two processes that know of each other by the database let through the burst together, half of it each."""
    async with neighbours(tmp_path, upstream, OK, limits={"team": SLOWLY}) as gates:
        for gate in gates:
            await gate.becomes("share", 2)
        assert [await gate.passed(12) for gate in gates] == [5, 5]


@pytest.mark.parametrize("kind", ["key", "team", "organisation", "model"])
async def test_alone_a_gateway_is_exact(tmp_path: Path, upstream: Upstream, kind: str) -> None:
    """Without Redis and without others it lets through exactly what each kind of limit allows."""
    models = [model("ok", [upstream.deployment("ok")])]
    async with (
        running_gateway(tmp_path, models, limits={kind: SLOWLY}) as gateway,
        aiohttp.ClientSession(gateway.url, headers={"authorization": f"Bearer {gateway.key}"}) as session,
    ):
        assert await Neighbour(session).passed(15) == 10
