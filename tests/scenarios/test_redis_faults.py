"""Redis dies, hangs and crawls, and callers do not notice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.redis_server import RedisServer
from tests.scenarios.conftest import Upstream
from tests.scenarios.neighbours import SWIFT, Neighbour, neighbours
from tests.toxic import ToxicProxy, toxic_proxy

OK = {"ok": "ok"}
BURST = 120
# The bucket fills by one a minute: while a test runs there is only what was in it.
SLOWLY: dict[str, Any] = {"requests_per_minute": 1, "request_burst": BURST}
_NOTICE = 3
"""Requests at each gateway that find Redis sick."""


class Harm(msgspec.Struct, frozen=True):
    name: str
    begin: Callable[[], object]
    end: Callable[[], object]


@pytest.fixture
async def wire(empty_redis: RedisServer) -> AsyncIterator[ToxicProxy]:
    async with toxic_proxy(empty_redis.port) as made:
        yield made


async def _become(gates: tuple[Neighbour, Neighbour], mode: str) -> None:
    for gate in gates:
        await gate.becomes(mode, 2)


async def _each_passes(gates: tuple[Neighbour, Neighbour], count: int) -> int:
    """All of them are let through, at both gateways at once. Returns how many they were."""
    assert await asyncio.gather(*(gate.ask() for gate in gates for _ in range(count))) == [200] * 2 * count
    return 2 * count


@pytest.mark.long
async def test_a_sick_redis_costs_no_request_and_gives_nothing_away(
    tmp_path: Path, upstream: Upstream, empty_redis: RedisServer, wire: ToxicProxy
) -> None:
    """Requests go on before, during and after each sickness; all of them together never get more than the one burst."""
    harms = [
        Harm("frozen", empty_redis.freeze, empty_redis.thaw),
        Harm("slow", lambda: wire.slow(0.2), wire.calm),
        Harm("cut off", wire.reset, wire.calm),
    ]
    limits = {"team": SLOWLY}
    async with neighbours(tmp_path, upstream, OK, redis_url=wire.url, redis=SWIFT, limits=limits) as gates:
        await _become(gates, "shared")
        taken = await _each_passes(gates, 2)
        for harm in harms:
            harm.begin()
            # The first of these notice.
            taken += await _each_passes(gates, _NOTICE)
            await _become(gates, "share")
            taken += await _each_passes(gates, 2)
            harm.end()
            await _become(gates, "shared")
            taken += await _each_passes(gates, 1)
        rest = sum([await gate.passed(BURST - taken + 1) for gate in gates])
    # What was sent to a Redis that did not answer in time may have been taken there and here.
    assert BURST - taken - 2 * _NOTICE * len(harms) <= rest <= BURST - taken


async def test_a_redis_that_comes_goes_and_comes_back(
    tmp_path: Path, upstream: Upstream, empty_redis: RedisServer
) -> None:
    """Gateways start without it and find it, and tell a new, empty one what was taken before and meanwhile."""
    empty_redis.kill()
    limits = {"team": SLOWLY}
    async with neighbours(tmp_path, upstream, OK, redis_url=empty_redis.url, limits=limits) as gates:
        await _become(gates, "share")
        taken = await _each_passes(gates, 5)
        empty_redis.start()
        await _become(gates, "shared")
        assert await gates[0].remaining("requests") == BURST - taken
        taken += await _each_passes(gates, 5)
        assert await gates[1].remaining("requests") == BURST - taken
        empty_redis.kill()
        taken += await _each_passes(gates, 4)
        await _become(gates, "share")
        empty_redis.start()
        await _become(gates, "shared")
        assert sum([await gate.passed(BURST - taken + 1) for gate in gates]) == BURST - taken
