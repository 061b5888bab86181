"""Gateways of two hosts before one pool, with a Redis: each counts what the other sent."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from selfhosted.balance.balancer import Balancer
from tests.fleet import Place, callers, pool, pooled_model
from tests.odd_engine import odd_engines
from tests.processes import until
from tests.redis_server import RedisServer
from tests.running_gateway import Running, running_gateway
from tests.scenarios.neighbours import PATIENT


def _balancer(gateway: Running) -> Balancer:
    """That of a worker of this host."""
    return gateway.data.live._fleet.pools["own"].balancer


def _loads(gateway: Running) -> list[int]:
    """Requests at each replica, as a worker of this host counts them."""
    return [_balancer(gateway).load(name).requests for name in ("a", "b")]


async def test_what_one_host_sends_is_load_and_cache_for_the_other(tmp_path: Path, empty_redis: RedisServer) -> None:
    """While it runs it is load, and afterwards its prompt is found where it was read."""
    address = tmp_path / "redis.address"
    address.write_text(empty_redis.url)
    redis: Any = {"url": f"file:{address}", **PATIENT}
    async with odd_engines("a", "b") as engines, contextlib.AsyncExitStack() as stack:
        own = pool([Place(each.name, each.url) for each in engines])
        gateways = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            sections = {"selfhosted": {"pools": [own]}, "redis": redis}
            gateways.append(
                await stack.enter_async_context(running_gateway(tmp_path / name, [pooled_model()], **sections))
            )
        one, two = gateways
        asking = await stack.enter_async_context(callers(one))
        await asking.until_states(a="ready", b="ready")
        for engine in engines:
            engine.gate.clear()
        messages = [{"role": "user", "content": "Weigh this bridge, please. " * 100}]
        waiting = []
        while not sum(_loads(two)):
            # A host hears within a second that there is another one, and tells nothing before.
            waiting.append(asyncio.create_task(asking.ask(messages)))
            await asyncio.sleep(0.3)
        assert sum(_loads(two)) <= sum(_loads(one)) == len(waiting)
        for engine in engines:
            engine.gate.set()
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
        await until(lambda: sum(_loads(two)) == 0)
        held = [[_balancer(gateway).index.held(name) for name in ("a", "b")] for gateway in gateways]
        assert held[0] == held[1]
        assert sum(held[0]) > 3
